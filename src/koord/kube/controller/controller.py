"""This module runs workers that take keys from a work queue and call a reconciler for each of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from koord.kube.controller.workqueue import WorkQueue
from koord.kube.rate_limit import RateLimitedLog

K = TypeVar("K", bound=Hashable)

_LOG = logging.getLogger(__name__)


class Done(msgspec.Struct, frozen=True):
    """Done means that there is nothing left to do until something changes."""


class RequeueAfter(msgspec.Struct, frozen=True):
    """RequeueAfter asks to reconcile again after this long. It is not a failure: the key's back-off is reset."""

    after_s: float


class Requeue(msgspec.Struct, frozen=True):
    """Requeue asks to reconcile again with the key's rate-limited back-off."""

    why: str = ""


ReconcileResult = Done | RequeueAfter | Requeue


class ControllerCounts(msgspec.Struct, kw_only=True):
    done: int = 0
    requeued_after: int = 0
    requeued: int = 0
    failed: int = 0


class Controller(Generic[K]):
    """Controller reconciles keys until its queue is shut down and empty; cancelling `run` stops at once."""

    def __init__(
        self, name: str, queue: WorkQueue[K], reconcile: Callable[[K], Awaitable[ReconcileResult]], *, workers: int = 1
    ) -> None:
        if workers < 1:
            raise ValueError(f"controller {name}: needs at least one worker, got {workers}")
        self.name = name
        self.queue = queue
        self.counts = ControllerCounts()
        self._reconcile = reconcile
        self._workers = workers
        self._limited_log = RateLimitedLog(_LOG, queue.clock, every_s=10.0, burst=10)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")

    async def _work(self) -> None:
        while (key := await self.queue.get()) is not None:
            try:
                await self._reconcile_key(key)
            finally:
                self.queue.done(key)

    async def _reconcile_key(self, key: K) -> None:
        try:
            outcome = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001  one bad key must not stop the others; it is logged, counted and retried
            self.counts.failed += 1
            self._limited_log.error(
                "%s: reconciling %s failed (failure %d in a row)",
                self.name,
                key,
                self.queue.retries(key) + 1,
                exc_info=error,
            )
            self.queue.add_rate_limited(key)
            return
        match outcome:
            case Done():
                self.counts.done += 1
                self.queue.forget(key)
            case RequeueAfter(after_s):
                self.counts.requeued_after += 1
                self.queue.forget(key)
                self.queue.add_after(key, after_s)
            case Requeue():
                self.counts.requeued += 1
                self.queue.add_rate_limited(key)
