"""Reclaimable resources are predicted by pod, by class, and as the smaller of both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.koordlet.reporters.builders.reclaimable import (
    ProdPod,
    Reclaimable,
    ReclaimableView,
    ResourceAmount,
    Unpredictable,
    decide_reclaimable,
    predict_by_pod,
    predict_by_priority,
)

GI = 2**30
HOUR_S = 3600.0


def pod(
    name: str, cores: float, peak: ResourceAmount | None = None, *, age_s: float = 48 * HOUR_S, ending: bool = False
) -> ProdPod:
    request = ResourceAmount(int(cores * 1000), int(cores * GI))
    return ProdPod(uid=name, request=request, age_s=age_s, ending=ending, peak=peak)


def view(**changes: Any) -> ReclaimableView:
    """A pod that is new, one that is known and one that is being deleted, on a node of 3 cores and 3Gi."""
    seen = ReclaimableView(
        allocatable=ResourceAmount(3_000, 3 * GI),
        pods=(
            pod("cold", 1, age_s=HOUR_S / 2),
            pod("normal", 2, ResourceAmount(500, GI)),
            pod("deleting", 2, ResourceAmount(500, GI), ending=True),
        ),
        prod_peak=ResourceAmount(1_000, GI),
        unclassed_peak=ResourceAmount(),
        system_peak=ResourceAmount(300, GI // 2),
        cold_start_s=HOUR_S,
    )
    return msgspec.structs.replace(seen, **changes)


SMALL = view(allocatable=ResourceAmount(1_000, GI))


def test_by_single_pods() -> None:
    found = predict_by_pod(view(), ResourceAmount(3_000, 3 * GI))
    assert found.reclaimable == ResourceAmount(1_450, 2 * GI - int(1.1 * GI))
    assert found.peak == ResourceAmount(1_550, GI + int(1.1 * GI))


def test_by_single_pods_on_a_small_node() -> None:
    assert predict_by_pod(SMALL, ResourceAmount(1_000, GI)).reclaimable == ResourceAmount(450, 0)


def test_by_class() -> None:
    found = predict_by_priority(view(), ResourceAmount(3_000, 3 * GI))
    assert not isinstance(found, Unpredictable)
    assert found.reclaimable == ResourceAmount(1_570, 3 * GI - int(1.1 * 1.5 * GI))
    assert found.peak == ResourceAmount(1_430, int(1.1 * 1.5 * GI))


def test_by_class_on_a_small_node() -> None:
    found = predict_by_priority(SMALL, ResourceAmount(1_000, GI))
    assert not isinstance(found, Unpredictable)
    assert found.reclaimable == ResourceAmount(0, 0)


def test_the_smaller_lends_and_the_larger_is_the_peak() -> None:
    found = decide_reclaimable(view())
    assert isinstance(found, Reclaimable)
    assert found.result.reclaimable == ResourceAmount(1_450, 2 * GI - int(1.1 * GI)).minimum(
        ResourceAmount(1_570, 3 * GI - int(1.1 * 1.5 * GI))
    )
    assert found.result.peak.cpu_milli == 1_550


def test_a_pod_that_nothing_is_known_of_may_need_all() -> None:
    unknown = pod("unknown", 0.5)
    found = predict_by_pod(view(pods=(*view().pods, unknown)), ResourceAmount(3_000, 3 * GI))
    assert found.peak.cpu_milli == 550 + 1_000 + 500
    assert found.reclaimable.cpu_milli == 1_450


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(view(allocatable=None), id="no-node"),
        pytest.param(view(prod_peak=None), id="no-prod-model"),
        pytest.param(view(unclassed_peak=None), id="no-unclassed-model"),
        pytest.param(view(system_peak=None), id="no-system-model"),
        pytest.param(view(pods=(pod("a", 1), pod("a", 1))), id="listed-twice"),
    ],
)
def test_what_cannot_be_predicted_is_said(seen: ReclaimableView) -> None:
    found = decide_reclaimable(seen)
    assert isinstance(found, Unpredictable)
    assert str(found)


amounts = st.builds(ResourceAmount, st.integers(0, 10_000), st.integers(0, 10 * GI))


@settings(max_examples=80)
@given(
    requests=st.lists(st.tuples(amounts, amounts, st.booleans()), max_size=5),
    system=amounts,
    prod=amounts,
    more=amounts,
    allocatable=amounts,
)
def test_nothing_below_zero_never_more_than_asked_for_and_a_higher_peak_lends_no_more(
    requests: list[tuple[ResourceAmount, ResourceAmount, bool]],
    system: ResourceAmount,
    prod: ResourceAmount,
    more: ResourceAmount,
    allocatable: ResourceAmount,
) -> None:
    pods = tuple(
        ProdPod(uid=str(place), request=asked, age_s=100.0 if new else 1e9, peak=peak)
        for place, (asked, peak, new) in enumerate(requests)
    )
    asked_cpu = sum(asked.cpu_milli for asked, _, _ in requests)
    lent = []
    for peak in (prod, prod + more):
        seen = view(pods=pods, system_peak=system, prod_peak=peak, allocatable=allocatable)
        found = decide_reclaimable(seen)
        assert isinstance(found, Reclaimable)
        result = found.result.reclaimable
        assert result.cpu_milli >= 0
        assert result.memory_bytes >= 0
        assert result.cpu_milli <= min(asked_cpu, allocatable.cpu_milli)
        lent.append(result)
    assert lent[1].minimum(lent[0]) == lent[1]
