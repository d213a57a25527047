"""Counters, gauges and histograms, one series for each set of label values. Held in plain numbers, cheap to change.

Not for threads: a program changes its metrics from its event loop only, which is what saves a lock per observation.
Names are served as they are given; koord's are Kubernetes' and Koordinator's, and some of those break the rules that
client libraries enforce (a counter without `_total`), which is why this is not one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeVar

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]

UNEXPECTED = "unexpected"  # what a label value outside its allow-list is replaced with


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Gauge:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount

    def dec(self, amount: float = 1.0) -> None:
        self.value -= amount


class Histogram:
    """`counts[i]` holds what fell between `bounds[i-1]` and `bounds[i]`; the last one has no upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_many(self, value: float, times: int) -> None:
        """Record `times` observations of one value, for a loop that measures a batch and divides."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


M = TypeVar("M", bound=Counter | Gauge | Histogram)


class Family(Generic[M]):
    """All series of one name. `labels(...)` finds or creates one; keep a reference where the same series changes
    often.
    """

    def __init__(
        self,
        name: str,
        help: str,
        kind: Kind,
        label_names: Labels,
        make: Callable[[], M],
        allowed: Mapping[str, frozenset[str]],
    ) -> None:
        self.name = name
        self.help = help
        self.kind: Kind = kind
        self.label_names = label_names
        self._make: Callable[[], M] = make
        self._allowed = [(label_names.index(name), values) for name, values in allowed.items() if name in label_names]
        self._series: dict[Labels, M] = {}
        if not label_names:
            self.labels()

    def labels(self, *values: str) -> M:
        found = self._series.get(values)
        return found if found is not None else self._new(values)

    def _new(self, values: Labels) -> M:
        if len(values) != len(self.label_names):
            raise ValueError(f"{self.name} has labels {self.label_names}, got {values}")
        if self._allowed:
            changed = list(values)
            for at, allowed in self._allowed:
                if changed[at] not in allowed:
                    changed[at] = UNEXPECTED
            if tuple(changed) != values:
                return self.labels(*changed)
        made = self._series[values] = self._make()
        return made

    def remove(self, *values: str) -> None:
        """Remove the series; it is no error when it is absent."""
        self._series.pop(values, None)

    def remove_where(self, **wanted: str) -> int:
        """Remove every series with these label values, and return how many there were."""
        at = [(self.label_names.index(name), value) for name, value in wanted.items()]
        gone = [values for values in self._series if all(values[i] == value for i, value in at)]
        for values in gone:
            del self._series[values]
        return len(gone)

    def clear(self) -> None:
        self._series.clear()

    def __iter__(self) -> Iterator[tuple[Labels, M]]:
        return iter(tuple(self._series.items()))

    def __len__(self) -> int:
        return len(self._series)
