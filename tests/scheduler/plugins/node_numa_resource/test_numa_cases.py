"""NodeNUMAResource case by case: what is refused and in which words, what is given, what is written on the pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.verdict import Reject, Skip
from tests.scheduler.plugins.node_numa_resource.numa_builders import zone
from tests.scheduler.plugins.node_numa_resource.numa_cluster import SPEC, STATUS, NumaCluster, node, pod, topology

FULL, SPREAD = {"requiredCPUBindPolicy": "FullPCPUs"}, {"requiredCPUBindPolicy": "SpreadByPCPUs"}
FULL_ONLY = {"cpu-bind-policy": "FullPCPUsOnly"}
SINGLE = {"numa-topology-policy": "SingleNUMANode"}
KUBELET_FULL = {
    "kubelet.koordinator.sh/cpu-manager-policy": {"policy": "static", "options": {"full-pcpus-only": "true"}}
}


def one_node(*, labels: Any = None, annotations: Any = None, described: Any = None, **fields: Any) -> NumaCluster:
    cluster = NumaCluster(**fields).add(node("a", labels=labels, annotations=annotations))
    return cluster.describe(topology("a", annotations=described))


def refused(reason: str) -> str:
    return f"0/1 nodes are available: 1 {reason}."


# PreFilter -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "wish"),
    [
        pytest.param(pod("p", 4, spec={"preferredCPUBindPolicy": "FullPCPUs"}), ("", "FullPCPUs", 4), id="preferred"),
        pytest.param(
            pod("p", 4, spec={"requiredCPUBindPolicy": "Default"}), ("FullPCPUs", "FullPCPUs", 4), id="default"
        ),
        pytest.param(pod("p", 4), ("", "FullPCPUs", 4), id="no-policy"),
        pytest.param(pod("p", 4, qos="LSE"), ("", "FullPCPUs", 4), id="LSE"),
        pytest.param(pod("p", 4, spec=SPREAD), ("SpreadByPCPUs", "SpreadByPCPUs", 4), id="required-spread"),
    ],
)
def test_pods_that_are_bound(one: Any, wish: tuple[str, str, int]) -> None:
    cluster = one_node()
    cycle, info = CycleState(cluster.state), cluster.info(one)
    assert cluster.plugin.pre_filter(cycle, info) is None
    asked = cycle.plugin_data["NodeNUMAResource"].demand.wish
    assert asked.binds
    assert (asked.required, asked.preferred, asked.count) == wish


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(pod("p", 4, qos="LS"), id="LS"),
        pytest.param(pod("p", 4, qos="BE"), id="BE"),
        pytest.param(pod("p", 4, qos=""), id="Guaranteed-without-label"),
        pytest.param(pod("p", 4, spec={"preferredCPUBindPolicy": "ConstrainedBurst"}), id="ConstrainedBurst"),
        pytest.param(pod("p", 0), id="no-cpu"),
        pytest.param(pod("p", None), id="no-requests"),
        pytest.param(pod("p", 4, labels={"koordinator.sh/priority-class": "koord-batch"}), id="LSR-of-batch"),
    ],
)
def test_pods_that_are_not_bound_skip(one: Any) -> None:
    cluster = one_node()
    assert isinstance(cluster.plugin.pre_filter(CycleState(cluster.state), cluster.info(one)), Skip)
    assert cluster.place(one) == "a"


def test_without_a_default_policy_pods_without_their_own_are_not_bound() -> None:
    assert one_node(defaultCPUBindPolicy="").place(pod("p", 4)) == "a"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        pytest.param(pod("p", "4500m"), "the requested CPUs must be integer", id="fraction"),
        pytest.param(pod("p", 4, spec="{"), "scheduling.koordinator.sh/resource-spec: ", id="spec-no-json"),
        pytest.param(
            pod("p", 4, spec={"requiredCPUBindPolicy": 3}),
            "scheduling.koordinator.sh/resource-spec: Expected `str`, got `int` - at `$.requiredCPUBindPolicy`",
            id="spec-wrong-type",
        ),
        pytest.param(
            pod("p", 4, numa={"numaTopologyPolicy": "Tight"}),
            'scheduling.koordinator.sh/numa-topology-spec: numaTopologyPolicy "Tight" is not one of',
            id="unknown-numa-policy",
        ),
        pytest.param(pod("p", 4, numa="[]"), "scheduling.koordinator.sh/numa-topology-spec: ", id="numa-no-object"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(one: Any, words: str) -> None:
    cluster = one_node()
    answer = cluster.plugin.pre_filter(CycleState(cluster.state), cluster.info(one))
    assert isinstance(answer, Reject)
    assert words in answer.text
    assert not answer.resolvable


# Filter ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "one", "told"),
    [
        pytest.param(
            one_node(labels=FULL_ONLY),
            pod("p", 5),
            refused("node(s) requested cpus not multiple cpus per core"),
            id="FullPCPUsOnly-odd",
        ),
        pytest.param(
            one_node(labels=FULL_ONLY),
            pod("p", 5, qos="LS"),
            refused("node(s) requested cpus not multiple cpus per core"),
            id="FullPCPUsOnly-odd-LS",
        ),
        pytest.param(
            one_node(labels=FULL_ONLY),
            pod("p", "4500m", qos="LS"),
            refused("the requested CPUs must be integer"),
            id="FullPCPUsOnly-fraction-LS",
        ),
        pytest.param(
            one_node(labels=FULL_ONLY),
            pod("p", 4, spec={"preferredCPUBindPolicy": "SpreadByPCPUs"}),
            "a 0-3",
            id="FullPCPUsOnly-prefers-spread",
        ),
        pytest.param(
            one_node(labels=FULL_ONLY),
            pod("p", 4, spec=SPREAD),
            refused("node(s) cpu bind policy conflicts with pod's required cpu bind policy"),
            id="FullPCPUsOnly-requires-spread",
        ),
        pytest.param(
            one_node(described=KUBELET_FULL),
            pod("p", 4, spec=SPREAD),
            refused("node(s) cpu bind policy conflicts with pod's required cpu bind policy"),
            id="kubelet-full-pcpus-only",
        ),
        pytest.param(
            one_node(labels={"cpu-bind-policy": "SpreadByPCPUs"}),
            pod("p", 4, qos="LS"),
            "a 0,2,4,6",
            id="spread-node-LS",
        ),
        pytest.param(
            one_node(), pod("p", 3, spec=FULL), refused("node(s) requested cpus not multiple cpus per core"), id="odd"
        ),
        pytest.param(
            NumaCluster().add(node("a")), pod("p", 2), refused("node(s) invalid CPU Topology"), id="no-topology"
        ),
        pytest.param(NumaCluster().add(node("a")), pod("p", 2, qos="LS"), "a", id="no-topology-LS"),
        pytest.param(
            one_node(labels={"numa-topology-policy": "Restricted"}),
            pod("p", 2, numa={"numaTopologyPolicy": "SingleNUMANode"}),
            refused("node(s) NUMA Topology policy not match"),
            id="policies-differ",
        ),
        pytest.param(
            NumaCluster().add(node("a", labels=SINGLE)),
            pod("p", 2, qos="LS"),
            refused("node(s) missing NUMA resources"),
            id="no-numa-zones",
        ),
        pytest.param(
            one_node(labels=SINGLE),
            pod("p", 10, qos="LS"),
            refused("Unaligned NUMA Hint cause cpu prefer [11] among [11],memory prefer [11] among [11]"),
            id="larger-than-a-numa-node",
        ),
        pytest.param(
            one_node(labels={"numa-topology-policy": "Whatever"}),
            pod("p", 10, qos="LS"),
            "a",
            id="unknown-label-is-none",
        ),
        pytest.param(
            one_node(annotations={"resource-amplification-ratio": "{"}),
            pod("p", 2, qos="LS"),
            refused("node(s) invalid CPU amplification ratio"),
            id="ratio-malformed",
        ),
    ],
)
def test_one_pod_on_one_node(cluster: NumaCluster, one: Any, told: str) -> None:
    assert cluster.place(one) == told


def test_reserved_cpus_of_kubelet_node_and_system_are_left_alone() -> None:
    described = {
        "kubelet.koordinator.sh/cpu-manager-policy": {"policy": "static", "reservedCPUs": "0"},
        "reservation": {"reservedCPUs": "2-3", "applyPolicy": "ReservedCPUsOnly"},
        "system-qos-resource": {"cpuset": "8-9"},
        "pod-cpu-allocs": [{"namespace": "d", "name": "x", "uid": "u", "cpuset": "12-13", "managedByKubelet": True}],
    }
    cluster = one_node(described=described)
    assert cluster.place(pod("p", 8)) == "a 4-7,10-11,14-15"
    assert cluster.place(pod("q", 2)) == refused("not enough cpus available to satisfy request")


def test_cpus_that_run_out_are_told_before_a_node_is_taken() -> None:
    """Kubernetes still counts room: CPUs that the kubelet keeps are no part of what it counts."""
    cluster = one_node(described={"kubelet.koordinator.sh/cpu-manager-policy": {"reservedCPUs": "0-7"}})
    assert cluster.place(pod("p", 8)) == "a 8-15"
    assert cluster.place(pod("q", 2)) == refused("not enough cpus available to satisfy request")
    cluster.add(node("b")).describe(topology("b"))
    assert cluster.place(pod("q", 2)) == "b 0-1"


@pytest.mark.parametrize(
    ("before", "one", "told"),
    [
        pytest.param([pod("x", 16, qos="LS")], pod("p", 16, qos="LS"), "a", id="shares-fit"),
        pytest.param([pod("x", 32, qos="LS")], pod("p", 16, qos="LS"), refused("Insufficient cpu"), id="shares-full"),
        pytest.param([pod("x", 16)], pod("p", 1, qos="LS"), refused("Insufficient amplified cpu"), id="bound-full"),
        pytest.param(
            [pod("x", 16, qos="LS")], pod("p", 10), refused("Insufficient amplified cpu"), id="bound-beside-shares"
        ),
        pytest.param([pod("x", 16, qos="LS")], pod("p", 8), "a 0-7", id="bound-just-fits"),
    ],
)
def test_amplified_nodes(before: list[Any], one: Any, told: str) -> None:
    """16 CPUs stated as 32: a bound CPU counts twice."""
    ratio = {"resource-amplification-ratio": {"cpu": 2}}
    cluster = NumaCluster().add(node("a", 32, annotations=ratio)).describe(topology("a"))
    for other in before:
        assert cluster.place(other).startswith("a")
    assert cluster.place(one) == told


def test_exclusivity_keeps_pods_of_one_and_of_several_numa_nodes_apart() -> None:
    cluster = one_node()
    wide = {"numaTopologyPolicy": "Restricted"}
    assert cluster.place(pod("wide", 10, numa=wide)) == "a 0-4,8-12 {0: cpu 5000, 1: cpu 5000}"
    single = {"numaTopologyPolicy": "SingleNUMANode"}
    said = "Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10 11],memory prefer [01 10] among [01 10 11]"
    assert cluster.place(pod("alone", 2, numa=single)) == refused(said)
    assert cluster.place(pod("mixes", 2, numa={**single, "singleNUMANodeExclusive": "Preferred"})).startswith("a ")


def test_zones_fill_by_the_strategy() -> None:
    for kind, second in (("LeastAllocated", "a {1: cpu 2000}"), ("MostAllocated", "a {0: cpu 2000}")):
        cluster = one_node(
            labels=SINGLE, numaScoringStrategy={"type": kind, "resources": [{"name": "cpu", "weight": 1}]}
        )
        assert cluster.place(pod("p", 2, qos="LS")) == "a {0: cpu 2000}"
        assert cluster.place(pod("q", 2, qos="LS")) == second


def test_best_effort_falls_back_to_all_numa_nodes_and_still_refuses_what_no_sum_can_hold() -> None:
    zones = [zone(f"node-{n}", cpu=8, memory="4Gi") for n in range(2)]
    cluster = (
        NumaCluster().add(node("a", labels={"numa-topology-policy": "BestEffort"})).describe(topology("a", zones=zones))
    )
    assert cluster.place(pod("p", 10, qos="LS", memory="6Gi")) == "a {0: cpu 5000, 1: cpu 5000}"
    assert cluster.place(pod("q", 2, qos="LS", memory="9Gi")) == refused("Insufficient NUMA memory")


# What is written on the pod --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "one", "spec"),
    [
        pytest.param(None, pod("p", 4), {"preferredCPUBindPolicy": "FullPCPUs"}, id="completed"),
        pytest.param(None, pod("p", 4, spec=FULL), None, id="nothing-to-complete"),
        pytest.param(
            None,
            pod(
                "p", 4, spec={**SPREAD, "preferredCPUBindPolicy": "Default", "preferredCPUExclusivePolicy": "PCPULevel"}
            ),
            {**SPREAD, "preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"},
            id="default-becomes-what-was-used",
        ),
        pytest.param(FULL_ONLY, pod("p", 4, qos="LS"), {"requiredCPUBindPolicy": "FullPCPUs"}, id="by-the-node"),
    ],
)
def test_spec_as_it_was_used(labels: Any, one: Any, spec: dict[str, str] | None) -> None:
    cluster = one_node(labels=labels)
    found = cluster.decide(one)
    assert not isinstance(found, str)
    mark = found[1]
    assert mark is not None
    assert (json.loads(mark.annotations[SPEC]) if SPEC in mark.annotations else None) == spec


def test_status_has_cpus_and_numa_amounts() -> None:
    found = one_node(labels=SINGLE).decide(pod("p", 4, memory="8Gi"))
    assert not isinstance(found, str)
    assert found[1] is not None
    assert json.loads(found[1].annotations[STATUS]) == {
        "cpuset": "0-3",
        "numaNodeResources": [{"node": 0, "resources": {"cpu": "4", "memory": "8Gi"}}],
    }


def test_pods_that_are_given_nothing_are_not_marked() -> None:
    assert one_node().decide(pod("p", 4, qos="LS")) == ("a", None)


# Under way -------------------------------------------------------------------------------------------------------


def test_a_topology_that_loses_cpus_under_way_sends_the_pod_back() -> None:
    cluster = one_node()
    info = cluster.info(pod("p", 16))
    attempt = cluster.engine.decide(info)
    cluster.state.assume(info, attempt.node_name)
    assert cluster.plugin.reserve(attempt.cycle, info, cluster.state.table.index["a"]) is None
    cluster.describe(topology("a", (1, 2, 2, 2)))
    answer = cluster.plugin.pre_bind(attempt.cycle, info, "a")
    assert isinstance(answer, Reject)
    assert answer.text == "CPUs 0-15 are no longer all there on node a"
    cluster.forget(pod("p", 16), "a")
    assert cluster.books.pod_allocations() == {}
    assert cluster.place(pod("p", 8)) == "a 0-7"


def test_a_node_that_goes_between_decision_and_reserve_refuses() -> None:
    cluster = one_node()
    info = cluster.info(pod("p", 4))
    cycle = cluster.engine.decide(info).cycle
    cluster.state.assume(info, "a")
    cluster.state.drop_node("a")
    answer = cluster.plugin.reserve(cycle, info, cluster.state.table.index["a"])
    assert isinstance(answer, Reject)


def test_a_topology_that_comes_later_is_seen_by_pods_already_judged() -> None:
    cluster = NumaCluster().add(node("a"))
    assert cluster.place(pod("p", 4)) == refused("node(s) invalid CPU Topology")
    cluster.describe(topology("a"))
    assert cluster.place(pod("p", 4)) == "a 0-3"
    cluster.topologies.drop("a")
    assert cluster.place(pod("q", 4)) == refused("node(s) invalid CPU Topology")


def test_a_policy_that_comes_later_concerns_plain_pods_too() -> None:
    cluster = one_node()
    assert cluster.place(pod("p", 2, qos="")) == "a"
    cluster.add(node("a", labels=SINGLE))
    assert cluster.place(pod("q", 2, qos="")) == "a {0: cpu 2000}"
    assert cluster.place(pod("r", 9, qos="")).startswith("0/1 nodes are available: 1 Unaligned NUMA Hint")


@pytest.mark.parametrize(
    ("detail", "field"),
    [
        pytest.param('{"detail": [{"id": 0, "core": 0, "socket": 0}]}', "detail[0].node is missing", id="no-node"),
        pytest.param('{"detail": []}', "detail is empty", id="empty"),
        pytest.param(
            '{"detail": [{"id": 0, "core": 0, "socket": 0, "node": 0}, {"id": 1, "core": 0, "socket": 0, "node": 1}]}',
            "detail[1].node: core 0 of socket 0 is on NUMA nodes 0 and 1",
            id="core-on-two-numa-nodes",
        ),
    ],
)
def test_a_topology_that_contradicts_itself_binds_nobody(detail: str, field: str) -> None:
    cluster = one_node(described={"cpu-topology": detail})
    assert cluster.place(pod("p", 2)) == refused("node(s) invalid CPU Topology")
    site = cluster.plugin.evaluator.profiles.for_node(cluster.state.table.index["a"])
    assert str(site.topology.cpu) == field


def test_a_placed_pod_whose_status_cannot_be_read_is_told_apart() -> None:
    cluster = one_node()
    cluster.state.set_pod(pod("x", 2, node_name="a", annotations={STATUS: {"cpuset": "3-1"}}))
    assert "cpuset" in str(cluster.books.unreadable["uid-x"])
    assert cluster.books.pod_allocations() == {}
    cluster.state.drop_pod("uid-x")
    assert cluster.books.unreadable == {}
