"""Thresholds are resolved, and exactly the right amounts exceed them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.policy.load.axes import Axes
from koord.policy.load.ceiling import Applied, Ceilings, Window, ceilings, overlaid, too_much
from koord.policy.load.estimator import rounded

AXES = Axes.over()
CLUSTER = ceilings(AXES, {"cpu": 65, "memory": 95}, {}, {}, "", None)
WINDOW = Window("p95", 300 * 10**9)


@pytest.mark.parametrize(
    ("found", "prod", "expected"),
    [
        pytest.param(CLUSTER, False, Applied((65, 95)), id="plain"),
        pytest.param(CLUSTER, True, Applied((65, 95)), id="prod-without-a-ceiling-of-its-own"),
        pytest.param(Ceilings((65, 95), (50, 0)), True, Applied((50, 0), prod=True), id="prod"),
        pytest.param(Ceilings((65, 95), (50, 0)), False, Applied((65, 95)), id="not-prod"),
        pytest.param(Ceilings((0, 0), (0, 0)), True, None, id="none"),
        pytest.param(
            ceilings(AXES, {"cpu": 65}, {}, {"memory": 60}, "p95", "5m"),
            False,
            Applied((0, 60), window=WINDOW),
            id="aggregated-in-place-of-plain",
        ),
        pytest.param(
            ceilings(AXES, {"cpu": 65}, {}, {"memory": 0}, "p95", "5m"), False, None, id="aggregated-of-zero-is-off"
        ),
        pytest.param(ceilings(AXES, {"cpu": 65}, {}, {}, "p95", "5m"), False, Applied((65, 0)), id="no-aggregated"),
    ],
)
def test_which_ceilings_a_pod_must_respect(found: Ceilings, prod: bool, expected: Applied | None) -> None:
    assert found.of(prod=prod) == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param({}, CLUSTER, id="says-nothing"),
        pytest.param(
            {"usageThresholds": {"cpu": 40}}, Ceilings((40, 0), (0, 0)), id="a-block-replaces-its-counterpart"
        ),
        pytest.param({"prodUsageThresholds": {"cpu": 40}}, Ceilings((65, 95), (40, 0)), id="and-no-other"),
        pytest.param(
            {"aggregatedUsage": {"usageThresholds": {"cpu": 40}}}, CLUSTER, id="aggregated-needs-a-type-to-count"
        ),
        pytest.param({"usageThresholds": {"gpu": 1}}, Ceilings((0, 0), (0, 0)), id="a-resource-that-is-not-measured"),
    ],
)
def test_the_ceilings_of_a_node(own: Any, expected: Ceilings) -> None:
    assert overlaid(CLUSTER, {"scheduling.koordinator.sh/usage-thresholds": json.dumps(own)}, AXES) == expected


@given(ceiling=st.integers(1, 110), total=st.integers(1, 1 << 45))
def test_too_much_is_where_the_rounded_percentage_passes_the_ceiling(ceiling: int, total: int) -> None:
    amount = too_much(ceiling, total)
    assert rounded(amount / total * 100) > ceiling
    assert rounded((amount - 1) / total * 100) <= ceiling


def test_no_bound_without_a_ceiling_or_without_the_resource() -> None:
    assert Applied((65, 0)).bounds((1000, 1000)) == (655, None)
    assert Applied((65, 95)).bounds((1000, 0)) == (655, None)
