"""All series of a node by key, within bounds: how long each kind is kept, and how many series there may be. One series
is a ring buffer of samples, with windows of it and their aggregates.

A sample that is no plausible number is refused here, so nothing computed from series can be garbage. The caller's tick
makes it forget: `expire` drops what has gone quiet.

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
from collections.abc import Iterator, Mapping, Sequence


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


LARGEST_VALUE = 2.0**53  # past it doubles cannot count bytes any more, and no machine has as many

SeriesKey = tuple[str, ...]  # the kind, then what identifies the series of that kind


class SeriesStore:
    """The store of series. Times are seconds; the clock may jump, see SampleRing."""

    def __init__(
        self,
        keep_s: Mapping[str, int],
        *,
        default_keep_s: int = 60,
        interval_s: float = 1.0,
        most_series: int = 20_000,
    ) -> None:
        """`interval_s` is the time between samples; it turns a retention time into a capacity."""
        self._keep_s = dict(keep_s)
        self._default_keep_s = default_keep_s
        self._interval_s = interval_s
        self._most_series = most_series
        self._series: dict[str, dict[SeriesKey, SampleRing]] = {}  # by kind
        self._count = 0
        self._fresh_ms: dict[str, int] = {}  # by kind: how old its newest sample may be to count as now
        self.refused = 0  # samples that were no usable number, or one series too many

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Return the size of the samples; the keys come on top."""
        return sum(ring.size_bytes for rings in self._series.values() for ring in rings.values())

    def retention_s(self, kind: str) -> int:
        return self._keep_s.get(kind, self._default_keep_s)

    def extend_retention(self, keep_s: Mapping[str, int]) -> bool:
        """Extend the retention of kinds where it is shorter than given. Return whether anything changed.

        Older samples are gone already; windows fill up as time passes.
        """
        longer = {kind: seconds for kind, seconds in keep_s.items() if seconds > self.retention_s(kind)}
        if not longer:
            return False
        self._keep_s |= longer
        self._fresh_ms.clear()
        for kind in longer:
            for ring in self._series.get(kind, {}).values():
                ring.widen(self._places(kind))
        return True

    def add(self, key: SeriesKey, at_s: float, value: float) -> bool:
        """Add a sample; return whether it was accepted."""
        if not (0 <= value <= LARGEST_VALUE and 0 <= at_s <= LARGEST_VALUE):
            self.refused += 1
            return False
        rings = self._series.get(key[0])
        if rings is None:
            rings = self._series[key[0]] = {}
        ring = rings.get(key)
        if ring is None:
            if self._count >= self._most_series:
                self.refused += 1
                return False
            ring = rings[key] = SampleRing(self._places(key[0]))
            self._count += 1
        ring.add(round(at_s * 1000), value)
        return True

    def window(self, key: SeriesKey, now_s: float, length_s: float) -> SampleWindow:
        """Return the samples of a window, both ends included, without those older than their kind's retention."""
        ring = self._ring(key)
        if ring is None:
            return SampleWindow()
        end_ms = round(now_s * 1000)
        length_ms = round(min(length_s, self.retention_s(key[0])) * 1000)
        return SampleWindow(*ring.between(end_ms - length_ms, end_ms))

    def latest(self, key: SeriesKey, now_s: float) -> float | None:
        """Return the last value if it came in one of the last two intervals: older ones say nothing about now."""
        ring = self._ring(key)
        return None if ring is None else ring.latest(round(now_s * 1000), self._freshness_ms(key[0]))

    def latest_of(self, kind: str, now_s: float) -> dict[SeriesKey, float]:
        """Return the latest value of all series of a kind that have one."""
        now_ms, fresh_ms = round(now_s * 1000), self._freshness_ms(kind)
        found = ((key, ring.latest(now_ms, fresh_ms)) for key, ring in self._series.get(kind, {}).items())
        return {key: value for key, value in found if value is not None}

    def keys(self, kind: str) -> Iterator[SeriesKey]:
        return iter(self._series.get(kind, ()))

    def expire(self, now_s: float) -> int:
        """Forget series without a sample in their kind's retention time; return how many."""
        now_ms = round(now_s * 1000)
        return self._forget(
            [
                key
                for kind, rings in self._series.items()
                for key, ring in rings.items()
                if (last := ring.last_ms) is None or now_ms - last > self.retention_s(kind) * 1000
            ]
        )

    # -- inside

    def _ring(self, key: SeriesKey) -> SampleRing | None:
        rings = self._series.get(key[0])
        return None if rings is None else rings.get(key)

    def _forget(self, keys: list[SeriesKey]) -> int:
        for key in keys:
            del self._series[key[0]][key]
        self._count -= len(keys)
        return len(keys)

    def _freshness_ms(self, kind: str) -> int:
        found = self._fresh_ms.get(kind)
        if found is None:
            found = self._fresh_ms[kind] = round(min(2 * self._interval_s, self.retention_s(kind)) * 1000)
        return found

    def _places(self, kind: str) -> int:
        """Return the capacity of a ring of this kind: one more than intervals, as both ends of a window count."""
        return math.ceil(self.retention_s(kind) / self._interval_s) + 1
