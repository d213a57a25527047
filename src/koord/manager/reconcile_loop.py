"""The loop of a controller: handlers on informers, a queue and its workers; counts of its outcomes; and the context
that every controller and webhook is given.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Controller, ReconcileResult, WorkQueue
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import HandlerRegistration, Informer
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import MetricDeclaration, MetricReading

K = TypeVar("K", bound=Hashable)

SUCCEEDED, FAILED = "succeeded", "failed"


class ReconcileLoop(Generic[K]):
    """Runs a reconciler from `start` to `stop`, as often as the replica leads; each run has a queue of its own."""

    def __init__(
        self, name: str, clock: Clock, reconcile: Callable[[K], Awaitable[ReconcileResult]], *, workers: int = 1
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue(clock, name=name)
        self._clock = clock
        self._reconcile = reconcile
        self._workers = workers
        self._registrations: list[tuple[Informer[Any], HandlerRegistration[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    def start(
        self,
        informers: Sequence[Informer[Any]],
        handlers: Sequence[tuple[Informer[Any], Callable[[Any], object]]],
        *,
        resync_s: float = 0.0,
        resync: Callable[[], object] = lambda: None,
    ) -> None:
        """Add the handlers once the informers have synced: with half a list of nodes most objects would look orphaned.

        `resync` is called every `resync_s` seconds; 0: never.
        """
        self.queue = WorkQueue(self._clock, name=self.name)
        self._task = asyncio.create_task(self._run(informers, handlers, resync_s, resync), name=self.name)

    async def stop(self) -> None:
        for informer, registration in self._registrations:
            informer.remove_event_handler(registration)
        self._registrations = []
        self.queue.shutdown(drain=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(
        self,
        informers: Sequence[Informer[Any]],
        handlers: Sequence[tuple[Informer[Any], Callable[[Any], object]]],
        resync_s: float,
        resync: Callable[[], object],
    ) -> None:
        for informer in informers:
            await informer.wait_for_sync()
        self._registrations = [(informer, informer.add_event_handler(handler)) for informer, handler in handlers]
        async with asyncio.TaskGroup() as group:
            group.create_task(Controller(self.name, self.queue, self._reconcile, workers=self._workers).run())
            while resync_s > 0:
                await self._clock.sleep(resync_s)
                resync()


class ReconcileCounter:
    """Counts of one controller by outcome and reason, under the metric name that dashboards know."""

    def __init__(self, declared: MetricDeclaration) -> None:
        self._declared = declared
        self.counts: Counter[tuple[str, str]] = Counter()

    def succeeded(self, reason: str = "") -> None:
        self.counts[SUCCEEDED, reason] += 1

    def failed(self, reason: str) -> None:
        self.counts[FAILED, reason] += 1

    def reading(self) -> MetricReading:
        values = tuple((labels, float(count)) for labels, count in sorted(self.counts.items()))
        return self._declared.reading(values)


def reconcile_count(name: str, help: str) -> MetricDeclaration:
    """Declare the metric of a ReconcileCounter."""
    return MetricDeclaration(name, help, "counter", ("status", "reason"))


NAMESPACE = "koordinator-system"


class ManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The flags and feature gates that more than one part reads."""

    namespace: str = NAMESPACE  # where this program lives: its lease, its certificate
    config_namespace: str = NAMESPACE
    config_name: str = "slo-controller-config"
    gates: Mapping[str, bool] = {}
    plugins: tuple[str, ...] = ("*",)  # of the noderesource controller; "-Name" leaves one out
    sync_period_s: float = 0.0  # 0: only changes are looked at

    def is_gate_enabled(self, name: str) -> bool:
        """Return whether the feature gate is on. An unknown gate is a programming error and raises."""
        return self.gates[name]


class ManagerContext(msgspec.Struct, frozen=True, kw_only=True):
    client: Client
    informers: InformerFactory
    clock: Clock
    recorder: EventRecorder
    settings: ManagerSettings
    rng: Random = msgspec.field(default_factory=Random)  # for pauses between tries
