"""This module compares what a program serves with the reference of metrics and with what promtool wants."""

from __future__ import annotations

import re

from tests.charts.promtool import run_promtool
from tools.monitoring.catalogue import declared, series_labels
from tools.monitoring.upstream import upstream_metrics

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="(?:[^"\\]|\\.)*"')


def undeclared_samples(text: str) -> list[str]:
    """Return the samples whose name or labels the reference does not have."""
    known = series_labels(declared().values())
    samples = [found for line in text.splitlines() if not line.startswith("#") and (found := _SAMPLE.match(line))]
    assert samples, "nothing is served"
    return [found[0] for found in samples if known.get(found[1]) != frozenset(_LABEL.findall(found[2] or ""))]


def complaints(text: str) -> set[str]:
    """Return the names that promtool would change and that are not upstream's, which dashboards know as they are."""
    status, said = run_promtool("check", "metrics", text=text)
    assert status in (0, 3), said  # 3: it is well-formed, and something could be named better
    found = {line.split()[0] for line in said.splitlines() if line.strip()}
    return found - set(upstream_metrics())
