"""Submits batch jobs without an end and deletes those that are done, as a workflow engine does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from koord.api.kubernetes.builtin_kinds import JOBS, PODS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import Job
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import HandlerRegistration
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)


class JobSubmitter:
    """Submits a job every `every_s` on average, but none while `backlog` of their pods wait for a node."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        chance: Random,
        make: Callable[[int, Random], dict[str, Any]],
        *,
        namespace: str,
        every_s: float,
        backlog: int,
        after_s: float,
    ) -> None:
        self._client = client
        self._jobs = informers.for_resource(JOBS)
        self._pods = informers.for_resource(PODS)
        self._clock = clock
        self._chance = chance
        self._make = make
        self._namespace = namespace
        self._every_s = every_s
        self._backlog = backlog
        self._after_s = after_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: HandlerRegistration[Job] | None = None
        self.submitted = 0
        self.done = 0
        self.failed = 0
        self._closed: set[str] = set()

    @property
    def waiting(self) -> int:
        """Return the number of pods of jobs that have no node yet."""
        return sum(1 for pod in self._mine() if not pod.spec.node_name)

    @property
    def running(self) -> int:
        return sum(1 for pod in self._mine() if pod.spec.node_name and pod.status.phase == "Running")

    async def start(self) -> None:
        self._news = self._jobs.add_event_handler(self._look)
        self._spawn(self._submit())

    async def stop(self) -> None:
        if self._news is not None:
            self._jobs.remove_event_handler(self._news)
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _submit(self) -> None:
        await self._clock.sleep(self._after_s)
        while True:
            await self._clock.sleep(self._chance.expovariate(1 / self._every_s))
            if self.waiting >= self._backlog:
                continue
            answer = await self._client.create(JOBS, self._make(self.submitted, self._chance))
            if isinstance(answer, ApiError):
                _LOG.warning("a job was refused: %s", answer)
            else:
                self.submitted += 1

    def _look(self, change: ObjectChange[Job]) -> None:
        job = change.object
        meta = job.metadata
        if change.kind == "deleted" or meta.namespace != self._namespace or meta.uid in self._closed:
            return
        ended = {one.type for one in job.status.conditions if one.status == "True"} & {"Complete", "Failed"}
        if ended:
            self._closed.add(meta.uid)
            self.done += "Complete" in ended
            self.failed += "Failed" in ended
            self._spawn(self._clear(meta.name))

    async def _clear(self, name: str) -> None:
        answer = await self._client.dynamic.delete(JOBS, name, self._namespace, propagation="Background")
        if isinstance(answer, ApiError) and not answer.not_found:
            _LOG.warning("job %s cannot be cleared away: %s", name, answer)

    def _mine(self) -> list[Pod]:
        return self._pods.list(self._namespace)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
