"""The context of every controller: a client, shared caches, time, randomness, an event recorder and status
patches.

Pods of one template have equal specs but for their node: each distinct spec is kept once, to save
memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, Protocol, TypeVar

import msgspec

from koord.api.builtin import PODS
from koord.api.pod import Pod
from koord.embedded.workloads.spec_pool import SpecPool
from koord.kube.client import Client
from koord.kube.controller import Controller, Outcome
from koord.kube.informer import Informer
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder
from koord.kube.workqueue import WorkQueue
from koord.telemetry.clock import Clock

K = TypeVar("K", bound=Hashable)

WORKERS = 5
# Timers may fire a hair early; a moment that close to the next second is that second.
_SLACK_S = 0.001


class Context(msgspec.Struct, frozen=True):
    client: Client
    informers: Informers
    clock: Clock
    recorder: Recorder
    seed: int
    specs: SpecPool

    def pods(self) -> Informer[Pod]:
        """Return the one informer of pods that all controllers share."""
        return self.informers.of(PODS, transform=self.specs.shared)

    def chance(self, who: str) -> Random:
        """Return a random source for one controller: what it draws does not change what another gets."""
        return Random(f"{self.seed} {who}")

    def now(self) -> datetime:
        """Return the time in whole seconds, as the API writes times: a time that was stored reads back equal."""
        return datetime.fromtimestamp(int(self.clock.time() + _SLACK_S), UTC)

    async def work(
        self,
        name: str,
        queue: WorkQueue[K],
        reconcile: Callable[[K], Awaitable[Outcome]],
        needs: Sequence[Informer[Any]],
        workers: int = WORKERS,
    ) -> None:
        """Reconcile keys until cancelled, once every informer in `needs` has synced: an unsynced cache looks like
        deletions.
        """
        for informer in needs:
            await informer.wait_synced()
        await Controller(name, queue, reconcile, workers=workers).run()


class Runner(Protocol):
    """One controller: it registers with the informers when it is made, and works while `run` runs."""

    name: str

    async def run(self) -> None: ...


def seconds_until(moment: datetime, now: datetime) -> float:
    return (moment - now).total_seconds()
