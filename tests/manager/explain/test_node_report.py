"""The account of a node: its terms make its numbers, and every difference from the node has a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.manager.colocation.decision import ColocationNodeView, decide_colocation
from koord.manager.colocation.models import ColocationNode
from koord.manager.explain.lending_report import LendingSum, NodeResourceReport, ResourceReport, report_node
from tests.manager.colocation.colocation_builders import (
    CAPACITY,
    NOW,
    colocation,
    metric,
    node,
    pod,
    sample,
    settings,
    topology,
    used,
)

BATCH_CPU, MID_CPU = "kubernetes.io/batch-cpu", "kubernetes.io/mid-cpu"
LS = pod("a", "LS", {"cpu": "20", "memory": "20G"})
REPORT = metric(sample("a", "33", "33G"), reclaimable=used("10", "15G"))
AT_65 = {"cpu_reclaim_threshold_percent": 65, "memory_reclaim_threshold_percent": 65}


def account(of: ColocationNode | None = None, strategy: Any = None, **seen: Any) -> NodeResourceReport:
    view = ColocationNodeView(**{"now": NOW, "node": of or node(), "metric": REPORT, "pods": (LS,), **seen})
    return report_node(view, decide_colocation(view, settings(strategy or colocation(**AT_65))))


def line(found: NodeResourceReport, resource: str = BATCH_CPU) -> ResourceReport:
    return next(one for one in found.lines if one.resource == resource)


def summed(total: LendingSum) -> int:
    """What a reader gets who follows the terms from top to bottom."""
    amount = 0
    for term in total.terms:
        match term.sign:
            case "-":
                amount -= term.amount
            case "+":
                amount += term.amount
            case "min":
                amount = min(amount, term.amount)
            case _:
                amount = term.amount
    return max(0, amount)


def shows(**resources: str) -> ColocationNode:
    """A node that already lends; underscores stand for dashes."""
    lent = {f"kubernetes.io/{name.replace('_', '-')}": amount for name, amount in resources.items()}
    return node(allocatable={**CAPACITY, **lent})


def test_the_documented_example() -> None:
    found = line(account())
    assert found.sum is not None
    assert [(term.sign, term.name, term.amount) for term in found.sum.terms] == [
        ("", "capacity", 100_000),
        ("-", "safety margin", 35_000),
        ("-", "used by the system", 7_000),
        ("-", "used by prod and mid pods", 33_000),
    ]
    assert found.computed == 25_000
    assert found.sum.binding == "safety margin"


@given(
    cpu=st.integers(0, 200),
    memory_g=st.integers(0, 200),
    reclaim=st.integers(0, 150),
    limit=st.none() | st.integers(0, 120),
    used_milli=st.integers(0, 200_000),
    system_milli=st.integers(0, 50_000),
    reclaimable=st.integers(0, 100),
    unallocated=st.integers(0, 100),
    policy=st.sampled_from(["usage", "maxUsageRequest", "request"]),
    third=st.integers(0, 30_000),
)
def test_terms_add_up(
    cpu: int,
    memory_g: int,
    reclaim: int,
    limit: int | None,
    used_milli: int,
    system_milli: int,
    reclaimable: int,
    unallocated: int,
    policy: str,
    third: int,
) -> None:
    taken = f'{{"allocations":[{{"priority":"koord-batch","resources":{{"{BATCH_CPU}":"{third}"}}}}]}}'
    of = node(
        capacity={"cpu": str(cpu), "memory": f"{memory_g}G"},
        annotations={"node.koordinator.sh/thirdPartyAllocations": taken},
    )
    strategy = colocation(
        cpu_reclaim_threshold_percent=reclaim,
        batch_cpu_threshold_percent=limit,
        cpu_calculate_policy=policy,
        memory_calculate_policy=policy,
        mid_unallocated_percent=unallocated,
    )
    report = metric(
        sample("a", f"{used_milli}m", "3G"),
        system=used(f"{system_milli}m", "1G"),
        usage=used(f"{used_milli + system_milli}m", "4G"),
        reclaimable=used(str(reclaimable), "5G"),
    )
    found = account(of, strategy, metric=report)
    for one in found.lines:
        assert one.sum is not None
        assert summed(one.sum) == one.sum.result == one.computed, one


def test_what_yarn_holds_is_named() -> None:
    """An orchestrator that holds nothing, or not of batch, is left out."""
    listed = [
        {"name": name, "priority": priority, "resources": {BATCH_CPU: amount}}
        for name, priority, amount in (
            ("hadoop-yarn", "koord-batch", "2k"),
            ("idle", "koord-batch", "0"),
            ("other", "koord-mid", "1k"),
        )
    ]
    annotations = {"node.koordinator.sh/thirdPartyAllocations": json.dumps({"allocations": listed})}
    of = node(capacity={"cpu": "100", "memory": "100G"}, annotations=annotations)
    report = metric(system=used("1", "1G"), usage=used("1", "1G"))
    found = account(of, colocation(), metric=report)
    terms = {line.resource: line.sum.terms for line in found.lines if line.sum is not None}
    (share,) = [one for one in terms[BATCH_CPU] if one.name == "taken by other orchestrators"]
    assert (share.sign, share.amount, share.note) == ("-", 2000, "hadoop-yarn")
    assert not any(one.name == "taken by other orchestrators" for one in terms["kubernetes.io/batch-memory"])


def _expired() -> dict[str, Any]:
    return {"metric": metric(age_s=16 * 60)}


@pytest.mark.parametrize(
    ("of", "seen", "strategy", "state", "words"),
    [
        pytest.param(shows(batch_cpu="25000"), {}, {}, "UpToDate", "", id="as-computed"),
        pytest.param(shows(batch_cpu="24k"), {}, {}, "WriteDue", "next report", id="others-are-missing"),
        pytest.param(
            shows(batch_cpu="24k", batch_memory="33G", mid_cpu="10k", mid_memory="15G"),
            {},
            {},
            "WithinThreshold",
            "differs by 4.2 %, not more than resourceDiffThreshold (10 %)",
            id="a-little-less",
        ),
        pytest.param(shows(batch_cpu="50k"), {}, {}, "WriteDue", "more than the threshold", id="far-off"),
        pytest.param(node(), {}, {"enable": False}, "Withheld", "colocation-config", id="off-for-all"),
        pytest.param(shows(batch_cpu="1"), _expired(), {}, "WriteDue", "Expired: last reported at", id="silent-node"),
        pytest.param(node(), {"metric": None}, {}, "Withheld", "no NodeMetric", id="never-reported"),
        pytest.param(node(capacity={}, allocatable={}), {}, {}, "NoCapacity", "no capacity", id="no-capacity"),
    ],
)
def test_why_a_node_shows_another_amount(
    of: ColocationNode, seen: dict[str, Any], strategy: dict[str, Any], state: str, words: str
) -> None:
    found = line(account(of, colocation(**{**AT_65, **strategy}), **seen))
    assert found.state == state
    assert words in found.why
    assert (found.why == "") == (words == "")


def test_a_pod_without_a_sample_is_named() -> None:
    found = account(pods=(LS, pod("new", "LS", {"cpu": "5"})))
    assert found.estimated == ("default/new",)
    total = line(found).sum
    assert total is not None
    assert total.terms[3].amount == 38_000
    assert "of 1 pod without a sample" in total.terms[3].note


def test_a_sample_of_a_pod_that_is_gone_is_named() -> None:
    assert account(pods=()).gone == ("default/a",)


@pytest.mark.parametrize(
    ("of", "system", "name"),
    [
        pytest.param(node(), "7", "used by the system", id="system"),
        pytest.param(node(allocatable={"cpu": "90", "memory": "120G"}), "7", "reserved by the kubelet", id="kubelet"),
        pytest.param(
            node(annotations={"node.koordinator.sh/reservation": '{"resources":{"cpu":"20"}}'}),
            "7",
            "reserved by annotation",
            id="annotation",
        ),
    ],
)
def test_who_holds_the_part_that_is_held(of: ColocationNode, system: str, name: str) -> None:
    total = line(account(of, metric=metric(sample("a", "33", "33G"), system=used(system, "12G")))).sum
    assert total is not None
    assert total.terms[2].name == name


def test_a_limit_is_what_decides_when_it_is_lowest() -> None:
    total = line(account(strategy=colocation(**AT_65, batch_cpu_threshold_percent=10))).sum
    assert total is not None
    assert (total.result, total.binding) == (10_000, "the limit")


def test_too_much_taken_says_by_how_much() -> None:
    total = line(account(metric=metric(sample("a", "70", "33G")))).sum
    assert total is not None
    assert total.result == 0
    assert "12000 more is taken than there is" in total.binding


def test_zones_are_accounted_for() -> None:
    zones = topology({"cpu": "50", "memory": "62G"}, {"cpu": "50", "memory": "58G"})
    found = account(topology=zones)
    assert [zone.name for zone in found.zones] == ["node-0", "node-1"]
    for zone in found.zones:
        for one in zone.lines:
            assert one.sum is not None
            assert one.state == "WriteDue"
            assert abs(summed(one.sum) - one.sum.result) <= 3  # halves are rounded up term by term


def test_what_is_mid_lent_is_explained_as_well() -> None:
    found = line(account(), MID_CPU)
    assert found.sum is not None
    assert (found.computed, found.sum.binding) == (10_000, "prod requests that will not be used")
