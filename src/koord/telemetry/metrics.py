"""Counters, gauges and histograms of one program instance, one series for each set of label values, their registry, and
its exposition: Prometheus text by default, OpenMetrics for clients that ask for it.

Not thread-safe: a program changes its metrics from its event loop only, which saves a lock per
observation. Names are served as given; koord's are Kubernetes' and Koordinator's, and some of those break
the rules that client libraries enforce (a counter without `_total`), which is why this is not one of
them. There is no global registry: two programs in a process never share a number.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeVar

import msgspec

DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def exponential_buckets(first: float, factor: float, count: int) -> tuple[float, ...]:
    bounds = []
    for _ in range(count):
        bounds.append(first)
        first *= factor
    return tuple(bounds)


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


M = TypeVar("M", bound=Counter | Gauge | Histogram)


class MetricFamily(Generic[M]):
    """All series of one name. `labels(...)` finds or creates one; keep a reference to one that changes often."""

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


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class MetricReading(msgspec.Struct, frozen=True):
    """A metric that is not held but read on each scrape: one name, and a value for each set of labels."""

    name: str
    help: str
    kind: Kind
    label_names: Labels
    values: Sequence[tuple[Labels, float]]


class MetricDeclaration(msgspec.Struct, frozen=True):
    """The description of a metric before it has a value. It is a constant beside the code that reads the values, so
    that a program can be asked for its metrics without being run.
    """

    name: str
    help: str
    kind: Kind = "gauge"
    label_names: Labels = ()

    def reading(self, values: Sequence[tuple[Labels, float]]) -> MetricReading:
        return MetricReading(self.name, self.help, self.kind, self.label_names, values)


AnyFamily = MetricFamily[Counter] | MetricFamily[Gauge] | MetricFamily[Histogram]
ReadingSource = Callable[[], Iterable[MetricReading]]


class MetricRegistry:
    """Creates families and serves them in order of name. A name can be registered once."""

    def __init__(
        self, *, disabled: Iterable[str] = (), allowed: Mapping[str, Mapping[str, frozenset[str]]] | None = None
    ) -> None:
        """Configure the registry. `disabled` names are not served; `allowed` is metric -> label -> permitted values."""
        self._disabled = frozenset(disabled)
        self._allowed = allowed or {}
        self._families: dict[str, AnyFamily] = {}
        self._sources: list[ReadingSource] = []

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> MetricFamily[Counter]:
        return self._take(MetricFamily(name, help, "counter", self._names(name, labels), Counter, self._of(name)))

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> MetricFamily[Gauge]:
        return self._take(MetricFamily(name, help, "gauge", self._names(name, labels), Gauge, self._of(name)))

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = DEFAULT_BUCKETS
    ) -> MetricFamily[Histogram]:
        bounds = tuple(buckets)
        if list(bounds) != sorted(set(bounds)) or not bounds:
            raise ValueError(f"{name}: bucket bounds must rise, got {bounds}")
        names = self._names(name, labels)
        return self._take(MetricFamily(name, help, "histogram", names, lambda: Histogram(bounds), self._of(name)))

    def source(self, read: ReadingSource) -> None:
        """Register a function that is asked for readings on each scrape."""
        self._sources.append(read)

    def families(self) -> Iterator[AnyFamily]:
        return iter([family for name, family in self._families.items() if name not in self._disabled])

    def declarations(self) -> Iterator[MetricDeclaration]:
        """Return what was registered, without what sources read."""
        for family in self.families():
            yield MetricDeclaration(family.name, family.help, family.kind, family.label_names)

    def readings(self) -> Iterator[MetricReading]:
        for read in self._sources:
            for reading in read():
                if reading.name not in self._disabled:
                    yield reading

    def _take(self, family: MetricFamily[M]) -> MetricFamily[M]:
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


TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_HELP = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_LABEL = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def prefers_openmetrics(accept: str) -> bool:
    """Return whether an Accept header prefers OpenMetrics to plain text. Weights decide, the first of equals wins."""
    best, chosen = 0.0, ""
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        fields = dict(p.partition("=")[::2] for p in parameters)
        if kind == "application/openmetrics-text" and fields.get("version", "1.0.0") not in ("1.0.0", "0.0.1"):
            continue
        if kind not in ("application/openmetrics-text", "text/plain", "text/*", "*/*"):
            continue
        weight = _weight(fields.get("q", "1"))
        if weight > best:
            best, chosen = weight, kind
    return chosen == "application/openmetrics-text"


def render(registries: Iterable[MetricRegistry], *, open_metrics: bool = False) -> bytes:
    """Render every family that has a series, by name. Where two registries share a name, the first one is served."""
    entries: dict[str, AnyFamily | MetricReading] = {}
    for registry in registries:
        for entry in (*registry.families(), *registry.readings()):
            entries.setdefault(entry.name, entry)
    lines: list[str] = []
    for _, entry in sorted(entries.items()):
        body = list(_lines(entry, open_metrics))
        if body:
            # OpenMetrics names a counter without the suffix that its samples carry.
            name = entry.name.removesuffix("_total") if open_metrics and entry.kind == "counter" else entry.name
            lines += (f"# HELP {name} {_help(entry.help, open_metrics)}", f"# TYPE {name} {entry.kind}", *body)
    if open_metrics:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode() if lines else b""


def format_number(value: float) -> str:
    """Format a number as Go prints it: shortest digits, an exponent from a million on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    if "e" in text or abs(value) < 1e6:
        return text.removesuffix(".0")
    sign, rest = ("-", text[1:]) if value < 0 else ("", text)
    whole, _, fraction = rest.partition(".")
    digits = (whole + fraction).rstrip("0") or "0"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e+{len(whole) - 1:02d}"


def format_sample(name: str, names: Labels, values: Labels, value: str) -> str:
    """Format one sample, with its labels in order of name."""
    return f"{name}{_labels(names, values)} {value}"


def _lines(entry: AnyFamily | MetricReading, open_metrics: bool) -> Iterator[str]:
    write = _open_number if open_metrics else format_number
    suffix = "_total" if open_metrics and entry.kind == "counter" and not entry.name.endswith("_total") else ""
    if isinstance(entry, MetricReading):
        for values, value in entry.values:
            yield format_sample(entry.name + suffix, entry.label_names, values, write(value))
        return
    series_of: Iterable[tuple[Labels, Counter | Gauge | Histogram]] = entry
    for values, series in sorted(series_of, key=_values):
        if isinstance(series, Histogram):
            yield from _buckets(entry.name, entry.label_names, values, series, open_metrics)
        else:
            yield format_sample(entry.name + suffix, entry.label_names, values, write(series.value))


def _buckets(name: str, names: Labels, values: Labels, series: Histogram, open_metrics: bool) -> Iterator[str]:
    write = _open_number if open_metrics else format_number
    inside = _pairs(names, values)
    head = f"{name}_bucket{{{inside}{',' if inside else ''}le="
    seen = 0
    for bound, count in zip(series.bounds, series.counts):
        seen += count
        yield f'{head}"{write(bound)}"}} {seen}'
    seen += series.counts[-1]
    yield f'{head}"+Inf"}} {seen}'
    braces = f"{{{inside}}}" if inside else ""
    yield f"{name}_sum{braces} {write(series.total)}"
    yield f"{name}_count{braces} {seen}"


def _labels(names: Labels, values: Labels) -> str:
    return f"{{{_pairs(names, values)}}}" if names else ""


def _pairs(names: Labels, values: Labels) -> str:
    return ",".join([f'{name}="{value.translate(_LABEL)}"' for name, value in sorted(zip(names, values))])


def _values(item: tuple[Labels, object]) -> Labels:
    return item[0]


def _help(text: str, open_metrics: bool) -> str:
    return text.translate(_LABEL if open_metrics else _HELP)


def _open_number(value: float) -> str:
    text = format_number(value)
    return text if any(mark in text for mark in ".eNI") else f"{text}.0"


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
