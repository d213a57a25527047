"""A NodeMetric is read into vectors, and missing values stay missing."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.model import convert
from koord.scheduler.plugins.load_aware.estimator import LoadScoreWeights, ResourceAxes, load_score
from koord.scheduler.plugins.load_aware.node_load import LoadNodeMetric, LoadReport

AXES = ResourceAxes.including()
MINUTE = 60 * 10**9


def usage(cpu: str) -> dict[str, Any]:
    return {"resources": {"cpu": cpu, "memory": "1Ki"}}


def made(**status: Any) -> LoadReport:
    return LoadReport(convert({"metadata": {"name": "n"}, "status": status}, LoadNodeMetric), AXES)


WINDOWS = made(
    nodeMetric={
        "nodeUsage": usage("1"),
        "aggregatedNodeUsages": [
            {"duration": "5m0s", "usage": {"p95": usage("5"), "avg": {}}},
            {"duration": "30m0s", "usage": {"p95": usage("30")}},
            {"duration": "10m", "usage": {"p95": usage("10")}},
            {"duration": "soon", "usage": {"p95": usage("99")}},
            {"duration": "1h", "usage": {"p95": {"resources": {"cpu": "a lot"}}}},
        ],
    }
)


@pytest.mark.parametrize(
    ("kind", "window", "expected"),
    [
        pytest.param("p95", 5 * MINUTE, (5000, 1024), id="the-one-asked-for"),
        pytest.param("p95", 0, (30000, 1024), id="the-longest-that-can-be-read"),
        pytest.param("p95", MINUTE, None, id="not-reported"),
        pytest.param("avg", 5 * MINUTE, None, id="empty-is-not-reported"),
        pytest.param("avg", 0, (1000, 1024), id="plain-usage-stands-in"),
    ],
)
def test_windows(kind: str, window: int, expected: Any) -> None:
    assert WINDOWS.aggregated(kind, window) == expected


def test_missing_is_not_zero() -> None:
    assert made().usage is None
    assert made(nodeMetric={}).usage == (0, 0)
    assert made(nodeMetric={"nodeUsage": {"resources": {"cpu": "much"}}}).usage is None
    assert made().aggregated("p95", 0) is None
    assert made().system == (0, 0)
    assert made(nodeMetric={"systemUsage": usage("2")}).system == (2000, 1024)


def test_pods() -> None:
    found = made(
        podsMetric=[
            {"namespace": "a", "name": "x", "podUsage": usage("1"), "priority": "koord-prod"},
            {"namespace": "a", "name": "y", "podUsage": {}, "priority": "koord-batch"},
        ]
    )
    assert found.pods == {"a/x": ((1000, 1024), True), "a/y": (None, False)}


def test_age() -> None:
    assert made(updateTime="1970-01-01T00:01:00Z").expires_at(180) == 240
    assert made().expires_at(180) == float("-inf")
    assert made().interval_s == 60


@pytest.mark.parametrize(
    ("weights", "used", "expected"),
    [
        pytest.param(LoadScoreWeights.from_axes(AXES, {"cpu": 1, "memory": 1}), (500, 0), 75, id="mean"),
        pytest.param(
            LoadScoreWeights.from_axes(AXES, {"cpu": 3, "memory": 1}), (500, 0), 62, id="weighted-mean-cut-down"
        ),
        pytest.param(LoadScoreWeights.from_axes(AXES, {}), (0, 0), 0, id="no-weights"),
        pytest.param(LoadScoreWeights.from_axes(AXES, {}, 5), (500, 100), 50, id="the-scarcest"),
        pytest.param(LoadScoreWeights.from_axes(AXES, {"cpu": 1}, 1), (0, 900), 55, id="the-scarcest-needs-no-weight"),
        pytest.param(LoadScoreWeights.from_axes(AXES, {"cpu": 1}), (1001, 0), 0, id="more-than-all"),
        pytest.param(LoadScoreWeights.from_axes(AXES, {"cpu": 1}), (1000, 0), 0, id="all"),
    ],
)
def test_scores(weights: LoadScoreWeights, used: tuple[int, int], expected: int) -> None:
    assert load_score(weights, (1000, 1000), used, (0, 0), (0, 0)) == expected
    assert load_score(weights, (1000, 1000), (0, 0), used, (0, 0)) == expected
    assert load_score(weights, (1000, 1000), (0, 0), (0, 0), used) == expected
