"""One series as a ring buffer of samples, and windows of it with their aggregates.

The ring has two flat arrays that grow to a bound and then wrap around. Times are milliseconds since a base of the
series' own, four bytes each; values are doubles, so that a number of bytes stays exact. A full ring of half an hour at
one sample a second is 22 KB.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Sequence


class Window:
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
        """Return the time from the first sample to the last."""
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
        return self._ordered[_place(len(self._ordered), share)]

    def aggregate(self, name: str) -> float | None:
        """Return the aggregate by the name that reports use: avg, p50, p90, p95, p99, last."""
        if name == "avg":
            return self.avg
        return self.last if name == "last" else self.percentile(int(name.removeprefix("p")) / 100)


@functools.lru_cache(maxsize=1024)
def _place(count: int, share: float) -> int:
    return max(int(_single(count * _single(share))) - 1, 0)


def _single(value: float) -> float:
    return array("f", (value,))[0]
