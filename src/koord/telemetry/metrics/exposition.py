"""The exposition formats of metrics: Prometheus text by default, OpenMetrics for clients that ask for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from koord.telemetry.metrics.registry import AnyFamily, Counter, Gauge, Histogram, Labels, MetricReading, MetricRegistry

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
