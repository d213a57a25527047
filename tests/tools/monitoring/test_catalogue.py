"""Metrics are declared once, explained in a sentence, and named as upstream names them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from koord.telemetry.metrics import MetricDeclaration
from tools.monitoring.catalogue import declared, programs, series_labels, shared_metrics
from tools.monitoring.output import ROOT, generated_files
from tools.monitoring.upstream import NOT_SERVED, upstream_metrics

OWN_PREFIXES = ("koord_", "koordinator_", "koordlet_", "python_")
_NAME = re.compile(
    r"(?:scheduler|koordlet|koord|koordinator|slo_controller|descheduler|rest_client|process|python)_\w+"
)


def test_the_committed_files_are_what_is_written() -> None:
    stale = [str(path) for path, text in generated_files().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run `make monitoring`"


def test_a_name_means_one_thing() -> None:
    every = [one for program in programs() for one in program.metrics]
    every += [one for _, metrics in shared_metrics() for one in metrics]
    assert len({one.name for one in every}) == len(every)


@pytest.mark.parametrize("metric", declared().values(), ids=lambda one: one.name)
def test_every_metric_is_explained_in_a_sentence(metric: MetricDeclaration) -> None:
    assert re.fullmatch(r"(?:[A-Z0-9]|cpu\.).{20,}\.", metric.help), metric.help
    assert "|" not in metric.help  # it is a cell of a table


@pytest.mark.parametrize("metric", declared().values(), ids=lambda one: one.name)
def test_a_name_of_upstream_has_its_type_and_labels(metric: MetricDeclaration) -> None:
    known = upstream_metrics().get(metric.name)
    if known is None:
        assert metric.name.startswith(OWN_PREFIXES)
    else:
        assert (metric.kind, frozenset(metric.label_names)) == (known.kind, known.labels)


def test_what_upstream_has_is_served_or_has_a_reason() -> None:
    assert set(upstream_metrics()) - set(declared()) == set(NOT_SERVED)


def test_own_counters_end_as_counters_do() -> None:
    own = [one for one in declared().values() if one.name not in upstream_metrics() and one.kind == "counter"]
    assert own
    assert [one.name for one in own if not one.name.endswith("_total")] == []


def test_no_counter_has_the_name_of_another_metric_in_openmetrics() -> None:
    """OpenMetrics names a counter without its suffix; a gauge of that name would be the same family."""
    names = {one.name for one in declared().values()}
    assert [name for name in names if name.endswith("_total") and name.removesuffix("_total") in names] == []


def test_a_histogram_is_three_series() -> None:
    found = series_labels([MetricDeclaration("h", "", "histogram", ("a",)), MetricDeclaration("g", "")])
    assert found == {
        "h_sum": frozenset({"a"}),
        "h_count": frozenset({"a"}),
        "h_bucket": frozenset({"a", "le"}),
        "g": frozenset(),
    }


def metric_names_in(source: Path) -> set[str]:
    """Return the metric names that a source file registers or declares as plain text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in ("counter", "gauge", "histogram", "MetricDeclaration", "reconcile_count"):
                assert isinstance(name, str)
                found.add(name)
    return found


def test_no_source_declares_a_metric_that_the_catalogue_does_not_know() -> None:
    names = set().union(*(metric_names_in(path) for path in (ROOT / "src" / "koord").rglob("*.py")))
    assert len(names) > 50
    assert names - set(declared()) == set()


def test_readings_are_made_from_declarations() -> None:
    """A reading that is made by hand would be served and not be in the reference."""
    for path in (ROOT / "src" / "koord").rglob("*.py"):
        if path != ROOT / "src" / "koord" / "telemetry" / "metrics.py":
            assert not re.search(r"(?<!class )\bMetricReading\(", path.read_text()), path


@pytest.mark.parametrize("page", ["docs/koord-manager.md", "docs/koord-scheduler.md", "docs/concepts/runtime-proxy.md"])
def test_pages_name_metrics_that_exist(page: str) -> None:
    series = {*series_labels(declared().values()), *declared()}
    quoted = re.findall(r"`([^`]+)`", (ROOT / page).read_text())
    named = {found[0] for text in quoted if (found := _NAME.match(text)) and re.search(r"_total|_seconds|\{", text)}
    assert named - series == set()
