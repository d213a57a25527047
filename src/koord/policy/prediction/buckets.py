"""A histogram whose samples count half as much after each half-life, and its exponential buckets.

Old weights are not touched as time passes; new ones are made heavier instead, relative to a reference
time that is moved when the factor would grow too large. Times are seconds since the Unix epoch and arrive
with the samples.
"""

from __future__ import annotations

import math
from functools import cached_property


class Buckets:
    """Exponential buckets from 0 to `largest`, each 5 % wider than the one before; the last one takes all that is
    more.
    """

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


CPU_CORES = Buckets(first=0.025, largest=1024)
MEMORY_BYTES = Buckets(first=5 * 2**20, largest=2**41)
