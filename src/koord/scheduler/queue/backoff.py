"""Hold failed pods until their back-off is over.

There are two heaps, as in Kubernetes. A rejected pod backs off as a price for the attempts it wasted: when nothing else
is to be done it is popped early. A pod that met an error backs off to spare whatever is broken, so it always serves its
time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.queue.queued_pod import QueuedPod

# Back-offs end together on whole seconds, so that pods of one second leave in the order of their priorities.
WINDOW_S = 1.0
_LARGEST_SHIFT = 62

T = TypeVar("T")

# Dead entries are swept when they outnumber the living by this factor; below the floor nobody minds them.
_SWEEP_FACTOR = 2
_SWEEP_FLOOR = 64


class KeyedHeap(Generic[T]):
    """Order items by key, smallest first; equal keys keep the order of `push`.

    Entries can be removed by name. Removal is lazy: a dead entry goes when it surfaces.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, str, T]] = []
        self._live: dict[str, int] = {}  # name -> ticket of its only valid entry
        self._ticket = 0

    def push(self, name: str, key: Any, item: T) -> None:
        """Add an item, replacing the one of this name."""
        self._ticket += 1
        self._live[name] = self._ticket
        heapq.heappush(self._entries, (key, self._ticket, name, item))
        self._sweep()

    def remove(self, name: str) -> bool:
        if self._live.pop(name, None) is None:
            return False
        self._sweep()
        return True

    def peek(self) -> T | None:
        entries, live = self._entries, self._live
        while entries:
            head = entries[0]
            if live.get(head[2]) == head[1]:
                return head[3]
            heapq.heappop(entries)
        return None

    def first_key(self) -> Any:
        """Return the key of the first item, None when there is none."""
        return None if self.peek() is None else self._entries[0][0]

    def pop(self) -> T | None:
        item = self.peek()
        if item is not None:
            del self._live[heapq.heappop(self._entries)[2]]
        return item

    def _sweep(self) -> None:
        if len(self._entries) > _SWEEP_FACTOR * len(self._live) + _SWEEP_FLOOR:
            self._entries = [entry for entry in self._entries if self._live.get(entry[2]) == entry[1]]
            heapq.heapify(self._entries)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, name: str) -> bool:
        return name in self._live

    def __iter__(self) -> Iterator[T]:
        """Iterate in order, for people to look at: this sorts everything."""
        return (e[3] for e in sorted(e for e in self._entries if self._live.get(e[2]) == e[1]))


class ActiveQueue:
    """Order the pods that are ready to be tried. Those that extenders are asked about can be held back as a whole,
    without a cost to the others.
    """

    def __init__(self, is_extended: Callable[[PodInfo], bool] | None = None) -> None:
        self._is_extended = is_extended
        self._plain: KeyedHeap[QueuedPod] = KeyedHeap()
        self._extended: KeyedHeap[QueuedPod] = KeyedHeap()

    def push(self, queued: QueuedPod, sort_key: Any) -> None:
        if self._is_extended is None:
            self._plain.push(queued.uid, sort_key, queued)
            return
        self.remove(queued.uid)  # the pod may have changed sides
        heap = self._extended if self._is_extended(queued.pod) else self._plain
        heap.push(queued.uid, sort_key, queued)

    def remove(self, uid: str) -> bool:
        return self._plain.remove(uid) or self._extended.remove(uid)

    def pop(self, *, hold_extended: bool) -> QueuedPod | None:
        """Return the first pod of all, or the first that no extender is asked about."""
        key = self._extended.first_key()
        if key is None or hold_extended:
            return self._plain.pop()
        other = self._plain.first_key()
        return self._extended.pop() if other is None or key < other else self._plain.pop()

    def holds_back(self, queued: QueuedPod) -> bool:
        """Return whether the pod waits while extended pods are held back."""
        return self._is_extended is not None and self._is_extended(queued.pod)

    def __len__(self) -> int:
        return len(self._plain) + len(self._extended)


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the queue's settings of KubeSchedulerConfiguration and of the gate SchedulerPopFromBackoffQ."""

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0  # 0 switches backing off off
    max_unschedulable_s: float = 300.0
    pop_from_backoff: bool = True


def backoff_duration_s(failures: int, settings: QueueSettings) -> float:
    if failures <= 0:
        return 0.0
    return min(settings.initial_backoff_s * (1 << min(failures - 1, _LARGEST_SHIFT)), settings.max_backoff_s)


def backoff_end(since: float, failures: int, settings: QueueSettings) -> float:
    """Return the first moment when a pod that failed at `since` may be tried again."""
    if failures <= 0 or settings.max_backoff_s <= 0:
        return 0.0
    end = since + backoff_duration_s(failures, settings)
    if not settings.pop_from_backoff:
        return end
    return (math.floor(end / WINDOW_S) + 1) * WINDOW_S


class BackoffQueue:
    def __init__(self) -> None:
        self._unschedulable: KeyedHeap[QueuedPod] = KeyedHeap()
        self._errored: KeyedHeap[QueuedPod] = KeyedHeap()

    def add(self, queued: QueuedPod, sort_key: Any) -> None:
        if queued.rejected or queued.pending:
            self._unschedulable.push(queued.uid, (queued.until, sort_key, queued.number), queued)
        else:
            self._errored.push(queued.uid, (queued.until, queued.number), queued)

    def remove(self, uid: str) -> None:
        if not self._unschedulable.remove(uid):
            self._errored.remove(uid)

    def pop_early(self) -> QueuedPod | None:
        return self._unschedulable.pop()

    def release(self, now: float) -> Iterator[QueuedPod]:
        """Remove and yield every pod whose back-off is over."""
        for heap in (self._unschedulable, self._errored):
            while (head := heap.peek()) is not None and head.until <= now:
                heap.pop()
                yield head

    def next_end(self) -> float | None:
        ends = [head.until for heap in (self._unschedulable, self._errored) if (head := heap.peek()) is not None]
        return min(ends, default=None)

    def __len__(self) -> int:
        return len(self._unschedulable) + len(self._errored)

    def __iter__(self) -> Iterator[QueuedPod]:
        yield from self._unschedulable
        yield from self._errored
