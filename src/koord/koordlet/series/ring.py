"""One series as a ring buffer of samples, and windows of it with their aggregates.

The ring has two flat arrays that grow to a bound and then wrap around. Times are milliseconds since a base of the
series' own, four bytes each; values are doubles, so that a number of bytes stays exact. A full ring of half an hour at
one sample a second is 22 KB.
"""

from __future__ import annotations

import functools
import math
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence


class SampleWindow:
    """The samples of a time window. All aggregates are None when there is no sample: absent is not zero."""

    __slots__ = ("_ordered", "_values", "first_ms", "last_ms")

    def __init__(self, values: Sequence[float] = (), first_ms: int = 0, last_ms: int = 0) -> None:
        self._values = values
        self._ordered: list[float] | None = None
        self.first_ms = first_ms
        self.last_ms = last_ms

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def span_ms(self) -> int:
        return self.last_ms - self.first_ms

    @property
    def avg(self) -> float | None:
        return math.fsum(self._values) / len(self._values) if self._values else None

    @property
    def last(self) -> float | None:
        return self._values[-1] if self._values else None

    def percentile(self, share: float) -> float | None:
        """Return the value at the floor of that rank, computed in single precision as Koordinator's reporters do."""
        if not 0 < share <= 1:
            raise ValueError(f"a percentile is a share above 0 and up to 1, not {share}")
        if not self._values:
            return None
        if self._ordered is None:
            self._ordered = sorted(self._values)
        return self._ordered[_percentile_index(len(self._ordered), share)]

    def aggregate(self, name: str) -> float | None:
        """Return the aggregate by the name that reports use: avg, p50, p90, p95, p99, last."""
        if name == "avg":
            return self.avg
        return self.last if name == "last" else self.percentile(int(name.removeprefix("p")) / 100)


@functools.lru_cache(maxsize=1024)
def _percentile_index(count: int, share: float) -> int:
    return max(int(_to_float32(count * _to_float32(share))) - 1, 0)


def _to_float32(value: float) -> float:
    return array("f", (value,))[0]


_FIRST_ROOM = 16
_LAST_OFFSET = 2**32 - 1


class SampleRing:
    """The latest samples of one series in time order."""

    __slots__ = ("_base_ms", "_capacity", "_count", "_head", "_times", "_values")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a series holds at least one sample, not {capacity}")
        self._capacity = capacity
        self._times = array("I")
        self._values = array("d")
        self._base_ms = 0
        self._head = 0  # place of the oldest sample
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return sys.getsizeof(self) + sys.getsizeof(self._times) + sys.getsizeof(self._values)

    @property
    def last_ms(self) -> int | None:
        return self._time(self._count - 1) if self._count else None

    @property
    def last(self) -> float:
        return self._values[(self._head + self._count - 1) % len(self._values)]

    def latest(self, now_ms: int, fresh_ms: int) -> float | None:
        """Return the newest value that is not in the future, if it is no older than `fresh_ms`."""
        if not self._count:
            return None
        place = (self._head + self._count - 1) % len(self._values)
        age_ms = now_ms - self._base_ms - self._times[place]
        if age_ms < 0:
            values, _, _ = self.between(now_ms - fresh_ms, now_ms)
            return values[-1] if values else None
        return self._values[place] if age_ms <= fresh_ms else None

    def add(self, at_ms: int, value: float) -> None:
        """Add a sample; one at the time of the last sample replaces it.

        When time went backwards, samples that now lie in the future are dropped: where they belong is not known any
        more, and a window over both clocks would mix different moments.
        """
        times, count = self._times, self._count
        while count and self._base_ms + times[(self._head + count - 1) % len(times)] >= at_ms:
            count -= 1
        self._count = count
        if not count:
            self._base_ms, self._head = at_ms, 0
        elif at_ms - self._base_ms > _LAST_OFFSET:
            self._rebase(at_ms)
        if self._count == len(self._values) and self._count < self._capacity:
            self._grow()
        if self._count == self._capacity:
            self._head = (self._head + 1) % self._capacity
            self._count -= 1
        place = (self._head + self._count) % len(self._values)
        self._times[place] = at_ms - self._base_ms
        self._values[place] = value
        self._count += 1

    def widen(self, capacity: int) -> None:
        """Raise the capacity; it never shrinks."""
        self._capacity = max(capacity, self._capacity)

    def between(self, start_ms: int, end_ms: int) -> tuple[Sequence[float], int, int]:
        """Return the values of a closed time interval in order, and the times of the first and the last of them."""
        first, past = self._place_of(start_ms), self._place_of(end_ms + 1)
        if first >= past:
            return (), 0, 0
        return self._slice(self._values, first, past), self._time(first), self._time(past - 1)

    # -- inside

    def _time(self, index: int) -> int:
        return self._base_ms + self._times[(self._head + index) % len(self._times)]

    def _place_of(self, at_ms: int) -> int:
        """Return how many samples are older than the time."""
        times, offset, begin = self._times, at_ms - self._base_ms, self._head
        room, end = len(times), begin + self._count
        if end <= room:
            return bisect_left(times, offset, begin, end) - begin
        if times[room - 1] < offset:
            return room - begin + bisect_left(times, offset, 0, end - room)
        return bisect_left(times, offset, begin, room) - begin

    def _slice(self, source: array[float], first: int, past: int) -> array[float]:
        room = len(source)
        begin, end = self._head + first, self._head + past
        if begin >= room:
            return source[begin - room : end - room]
        return source[begin:end] if end <= room else source[begin:] + source[: end - room]

    def _grow(self) -> None:
        """Grow the arrays. Only called when full, so the order is that of the arrays from the head on."""
        room = min(max(2 * len(self._values), _FIRST_ROOM), self._capacity)
        times = self._times[self._head :] + self._times[: self._head]
        values = self._values[self._head :] + self._values[: self._head]
        missing = room - len(values)
        self._times = times + array("I", bytes(4 * missing))
        self._values = values + array("d", bytes(8 * missing))
        self._head = 0

    def _rebase(self, at_ms: int) -> None:
        """Move the base; samples further away than an offset can express are far outside of any window."""
        kept = [
            (time, self._values[(self._head + index) % len(self._values)])
            for index in range(self._count)
            if at_ms - (time := self._time(index)) <= _LAST_OFFSET
        ]
        self._base_ms = kept[0][0] if kept else at_ms
        self._head, self._count = 0, len(kept)
        for place, (time, value) in enumerate(kept):
            self._times[place] = time - self._base_ms
            self._values[place] = value
