"""A histogram whose samples count half as much after each half-life, and its exponential buckets.

Old weights are not touched as time passes; new ones are made heavier instead, relative to a reference
time that is moved when the factor would grow too large. Times are seconds since the Unix epoch and arrive
with the samples.
"""

from __future__ import annotations

import math
from functools import cached_property

import msgspec


class HistogramBuckets:
    """Exponential buckets from 0 to `largest`, each 5 % wider than the one before; the last has no end."""

    def __init__(self, *, first: float, largest: float, ratio: float = 1.05) -> None:
        self.first = first
        self.largest = largest
        self.ratio = ratio

    @cached_property
    def count(self) -> int:
        return math.ceil(self._log(self.largest * (self.ratio - 1) / self.first + 1)) + 1

    def find(self, value: float) -> int:
        if value < self.first:
            return 0
        return min(int(self._log(value * (self.ratio - 1) / self.first + 1)), self.count - 1)

    def start(self, bucket: int) -> float:
        return float(self.first * (self.ratio**bucket - 1) / (self.ratio - 1))

    def end(self, bucket: int) -> float:
        """Return the upper end of a bucket; the last one has none, so its start is returned."""
        return self.start(bucket + 1) if bucket < self.count - 1 else self.start(bucket)

    def _log(self, value: float) -> float:
        return math.log(value) / math.log(self.ratio)


CPU_BUCKETS = HistogramBuckets(first=0.025, largest=1024)
MEMORY_BUCKETS = HistogramBuckets(first=5 * 2**20, largest=2**41)


EPSILON = 0.0001  # a thousandth of the smallest weight of a sample: less than this is nothing
_MAX_HALF_LIVES = 100  # half-lives from the reference after which it is moved
_COMPACT_SCALE = 10_000


class HistogramCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The full state of a histogram: restored, it continues as if it had never been away."""

    reference_s: float = 0.0
    weights: dict[int, float] = {}


class CompactHistogram(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A histogram in small integers: shapes survive, exact weights do not."""

    reference_timestamp: float = 0.0
    bucket_weights: dict[int, int] = {}
    total_weight: float = 0.0


class DecayingHistogram:
    def __init__(self, buckets: HistogramBuckets, half_life_s: float) -> None:
        if half_life_s <= 0:
            raise ValueError(f"a half-life is a time above zero, not {half_life_s} s")
        self.buckets = buckets
        self.half_life_s = half_life_s
        self._reference_s = 0.0
        self._weights: dict[int, float] = {}  # only buckets that hold something

    def add(self, value: float, at: float, weight: float = 1.0) -> None:
        if at > self._reference_s + _MAX_HALF_LIVES * self.half_life_s:
            self._move_reference(at)
        bucket = self.buckets.find(value)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + weight * self._factor(at)

    @property
    def total(self) -> float:
        """Return the total weight in the histogram's own scale; only shares of it are meaningful."""
        return math.fsum(self._weights.values())

    @property
    def is_empty(self) -> bool:
        return not self._significant()

    def percentile(self, share: float) -> float:
        """Return the upper end of the bucket below which that share of the weight lies; 0 when empty."""
        significant = self._significant()
        if not significant:
            return 0.0
        threshold, passed = share * self.total, 0.0
        for bucket in significant:
            passed += self._weights[bucket]
            if passed >= threshold:
                return self.buckets.end(bucket)
        return self.buckets.end(significant[-1])

    def peak(self, now: float, least: float) -> float:
        """Return the upper end of the highest bucket that still weighs `least` now, in samples of weight 1."""
        floor = max(least * self._factor(now), EPSILON)
        held = [bucket for bucket, weight in self._weights.items() if weight >= floor]
        return self.buckets.end(max(held)) if held else self.percentile(1.0)

    # -- keeping

    def save(self) -> HistogramCheckpoint:
        return HistogramCheckpoint(reference_s=self._reference_s, weights=dict(sorted(self._weights.items())))

    def restore(self, saved: HistogramCheckpoint) -> None:
        """Replace the content by a saved state. Buckets that do not exist any more join the last one."""
        self._reference_s = saved.reference_s
        self._weights = {}
        for bucket, weight in saved.weights.items():
            self._put(bucket, weight)

    def compact(self) -> CompactHistogram:
        largest = max(self._weights.values(), default=0.0)
        if largest <= 0:
            return CompactHistogram(reference_timestamp=self._reference_s)
        scaled = {
            bucket: math.floor(weight / largest * _COMPACT_SCALE + 0.5) for bucket, weight in self._weights.items()
        }
        kept = {bucket: weight for bucket, weight in sorted(scaled.items()) if weight}
        return CompactHistogram(reference_timestamp=self._reference_s, bucket_weights=kept, total_weight=self.total)

    def expand(self, compact: CompactHistogram) -> None:
        """Replace the content by a compact form: its numbers are shares of its total."""
        self._reference_s = compact.reference_timestamp
        self._weights = {}
        whole = sum(compact.bucket_weights.values())
        for bucket, weight in compact.bucket_weights.items():
            self._put(bucket, weight * compact.total_weight / whole)

    # -- inside

    def _put(self, bucket: int, weight: float) -> None:
        if math.isfinite(weight) and weight > 0 and bucket >= 0:
            known = min(bucket, self.buckets.count - 1)
            self._weights[known] = self._weights.get(known, 0.0) + weight

    def _significant(self) -> list[int]:
        return sorted(bucket for bucket, weight in self._weights.items() if weight >= EPSILON)

    def _factor(self, at: float) -> float:
        return float(2.0 ** ((at - self._reference_s) / self.half_life_s))

    def _move_reference(self, at: float) -> None:
        moved = round(at / self.half_life_s) * self.half_life_s
        scale = 2.0 ** round((self._reference_s - moved) / self.half_life_s)
        self._reference_s = moved
        self._weights = {bucket: left for bucket, weight in self._weights.items() if (left := weight * scale) > 0}
