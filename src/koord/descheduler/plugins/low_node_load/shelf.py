"""Balancing of one pool: evict pods from overutilized nodes until they are not, or the targets have no
headroom left.

Pods are tried in eviction order, each on the first target where it fits; its usage is booked there at once,
so that
the next one sees a fuller cluster. Upstream books every candidate first, in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

NONE = -(1 << 62)


class Shelf:
    """A segment tree over targets in order that finds the first with enough capacity without checking each.

    `rooms` are capacities by target and resource; every branch knows the maximum of each resource below it.
    """

    def __init__(self, rooms: Sequence[Sequence[int]]) -> None:
        self._size = 1 << max(len(rooms) - 1, 0).bit_length()
        kinds = len(rooms[0]) if rooms else 0
        self._most = [[NONE] * (2 * self._size) for _ in range(kinds)]
        for most, amounts in zip(self._most, zip(*rooms, strict=True), strict=True):
            most[self._size : self._size + len(amounts)] = amounts
            for branch in range(self._size - 1, 0, -1):
                most[branch] = max(most[2 * branch], most[2 * branch + 1])

    def put(self, index: int, room: Sequence[int]) -> None:
        """Set the capacity of one target."""
        for most, amount in zip(self._most, room, strict=True):
            branch = self._size + index
            most[branch] = amount
            while branch > 1:
                branch //= 2
                most[branch] = max(most[2 * branch], most[2 * branch + 1])

    def first(self, wanted: Sequence[int], suits: Callable[[int], bool]) -> int | None:
        """Return the index of the first target that has enough of every resource and also suits."""
        if not self._most:
            return None
        pairs = list(zip(self._most, wanted, strict=True))
        branches = [1]
        while branches:
            branch = branches.pop()
            for most, amount in pairs:
                if most[branch] < amount:
                    break
            else:
                if branch >= self._size:
                    if suits(branch - self._size):
                        return branch - self._size
                else:
                    branches += (2 * branch + 1, 2 * branch)
        return None
