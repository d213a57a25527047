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
from random import Random
from typing import Literal

import msgspec

from koord.api.builtin import EVENTS_EVENTS
from koord.api.meta import Object
from koord.api.part import ObjectReference
from koord.api.resource import Resource
from koord.kube.client import Client
from koord.kube.correlator import NAME_BYTES, Correlator, Story, StoryKey, body_of, bounded
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.ratelimit import jittered
from koord.kube.refused import Refused
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

QUEUE = 1000
TRIES = 12
RETRY_S = 10.0
CHECK_S = 60.0
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


def reference(resource: Resource[Object], obj: Object) -> ObjectReference:
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


class Recorder:
    def __init__(
        self, client: Client, clock: Clock, *, controller: str, instance: str, rng: Random | None = None
    ) -> None:
        """Create a recorder. `controller` is the program ("koord-scheduler"), `instance` one of its processes
        ("koord-scheduler-host1").
        """
        if not controller or not instance:
            raise ValueError("events need the names of the reporting controller and of its instance")
        self.counts = RecorderCounts()
        self._client = client
        self._clock = clock
        self._controller = controller
        self._instance = bounded(instance, NAME_BYTES)
        self._rng = rng or Random()
        self._correlator = Correlator(clock)
        self._queue: deque[Story] = deque()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._quiet = QuietLog(_LOG, clock)
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
    ) -> None:
        """Record an event. `action` is what was being done; the server requires one, so it defaults to `reason`."""
        if type not in ("Normal", "Warning"):
            raise ValueError(f"an event is Normal or Warning, not {type!r}")
        action = action or reason
        if not reason or len(reason.encode()) > NAME_BYTES or len(action.encode()) > NAME_BYTES:
            raise ValueError(f"an event's reason and action have 1 to {NAME_BYTES} bytes: {reason!r}, {action!r}")
        self.counts.recorded += 1
        note = bounded(message)
        key = StoryKey(
            type=type,
            reason=reason,
            action=action,
            regarding=msgspec.structs.replace(regarding, resource_version=""),
            related=related,
        )
        story = self._correlator.known(key, note)
        if story is not None:
            self.counts.repeated += 1
            if story.owed:
                self._enqueue(story)
            return
        if len(self._queue) >= QUEUE:
            self._drop(regarding, reason)
            return
        if not self._correlator.allowed(regarding):
            self.counts.spam += 1
            return
        story, pushed_out = self._correlator.begin(key, regarding, self._name(regarding.name), note)
        for other in pushed_out:
            self._enqueue(other)
        self._enqueue(story)

    def start(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._write_all(), name="events-write"),
                asyncio.create_task(self._check_all(), name="events-check"),
            ]

    async def stop(self, grace_s: float = 2.0) -> None:
        """Write what is still unwritten, final counts included, for at most `grace_s`. Raise what a task died of."""
        for story in self._correlator.unwritten():
            self._enqueue(story)
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

    async def __aenter__(self) -> Recorder:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pending(self) -> int:
        return len(self._queue)

    # -- writing

    def _enqueue(self, story: Story) -> None:
        if not story.queued:
            story.queued = True
            story.tries = 0
            self._queue.append(story)
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
            await self._clock.sleep(CHECK_S)
            for story in self._correlator.due():
                self._enqueue(story)

    async def _write_all(self) -> None:
        while True:
            while self._queue:
                story = self._queue[0]  # stays in the queue while it is tried, so that a stop knows of it
                done = await self._write(story)
                if not done and story.tries < TRIES:
                    await self._clock.sleep(jittered(RETRY_S, 0.25, self._rng))
                    continue
                if not done:
                    self.counts.lost += 1
                    self._correlator.forget(story)
                    self._quiet.error("event %s/%s given up after %d tries", story.namespace, story.name, TRIES)
                self._queue.popleft()
                story.queued = False
                if done and story.written and story.owed:
                    self._enqueue(story)  # it was repeated while it was being written
            self._idle.set()
            self._work.clear()
            await self._work.wait()

    async def _write(self, story: Story) -> bool:
        """Write an event; return False when it is worth another try."""
        story.tries += 1
        count = story.count
        try:
            result = await self._send(story)
        except OUTAGE as error:
            self._quiet.warning("event %s/%s not written: %s", story.namespace, story.name, error)
            return False
        if isinstance(result, Refused) and result.already_exists:
            # Names are ours alone: an earlier try got through, with one occurrence in it as far as we know.
            story.written = max(story.written, 1)
        elif isinstance(result, Refused):
            self._quiet.warning("event %s/%s refused: %s", story.namespace, story.name, result)
            if result.too_many or result.code >= 500:
                return False
            self.counts.refused += 1
            self._correlator.forget(story)
            return True
        else:
            self.counts.writes += 1
            story.written = count
        story.written_s = self._clock.time()
        return True

    async def _send(self, story: Story) -> Object | Refused:
        if story.written:
            patch = {"series": story.series()}
            result = await self._client.patch(EVENTS_EVENTS, story.name, patch, story.namespace, kind="merge")
            if not (isinstance(result, Refused) and result.not_found):
                return result
            story.written = 0  # it outlived its time on the server
        return await self._client.create(EVENTS_EVENTS, body_of(story, self._controller, self._instance))
