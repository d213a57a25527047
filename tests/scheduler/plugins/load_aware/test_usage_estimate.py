"""Pod usage is estimated, and the unamplified capacity of nodes is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.scheduler.plugins.load_aware.estimator import (
    ResourceAxes,
    estimate_pod_usage,
    round_half_away,
    unamplified_capacity,
)

GIB = 1 << 30
AXES = ResourceAxes.including()
FACTORS = {"cpu": 85, "memory": 70}
PAIR = {"cpu": 4000, "memory": 8 * GIB}


@pytest.mark.parametrize(
    ("tier", "requests", "limits", "factors", "expected"),
    [
        pytest.param("koord-prod", {}, {}, FACTORS, (250, 200 << 20), id="nothing-stated"),
        pytest.param("koord-prod", PAIR, PAIR, FACTORS, (3400, 6012954214), id="guaranteed"),
        pytest.param("koord-prod", PAIR, {"cpu": 8000}, FACTORS, (6800, 6012954214), id="the-limit-drives"),
        pytest.param("koord-prod", PAIR, {"cpu": 4000}, {"cpu": 110, "memory": 70}, (4000, 6012954214), id="capped"),
        pytest.param("koord-prod", PAIR, {"cpu": 1000}, FACTORS, (1000, 6012954214), id="a-limit-below-the-request"),
        pytest.param(
            "koord-batch",
            {"kubernetes.io/batch-cpu": 4000, "kubernetes.io/batch-memory": 8 * GIB},
            {},
            FACTORS,
            (3400, 6012954214),
            id="batch",
        ),
        pytest.param("koord-batch", PAIR, {}, FACTORS, (250, 200 << 20), id="a-batch-pod-that-asks-for-cpu"),
        pytest.param("koord-mid", {}, {}, FACTORS, (0, 0), id="mid-and-nothing-stated"),
        pytest.param("koord-mid", {"kubernetes.io/mid-cpu": 4000}, {}, FACTORS, (3400, 0), id="mid"),
        pytest.param("koord-free", PAIR, PAIR, FACTORS, (0, 0), id="free-pods-ask-for-nothing"),
        pytest.param("", PAIR, {}, {"cpu": 80, "memory": 80}, (3200, 6871947674), id="without-a-class"),
        pytest.param("", PAIR, {}, {"cpu": 100, "memory": 80}, (4000, 6871947674), id="a-factor-of-its-own"),
        pytest.param("", PAIR, {}, {"cpu": 85}, (3400, 0), id="no-factor"),
        pytest.param("", {"cpu": 10}, {}, FACTORS, (9, 200 << 20), id="halves-round-up"),
    ],
)
def test_pods(tier: str, requests: Any, limits: Any, factors: Any, expected: tuple[int, int]) -> None:
    assert estimate_pod_usage(tier, requests, limits, factors, AXES) == expected


def test_other_resources_are_estimated_only_with_a_factor() -> None:
    axes = ResourceAxes.including(["example.com/gpu"], ["memory"])
    assert axes.names == ("cpu", "example.com/gpu", "memory")
    assert estimate_pod_usage("", {"example.com/gpu": 3}, {}, FACTORS, axes)[1] == 0
    assert estimate_pod_usage("", {"example.com/gpu": 3}, {}, {**FACTORS, "example.com/gpu": 50}, axes)[1] == 2
    assert estimate_pod_usage("koord-batch", {"example.com/gpu": 3}, {}, {"example.com/gpu": 50}, axes)[1] == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.49999999999999994, 0), (0.5, 1), (1.4999, 1), (2.5, 3), (-2.5, -3), (-2.4, -2), (6012954214.4, 6012954214)],
)
def test_rounding_is_to_the_nearest_and_halves_away_from_zero(value: float, expected: int) -> None:
    assert round_half_away(value) == expected


@given(request=st.integers(1, 10**6), more=st.integers(0, 10**6), factor=st.integers(1, 100))
def test_asking_for_more_is_never_guessed_to_use_less(request: int, more: int, factor: int) -> None:
    low, high = (
        estimate_pod_usage("", {"cpu": amount}, {}, {"cpu": factor}, AXES)[0] for amount in (request, request + more)
    )
    assert low <= high
    assert low <= request


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, (32000, 42 * GIB), id="as-allocatable"),
        pytest.param(
            {"node.koordinator.sh/raw-allocatable": '{"cpu":28,"memory":"32Gi"}'},
            (28000, 32 * GIB),
            id="before-amplifying",
        ),
        pytest.param({"node.koordinator.sh/raw-allocatable": '{"cpu":"28"}'}, (28000, 42 * GIB), id="in-part"),
        pytest.param({"node.koordinator.sh/raw-allocatable": "{"}, (32000, 42 * GIB), id="malformed"),
        pytest.param({"node.koordinator.sh/raw-allocatable": "{}"}, (32000, 42 * GIB), id="empty"),
    ],
)
def test_nodes(annotations: dict[str, str], expected: tuple[int, int]) -> None:
    assert unamplified_capacity({"cpu": 32000, "memory": 42 * GIB}, annotations, AXES) == expected


def test_vectors_are_written_as_resource_lists() -> None:
    assert AXES.to_resource_list((1500, 2 * GIB)) == {"cpu": "1500m", "memory": "2Gi"}
    assert AXES.parse({"cpu": "1.5", "memory": "2Gi", "other": "1"}) == (1500, 2 * GIB)
