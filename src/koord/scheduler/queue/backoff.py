"""Hold failed pods until their back-off is over.

There are two heaps, as in Kubernetes. A rejected pod backs off as a price for the attempts it wasted: when nothing
else is to be done it is popped early. A pod that met an error backs off to spare whatever is broken, so it always
serves its time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from koord.scheduler.queue.entry import QueuedPod
from koord.scheduler.queue.heap import Heap

# Back-offs end together on whole seconds, so that pods of one second leave in the order of their priorities.
WINDOW_S = 1.0
_LARGEST_SHIFT = 62


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the queue's settings of KubeSchedulerConfiguration and of the gate SchedulerPopFromBackoffQ."""

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0  # 0 switches backing off off
    max_unschedulable_s: float = 300.0
    pop_from_backoff: bool = True


def duration_s(failures: int, settings: Settings) -> float:
    if failures <= 0:
        return 0.0
    return min(settings.initial_backoff_s * (1 << min(failures - 1, _LARGEST_SHIFT)), settings.max_backoff_s)


def ends_at(since: float, failures: int, settings: Settings) -> float:
    """Return the first moment when a pod that failed at `since` may be tried again."""
    if failures <= 0 or settings.max_backoff_s <= 0:
        return 0.0
    end = since + duration_s(failures, settings)
    if not settings.pop_from_backoff:
        return end
    return (math.floor(end / WINDOW_S) + 1) * WINDOW_S


class Backoff:
    def __init__(self) -> None:
        self._refused: Heap[QueuedPod] = Heap()
        self._broken: Heap[QueuedPod] = Heap()

    def add(self, queued: QueuedPod, sort_key: Any) -> None:
        if queued.rejected or queued.pending:
            self._refused.push(queued.uid, (queued.until, sort_key, queued.number), queued)
        else:
            self._broken.push(queued.uid, (queued.until, queued.number), queued)

    def remove(self, uid: str) -> None:
        if not self._refused.remove(uid):
            self._broken.remove(uid)

    def pop_early(self) -> QueuedPod | None:
        return self._refused.pop()

    def release(self, now: float) -> Iterator[QueuedPod]:
        """Remove and yield every pod whose back-off is over."""
        for heap in (self._refused, self._broken):
            while (head := heap.peek()) is not None and head.until <= now:
                heap.pop()
                yield head

    def next_end(self) -> float | None:
        ends = [head.until for heap in (self._refused, self._broken) if (head := heap.peek()) is not None]
        return min(ends, default=None)

    def __len__(self) -> int:
        return len(self._refused) + len(self._broken)

    def __iter__(self) -> Iterator[QueuedPod]:
        yield from self._refused
        yield from self._broken
