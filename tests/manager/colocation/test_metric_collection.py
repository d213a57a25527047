"""A node's collect policy follows its own settings while co-location is enabled on it, and the defaults otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.slo.defaults import overlay
from koord.api.config.slo.slo_documents import DEFAULT_COLOCATION, ColocationStrategy
from koord.api.model import convert, to_dict
from koord.manager.colocation.strategy import decide_metric_collection

DEFAULTS = {
    "aggregateDurationSeconds": 300,
    "reportIntervalSeconds": 60,
    "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
    "nodeMemoryCollectPolicy": "usageWithoutPageCache",
}
GIVEN = {
    "metricAggregateDurationSeconds": 120,
    "metricReportIntervalSeconds": 15,
    "metricAggregatePolicy": {"durations": ["2m0s"]},
    "metricMemoryCollectPolicy": "usageWithHotPageCache",
}
CONFIGURED = {
    "aggregateDurationSeconds": 120,
    "reportIntervalSeconds": 15,
    "nodeAggregatePolicy": {"durations": ["2m0s"]},
    "nodeMemoryCollectPolicy": "usageWithHotPageCache",
}


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        pytest.param({}, DEFAULTS, id="nothing-said"),
        pytest.param({"enable": True}, DEFAULTS, id="switched-on"),
        pytest.param({"enable": True, **GIVEN}, CONFIGURED, id="on-and-configured"),
        pytest.param({"enable": False, **GIVEN}, DEFAULTS, id="configured-but-off"),
        pytest.param(
            {"enable": True, "metricReportIntervalSeconds": 7}, {**DEFAULTS, "reportIntervalSeconds": 7}, id="one"
        ),
    ],
)
def test_policy(given: dict[str, Any], policy: dict[str, Any]) -> None:
    strategy = overlay(DEFAULT_COLOCATION, convert(given, ColocationStrategy))
    assert to_dict(decide_metric_collection(strategy)) == {"metricCollectPolicy": policy}
