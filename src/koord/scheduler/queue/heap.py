"""A priority queue whose entries can be removed by name. Removal is lazy: a dead entry goes when it surfaces."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Dead entries are swept when they outnumber the living by this factor; below the floor nobody minds them.
_SWEEP_FACTOR = 2
_SWEEP_FLOOR = 64


class KeyedHeap(Generic[T]):
    """Order items by key, smallest first; equal keys keep the order of `push`."""

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
