"""Thresholds are resolved, and exactly the right amounts exceed them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.scheduler.plugins.load_aware.estimator import (
    AggregationWindow,
    AppliedThresholds,
    LoadThresholds,
    ResourceAxes,
    build_thresholds,
    exceeding_amount,
    override_from_node,
    round_half_away,
)

AXES = ResourceAxes.including()
CLUSTER = build_thresholds(AXES, {"cpu": 65, "memory": 95}, {}, {}, "", None)
WINDOW = AggregationWindow("p95", 300 * 10**9)


@pytest.mark.parametrize(
    ("found", "prod", "expected"),
    [
        pytest.param(CLUSTER, False, AppliedThresholds((65, 95)), id="plain"),
        pytest.param(CLUSTER, True, AppliedThresholds((65, 95)), id="prod-without-a-ceiling-of-its-own"),
        pytest.param(LoadThresholds((65, 95), (50, 0)), True, AppliedThresholds((50, 0), prod=True), id="prod"),
        pytest.param(LoadThresholds((65, 95), (50, 0)), False, AppliedThresholds((65, 95)), id="not-prod"),
        pytest.param(LoadThresholds((0, 0), (0, 0)), True, None, id="none"),
        pytest.param(
            build_thresholds(AXES, {"cpu": 65}, {}, {"memory": 60}, "p95", "5m"),
            False,
            AppliedThresholds((0, 60), window=WINDOW),
            id="aggregated-in-place-of-plain",
        ),
        pytest.param(
            build_thresholds(AXES, {"cpu": 65}, {}, {"memory": 0}, "p95", "5m"),
            False,
            None,
            id="aggregated-of-zero-is-off",
        ),
        pytest.param(
            build_thresholds(AXES, {"cpu": 65}, {}, {}, "p95", "5m"),
            False,
            AppliedThresholds((65, 0)),
            id="no-aggregated",
        ),
    ],
)
def test_which_ceilings_a_pod_must_respect(
    found: LoadThresholds, prod: bool, expected: AppliedThresholds | None
) -> None:
    assert found.for_pod(prod=prod) == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param({}, CLUSTER, id="says-nothing"),
        pytest.param(
            {"usageThresholds": {"cpu": 40}}, LoadThresholds((40, 0), (0, 0)), id="a-block-replaces-its-counterpart"
        ),
        pytest.param({"prodUsageThresholds": {"cpu": 40}}, LoadThresholds((65, 95), (40, 0)), id="and-no-other"),
        pytest.param(
            {"aggregatedUsage": {"usageThresholds": {"cpu": 40}}}, CLUSTER, id="aggregated-needs-a-type-to-count"
        ),
        pytest.param(
            {"usageThresholds": {"gpu": 1}}, LoadThresholds((0, 0), (0, 0)), id="a-resource-that-is-not-measured"
        ),
    ],
)
def test_the_ceilings_of_a_node(own: Any, expected: LoadThresholds) -> None:
    assert (
        override_from_node(CLUSTER, {"scheduling.koordinator.sh/usage-thresholds": json.dumps(own)}, AXES) == expected
    )


@given(ceiling=st.integers(1, 110), total=st.integers(1, 1 << 45))
def test_too_much_is_where_the_rounded_percentage_passes_the_ceiling(ceiling: int, total: int) -> None:
    amount = exceeding_amount(ceiling, total)
    assert round_half_away(amount / total * 100) > ceiling
    assert round_half_away((amount - 1) / total * 100) <= ceiling


def test_no_bound_without_a_ceiling_or_without_the_resource() -> None:
    assert AppliedThresholds((65, 0)).amount_bounds((1000, 1000)) == (655, None)
    assert AppliedThresholds((65, 95)).amount_bounds((1000, 0)) == (655, None)
