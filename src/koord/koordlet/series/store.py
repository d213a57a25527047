"""All series of a node by key, within bounds: how long each kind is kept, and how many series there may be.

A sample that is no plausible number is refused here, so nothing computed from series can be garbage. The caller's tick
makes it forget: `expire` drops what has gone quiet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from koord.koordlet.series.ring import SampleRing, SampleWindow

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
