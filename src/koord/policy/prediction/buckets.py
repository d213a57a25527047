"""The sizes that a histogram tells apart: each bucket is 5 % wider than the one before it."""

from __future__ import annotations

import math
from functools import cached_property


class Buckets:
    """From 0 to `largest` and beyond: the last bucket takes all that is more."""

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
        """The last bucket has no end; what is known of its content is where it starts."""
        return self.start(bucket + 1) if bucket < self.count - 1 else self.start(bucket)

    def _log(self, value: float) -> float:
        return math.log(value) / math.log(self.ratio)


CPU_CORES = Buckets(first=0.025, largest=1024)
MEMORY_BYTES = Buckets(first=5 * 2**20, largest=2**41)
