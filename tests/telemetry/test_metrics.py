"""Metrics are exposed as scrapers read them; Prometheus' own parsers are the judge."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as open_parser
from prometheus_client.parser import text_string_to_metric_families as text_families

from koord.telemetry import metrics
from koord.telemetry.metrics import MetricReading, MetricRegistry, exponential_buckets
from koord.telemetry.process import register_process_metrics
from koord.version import build_info

open_families: Any = open_parser.text_string_to_metric_families
label = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def rendered(registry: MetricRegistry, open_metrics: bool = False) -> str:
    return metrics.render([registry], open_metrics=open_metrics).decode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(0, "0", id="zero"),
        pytest.param(0.001, "0.001", id="small"),
        pytest.param(1e-05, "1e-05", id="tiny"),
        pytest.param(16.384, "16.384", id="bucket"),
        pytest.param(999999, "999999", id="below-a-million"),
        pytest.param(1e6, "1e+06", id="million"),
        pytest.param(-1234567.5, "-1.2345675e+06", id="negative-large"),
        pytest.param(1.5e21, "1.5e+21", id="huge"),
        pytest.param(math.inf, "+Inf", id="infinite"),
        pytest.param(math.nan, "NaN", id="not-a-number"),
    ],
)
def test_numbers_are_written_as_go_writes_them(value: float, text: str) -> None:
    assert metrics.format_number(value) == text


@given(st.floats(allow_nan=False))
def test_a_written_number_reads_back_the_same(value: float) -> None:
    assert float(metrics.format_number(value)) == value


def test_counter_keeps_a_name_without_total() -> None:
    registry = MetricRegistry()
    registry.counter("scheduler_scheduling_timeout", "Timeouts.", ("profile",)).labels("koord").inc(2)
    assert rendered(registry) == (
        "# HELP scheduler_scheduling_timeout Timeouts.\n"
        "# TYPE scheduler_scheduling_timeout counter\n"
        'scheduler_scheduling_timeout{profile="koord"} 2\n'
    )
    assert 'scheduler_scheduling_timeout_total{profile="koord"} 2.0' in rendered(registry, open_metrics=True)


def test_histogram_counts_up_to_and_including_its_bound() -> None:
    registry = MetricRegistry()
    series = registry.histogram("h", "H.", ("p",), (1, 2)).labels("a")
    for value in (0.5, 1, 1.5, 2, 3):
        series.observe(value)
    series.observe(9)
    series.observe(9)
    lines = rendered(registry).splitlines()[2:]
    assert lines == [
        'h_bucket{p="a",le="1"} 2',
        'h_bucket{p="a",le="2"} 4',
        'h_bucket{p="a",le="+Inf"} 7',
        'h_sum{p="a"} 26',
        'h_count{p="a"} 7',
    ]


def test_a_family_with_labels_and_no_series_is_not_served() -> None:
    registry = MetricRegistry()
    registry.gauge("empty", "E.", ("a",))
    assert rendered(registry) == ""
    registry.gauge("plain", "P.")
    assert "plain 0\n" in rendered(registry)


@given(st.lists(st.tuples(label, label, st.floats(allow_nan=False)), max_size=6, unique_by=lambda t: t[:2]))
def test_both_formats_parse_to_what_was_set(series: list[tuple[str, str, float]]) -> None:
    registry = MetricRegistry()
    gauge = registry.gauge("g", 'a "help"\\ text\nof two lines', ("one", "two"))
    for one, two, value in series:
        gauge.labels(one, two).set(value)
    wanted = {(one, two): value for one, two, value in series}
    for families in (text_families(rendered(registry)), open_families(rendered(registry, open_metrics=True))):
        samples = [sample for family in families for sample in family.samples]
        assert {(s.labels["one"], s.labels["two"]): s.value for s in samples} == wanted


def test_openmetrics_histogram_parses() -> None:
    registry = MetricRegistry()
    registry.histogram("h", "H.", (), exponential_buckets(0.001, 2, 15)).labels().observe(0.3)
    registry.counter("c_total", "C.").labels().inc()
    register_process_metrics(registry)
    names = {family.name for family in open_families(rendered(registry, open_metrics=True))}
    assert {"h", "c", "process_cpu_seconds", "python_info"} <= names


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        pytest.param("", False, id="nothing-said"),
        pytest.param("text/plain", False, id="text"),
        pytest.param("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", True, id="prometheus"),
        pytest.param("application/openmetrics-text;version=1.0.0;q=0.3,text/plain;q=0.5", False, id="text-weighs-more"),
        pytest.param("application/openmetrics-text;version=9.0.0,*/*;q=0.1", False, id="unknown-version"),
        pytest.param("application/openmetrics-text;q=x", False, id="no-weight"),
    ],
)
def test_negotiation(accept: str, wanted: bool) -> None:
    assert metrics.prefers_openmetrics(accept) is wanted


def test_names_and_labels_are_checked() -> None:
    registry = MetricRegistry()
    family = registry.counter("c", "C.", ("a",))
    with pytest.raises(ValueError, match="registered already"):
        registry.gauge("c", "C.")
    with pytest.raises(ValueError, match="is no name"):
        registry.gauge("a-b", "C.")
    with pytest.raises(ValueError, match="must rise"):
        registry.histogram("h", "H.", (), (2, 1))
    with pytest.raises(ValueError, match="has labels"):
        family.labels("x", "y")


def test_removed_series_are_gone() -> None:
    registry = MetricRegistry()
    family = registry.gauge("g", "G.", ("name", "phase"))
    for name, phase in (("a", "x"), ("a", "y"), ("b", "x")):
        family.labels(name, phase)
    family.remove("b", "x")
    assert family.remove_where(name="a") == 2
    assert len(family) == 0


def test_disabled_metrics_count_but_are_not_served() -> None:
    registry = MetricRegistry(disabled=["c", "r"])
    registry.counter("c", "C.").labels().inc()
    registry.source(lambda: [MetricReading("r", "R.", "gauge", (), (((), 1.0),))])
    assert rendered(registry) == ""


def test_label_values_outside_their_allow_list_share_one_series() -> None:
    registry = MetricRegistry(allowed={"c": {"who": frozenset({"me"})}})
    family = registry.counter("c", "C.", ("who",))
    for who in ("me", "you", "them"):
        family.labels(who).inc()
    assert rendered(registry).splitlines()[2:] == ['c{who="me"} 1', 'c{who="unexpected"} 2']


def test_two_registries_are_merged_by_name() -> None:
    first, second = MetricRegistry(), MetricRegistry()
    first.gauge("b", "B.").labels().set(1)
    second.gauge("b", "B.").labels().set(2)
    second.gauge("a", "A.")
    text = metrics.render([first, second]).decode()
    assert [line for line in text.splitlines() if line[0] != "#"] == ["a 0", "b 1"]


def test_process_numbers_are_absent_without_proc(tmp_path: Path) -> None:
    registry = MetricRegistry()
    register_process_metrics(registry, tmp_path)
    assert "process_" not in rendered(registry)
    assert "python_info" in rendered(registry)


def test_buckets_are_those_of_kubernetes() -> None:
    assert exponential_buckets(0.001, 2, 15)[-1] == 16.384


def test_the_build_is_a_metric() -> None:
    registry = MetricRegistry()
    register_process_metrics(registry)
    (line,) = [line for line in rendered(registry).splitlines() if line.startswith("koord_build_info{")]
    info = build_info()
    for label, value in (("git_version", f"v{info.version}"), ("git_commit", info.commit), ("build_date", info.date)):
        assert f'{label}="{value}"' in line
    assert line.endswith(" 1")
