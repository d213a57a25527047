"""Reports are accepted or degraded, with the reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from koord.manager.colocation.models import ColocationNodeMetric
from koord.manager.colocation.node_metric import DegradedMetric, NodeMetricSample, evaluate_metric
from tests.manager.colocation.colocation_builders import NOW, colocation, decided, metric, node, sample, used


@pytest.mark.parametrize(
    ("report", "cause"),
    [
        pytest.param(None, "Missing", id="missing"),
        pytest.param(metric(updateTime=None), "NeverReported", id="never-reported"),
        pytest.param(metric(age_s=15 * 60), None, id="just-in-time"),
        pytest.param(metric(age_s=15 * 60 + 1), "Expired", id="expired"),
        pytest.param(metric(age_s=-60), None, id="a-clock-a-little-ahead"),
        pytest.param(metric(age_s=-15 * 60 - 1), "FromTheFuture", id="a-clock-far-ahead"),
        pytest.param(metric(nodeMetric=None), "Incomplete", id="no-node-metric"),
        pytest.param(metric(system=used("-1", 0)), "Negative", id="negative-system-usage"),
        pytest.param(metric(usage=used(1, "-1")), "Negative", id="negative-node-usage"),
        pytest.param(metric(sample("a", "-1m", 0)), "Negative", id="negative-pod-usage"),
        pytest.param(
            metric(applications=[{"name": "h", "usage": used("-5", 0)}]), "Negative", id="negative-application"
        ),
        pytest.param(metric(system=used("NaN", 0)), "Unreadable", id="not-a-number"),
        pytest.param(metric(sample("a", "1e", 0)), "Unreadable", id="unreadable-pod-usage"),
        pytest.param(metric(reclaimable=used("lots", 0)), "Unreadable", id="unreadable-prediction"),
    ],
)
def test_causes(report: ColocationNodeMetric | None, cause: str | None) -> None:
    found = evaluate_metric(report, NOW, 15)
    assert (found.cause if isinstance(found, DegradedMetric) else None) == cause


def test_the_offender_is_named() -> None:
    found = evaluate_metric(metric(sample("web", "-1", "1G")), NOW, 15)
    assert str(found) == "Negative: podsMetric of default/web reports cpu -1, memory 1G"


def test_a_prediction_below_zero_is_none_at_all() -> None:
    decision = decided(None, node(), metric(reclaimable=used("-5", "-1G")))
    assert decision.mid is not None
    assert decision.mid.cpu is not None
    assert decision.mid.cpu.result == 0


@pytest.mark.parametrize("minutes", [1, 15, 60])
def test_patience_is_the_strategys(minutes: int) -> None:
    report = metric()
    assert isinstance(evaluate_metric(report, NOW + timedelta(minutes=minutes), minutes), NodeMetricSample)
    assert isinstance(evaluate_metric(report, NOW + timedelta(minutes=minutes, seconds=1), minutes), DegradedMetric)


@pytest.mark.parametrize("report", [pytest.param(None, id="missing"), pytest.param(metric(age_s=3600), id="expired")])
def test_nothing_is_lent(report: Any) -> None:
    decision = decided(colocation(), node(), report)
    assert decision.degraded is not None
    assert decision.messages["BatchResource"] == (
        "degrade node resource because of abnormal nodeMetric, reason: degradedByBatchResource"
    )
    assert decision.messages["MidResource"] == (
        "degrade node Mid resource because of abnormal nodeMetric, reason: degradedByMidResource"
    )


def test_a_node_that_is_not_to_lend_is_not_degraded() -> None:
    decision = decided(colocation(enable=False), node(), None)
    assert decision.degraded is None
    assert decision.messages["BatchResource"] == "node colocation is disabled in Config, reason: DisableInConfig"
