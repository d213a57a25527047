"""Reclaimable resources are predicted by pod, by class, and as the smaller of both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.policy.prediction.reclaimable import (
    Amount,
    ProdPod,
    Reclaimable,
    ReclaimableView,
    Unpredictable,
    by_priority_class,
    by_single_pods,
    decide_reclaimable,
)

GI = 2**30
HOUR_S = 3600.0


def pod(
    name: str, cores: float, peak: Amount | None = None, *, age_s: float = 48 * HOUR_S, ending: bool = False
) -> ProdPod:
    request = Amount(int(cores * 1000), int(cores * GI))
    return ProdPod(uid=name, request=request, age_s=age_s, ending=ending, peak=peak)


def view(**changes: Any) -> ReclaimableView:
    """A pod that is new, one that is known and one that is being deleted, on a node of 3 cores and 3Gi."""
    seen = ReclaimableView(
        allocatable=Amount(3_000, 3 * GI),
        pods=(
            pod("cold", 1, age_s=HOUR_S / 2),
            pod("normal", 2, Amount(500, GI)),
            pod("deleting", 2, Amount(500, GI), ending=True),
        ),
        prod_peak=Amount(1_000, GI),
        unclassed_peak=Amount(),
        system_peak=Amount(300, GI // 2),
        cold_start_s=HOUR_S,
    )
    return msgspec.structs.replace(seen, **changes)


SMALL = view(allocatable=Amount(1_000, GI))


def test_by_single_pods() -> None:
    found = by_single_pods(view(), Amount(3_000, 3 * GI))
    assert found.reclaimable == Amount(1_450, 2 * GI - int(1.1 * GI))
    assert found.peak == Amount(1_550, GI + int(1.1 * GI))


def test_by_single_pods_on_a_small_node() -> None:
    assert by_single_pods(SMALL, Amount(1_000, GI)).reclaimable == Amount(450, 0)


def test_by_class() -> None:
    found = by_priority_class(view(), Amount(3_000, 3 * GI))
    assert not isinstance(found, Unpredictable)
    assert found.reclaimable == Amount(1_570, 3 * GI - int(1.1 * 1.5 * GI))
    assert found.peak == Amount(1_430, int(1.1 * 1.5 * GI))


def test_by_class_on_a_small_node() -> None:
    found = by_priority_class(SMALL, Amount(1_000, GI))
    assert not isinstance(found, Unpredictable)
    assert found.reclaimable == Amount(0, 0)


def test_the_smaller_lends_and_the_larger_is_the_peak() -> None:
    found = decide_reclaimable(view())
    assert isinstance(found, Reclaimable)
    assert found.result.reclaimable == Amount(1_450, 2 * GI - int(1.1 * GI)).smaller(
        Amount(1_570, 3 * GI - int(1.1 * 1.5 * GI))
    )
    assert found.result.peak.cpu_milli == 1_550


def test_a_pod_that_nothing_is_known_of_may_need_all() -> None:
    unknown = pod("unknown", 0.5)
    found = by_single_pods(view(pods=(*view().pods, unknown)), Amount(3_000, 3 * GI))
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


amounts = st.builds(Amount, st.integers(0, 10_000), st.integers(0, 10 * GI))


@settings(max_examples=80)
@given(
    requests=st.lists(st.tuples(amounts, amounts, st.booleans()), max_size=5),
    system=amounts,
    prod=amounts,
    more=amounts,
    allocatable=amounts,
)
def test_nothing_below_zero_never_more_than_asked_for_and_a_higher_peak_lends_no_more(
    requests: list[tuple[Amount, Amount, bool]], system: Amount, prod: Amount, more: Amount, allocatable: Amount
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
    assert lent[1].smaller(lent[0]) == lent[1]
