"""The metrics of one program instance. There is no global one: two programs in a process never share a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from koord.telemetry.metrics.buckets import DEFAULT
from koord.telemetry.metrics.family import Counter, Family, Gauge, Histogram, Kind, Labels, M

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class Reading(msgspec.Struct, frozen=True):
    """A metric that is not held but read on each scrape: one name, and a value for each set of labels."""

    name: str
    help: str
    kind: Kind
    label_names: Labels
    values: Sequence[tuple[Labels, float]]


AnyFamily = Family[Counter] | Family[Gauge] | Family[Histogram]
Source = Callable[[], Iterable[Reading]]


class Registry:
    """Creates families and serves them in order of name. A name can be registered once."""

    def __init__(
        self,
        *,
        disabled: Iterable[str] = (),
        allowed: Mapping[str, Mapping[str, frozenset[str]]] | None = None,
    ) -> None:
        """Configure the registry. `disabled` names count but are not served; `allowed` is metric -> label -> permitted
        values.
        """
        self._disabled = frozenset(disabled)
        self._allowed = allowed or {}
        self._families: dict[str, AnyFamily] = {}
        self._sources: list[Source] = []

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Family[Counter]:
        return self._take(Family(name, help, "counter", self._names(name, labels), Counter, self._of(name)))

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Family[Gauge]:
        return self._take(Family(name, help, "gauge", self._names(name, labels), Gauge, self._of(name)))

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = DEFAULT
    ) -> Family[Histogram]:
        bounds = tuple(buckets)
        if list(bounds) != sorted(set(bounds)) or not bounds:
            raise ValueError(f"{name}: bucket bounds must rise, got {bounds}")
        names = self._names(name, labels)
        return self._take(Family(name, help, "histogram", names, lambda: Histogram(bounds), self._of(name)))

    def source(self, read: Source) -> None:
        """Register a function that is asked for readings on each scrape."""
        self._sources.append(read)

    def families(self) -> Iterator[AnyFamily]:
        return iter([family for name, family in self._families.items() if name not in self._disabled])

    def readings(self) -> Iterator[Reading]:
        for read in self._sources:
            for reading in read():
                if reading.name not in self._disabled:
                    yield reading

    def _take(self, family: Family[M]) -> Family[M]:
        if family.name in self._families:
            raise ValueError(f"metric {family.name} is registered already")
        self._families[family.name] = family  # type: ignore[assignment]
        return family

    def _names(self, name: str, labels: Sequence[str]) -> Labels:
        wrong = [text for text in (name, *labels) if not _NAME.fullmatch(text)]
        if wrong:
            raise ValueError(f"metric {name}: {wrong[0]!r} is no name")
        return tuple(labels)

    def _of(self, name: str) -> Mapping[str, frozenset[str]]:
        return self._allowed.get(name, {})
