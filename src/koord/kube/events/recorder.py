"""This module records Events about objects without ever making the caller wait: a bounded queue and one task
that writes.

What becomes one Event and what a series is decided in koord.kube.correlator. Events are news, not state:
what cannot be written in two minutes, or does not fit the queue, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Literal

import msgspec

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, EVENTS_EVENTS
from koord.api.kubernetes.core_v1 import EventSource
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.rbac import RbacRule
from koord.api.kubernetes.resource import Resource
from koord.api.model import ObjectReference
from koord.kube.client.typed_client import Client
from koord.kube.events.correlator import (
    MAX_NAME_BYTES,
    CachedEvent,
    EventCorrelator,
    EventKey,
    core_event_body,
    event_body,
    truncate_utf8,
)
from koord.kube.rate_limit import RateLimitedLog, jitter
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

MAX_QUEUED = 1000
MAX_TRIES = 12
RETRY_INTERVAL_S = 10.0
CHECK_INTERVAL_S = 60.0
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

EventType = Literal["Normal", "Warning"]


class RecorderCounts(msgspec.Struct, kw_only=True):
    recorded: int = 0  # calls of `record`
    repeated: int = 0  # ... that only raised a count
    spam: int = 0  # ... refused because the object had used up its budget
    dropped: int = 0  # ... lost because the queue was full
    writes: int = 0
    refused: int = 0  # the server said no and will again
    lost: int = 0  # given up after every try


def object_reference(resource: Resource[Object], obj: Object) -> ObjectReference:
    """Return the reference by which an event names the object that it is about."""
    meta = obj.metadata
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


class EventRecorder:
    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("events.k8s.io", ("events",), ("create", "patch")),)

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        controller: str,
        instance: str,
        rng: Random | None = None,
        source: EventSource | None = None,
    ) -> None:
        """Create a recorder. `controller` is the program ("koord-scheduler"), `instance` one of its processes
        ("koord-scheduler-host1"). With a source the events are written as core/v1, without one as events.k8s.io/v1.
        """
        if not controller or not instance:
            raise ValueError("events need the names of the reporting controller and of its instance")
        self.counts = RecorderCounts()
        self._client = client
        self._clock = clock
        self._controller = controller
        self._instance = truncate_utf8(instance, MAX_NAME_BYTES)
        self._rng = rng or Random()
        self._source = source
        self._correlator = EventCorrelator(clock)
        self._queue: deque[CachedEvent] = deque()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._limited_log = RateLimitedLog(_LOG, clock)
        self._last_name_ns = 0
        self._tasks: list[asyncio.Task[None]] = []

    def record(
        self,
        regarding: ObjectReference,
        type: EventType,
        reason: str,
        message: str,
        *,
        action: str = "",
        related: ObjectReference | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Record an event. `action` is what was being done; the server requires one, so it defaults to `reason`.

        `annotations` are for programs that read events; a repetition replaces those of the one before.
        """
        if type not in ("Normal", "Warning"):
            raise ValueError(f"an event is Normal or Warning, not {type!r}")
        action = action or reason
        if not reason or len(reason.encode()) > MAX_NAME_BYTES or len(action.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"an event's reason and action have 1 to {MAX_NAME_BYTES} bytes: {reason!r}, {action!r}")
        self.counts.recorded += 1
        note = truncate_utf8(message)
        key = EventKey(
            type=type,
            reason=reason,
            action=action,
            regarding=msgspec.structs.replace(regarding, resource_version=""),
            related=related,
        )
        event = self._correlator.count_repetition(key, note, annotations)
        if event is not None:
            self.counts.repeated += 1
            if event.needs_write:
                self._enqueue(event)
            return
        if len(self._queue) >= MAX_QUEUED:
            self._drop(regarding, reason)
            return
        if not self._correlator.take_object_budget(regarding):
            self.counts.spam += 1
            return
        event, pushed_out = self._correlator.start_event(key, regarding, self._name(regarding.name), note, annotations)
        for other in pushed_out:
            self._enqueue(other)
        self._enqueue(event)

    def start(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._write_all(), name="events-write"),
                asyncio.create_task(self._check_all(), name="events-check"),
            ]

    async def stop(self, grace_s: float = 2.0) -> None:
        """Write what is still unwritten, final counts included, for at most `grace_s`. Raise what a task died of."""
        for event in self._correlator.events_with_unwritten_counts():
            self._enqueue(event)
        if self._tasks and not any(task.done() for task in self._tasks):
            timer = asyncio.ensure_future(self._clock.sleep(grace_s))
            idle = asyncio.ensure_future(self._idle.wait())
            await asyncio.wait({timer, idle}, return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            idle.cancel()
            await asyncio.gather(timer, idle, return_exceptions=True)
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        if self._queue:
            self.counts.lost += len(self._queue)
            _LOG.warning("%d events were not written before the end", len(self._queue))
        died = [end for end in ends if isinstance(end, Exception)]
        if died:
            raise ExceptionGroup("the event recorder died", died)

    async def __aenter__(self) -> EventRecorder:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pending(self) -> int:
        return len(self._queue)

    # -- writing

    def _enqueue(self, event: CachedEvent) -> None:
        if not event.queued:
            event.queued = True
            event.tries = 0
            self._queue.append(event)
            self._work.set()
            self._idle.clear()

    def _drop(self, regarding: ObjectReference, reason: str) -> None:
        self.counts.dropped += 1
        if self.counts.dropped == 1:
            _LOG.warning(
                "events come faster than they can be written; the first one dropped is %s about %s %s/%s",
                reason,
                regarding.kind,
                regarding.namespace,
                regarding.name,
            )

    def _name(self, about: str) -> str:
        """Name an event by the object's name and the time, as every Kubernetes component does."""
        self._last_name_ns = max(int(self._clock.time() * 1e9), self._last_name_ns + 1)
        name = f"{about}.{self._last_name_ns:x}"
        if len(name) <= 253 and _SUBDOMAIN.fullmatch(name):
            return name
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    async def _check_all(self) -> None:
        while True:
            await self._clock.sleep(CHECK_INTERVAL_S)
            for event in self._correlator.due_for_write():
                self._enqueue(event)

    async def _write_all(self) -> None:
        while True:
            while self._queue:
                event = self._queue[0]  # stays in the queue while it is tried, so that a stop knows of it
                done = await self._write(event)
                if not done and event.tries < MAX_TRIES:
                    await self._clock.sleep(jitter(RETRY_INTERVAL_S, 0.25, self._rng))
                    continue
                if not done:
                    self.counts.lost += 1
                    self._correlator.forget(event)
                    self._limited_log.error(
                        "event %s/%s given up after %d tries", event.namespace, event.name, MAX_TRIES
                    )
                self._queue.popleft()
                event.queued = False
                if done and event.written and event.needs_write:
                    self._enqueue(event)  # it was repeated while it was being written
            self._idle.set()
            self._work.clear()
            await self._work.wait()

    async def _write(self, event: CachedEvent) -> bool:
        """Write an event; return False when it is worth another try."""
        event.tries += 1
        count = event.count
        try:
            result = await self._send(event)
        except TRANSIENT_ERRORS as error:
            self._limited_log.warning("event %s/%s not written: %s", event.namespace, event.name, error)
            return False
        if isinstance(result, ApiError) and result.already_exists:
            # Names are ours alone: an earlier try got through, with one occurrence in it as far as we know.
            event.written = max(event.written, 1)
        elif isinstance(result, ApiError):
            self._limited_log.warning("event %s/%s refused: %s", event.namespace, event.name, result)
            if result.too_many or result.code >= 500:
                return False
            self.counts.refused += 1
            self._correlator.forget(event)
            return True
        else:
            self.counts.writes += 1
            event.written = count
        event.written_s = self._clock.time()
        return True

    async def _send(self, event: CachedEvent) -> Object | ApiError:
        core = self._source is not None
        resource: Resource[Any] = CORE_EVENTS if core else EVENTS_EVENTS
        if event.written:
            patch = event.repetition_patch(core=core)
            result: Object | ApiError = await self._client.patch(
                resource, event.name, patch, event.namespace, kind="merge"
            )
            if not (isinstance(result, ApiError) and result.not_found):
                return result
            event.written = 0  # it outlived its time on the server
        if self._source is not None:
            return await self._client.create(CORE_EVENTS, core_event_body(event, self._source, self._instance))
        return await self._client.create(EVENTS_EVENTS, event_body(event, self._controller, self._instance))
