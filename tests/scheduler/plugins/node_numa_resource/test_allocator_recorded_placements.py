"""Pods placed one after another get the outcomes recorded from Koordinator's own scheduler."""

from __future__ import annotations

import json

from koord.api.annotations.cpu_codecs import ResourceSpec
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from tests.scheduler.plugins.node_numa_resource.numa_builders import GI, PlacementBench, resource_topology

NUMA_LABEL = "node.koordinator.sh/numa-topology-policy"
UNALIGNED = "Unaligned NUMA Hint cause cpu prefer [11] among [11],memory prefer [11] among [11]"


def cpus(found: NumaAllocation | NumaRefusal) -> str:
    return str(found.cpus) if isinstance(found, NumaAllocation) else str(found)


def zone_cpu(found: NumaAllocation | NumaRefusal) -> dict[int, int] | str:
    if isinstance(found, NumaRefusal):
        return str(found)
    return {zone: amounts["cpu"] // 1000 for zone, amounts in found.zones.items()}


def preferring(policy: str, exclusive: str = "") -> ResourceSpec:
    return ResourceSpec(preferred_cpu_bind_policy=policy, preferred_cpu_exclusive_policy=exclusive)


def test_whole_cores_one_pod_after_another() -> None:
    bench = PlacementBench(resource_topology())
    assert cpus(bench.place("p0", 4, lsr=True, spec=preferring("FullPCPUs"))) == "0-3"
    assert cpus(bench.place("p1", 2, lsr=True, spec=preferring("FullPCPUs"))) == "8-9"
    assert cpus(bench.place("p2", 8, lsr=True, spec=preferring("FullPCPUs"))) == "4-7,10-13"


def test_one_thread_of_each_core_first() -> None:
    bench = PlacementBench(resource_topology())
    assert cpus(bench.place("p0", 4, lsr=True, spec=preferring("SpreadByPCPUs"))) == "0,2,4,6"
    assert cpus(bench.place("p1", 2, lsr=True, spec=preferring("SpreadByPCPUs"))) == "8,10"
    assert cpus(bench.place("p2", 6, lsr=True, spec=preferring("SpreadByPCPUs"))) == "9,11-15"


def test_exclusive_pods_do_not_share_cores() -> None:
    bench = PlacementBench(resource_topology())
    assert cpus(bench.place("p0", 2, lsr=True, spec=preferring("SpreadByPCPUs", "PCPULevel"))) == "0,2"
    assert cpus(bench.place("p1", 2, lsr=True, spec=preferring("SpreadByPCPUs", "PCPULevel"))) == "8,10"
    assert cpus(bench.place("p2", 4, lsr=True, spec=preferring("SpreadByPCPUs"))) == "1,3-4,6"


def test_cpus_that_the_node_keeps() -> None:
    bench = PlacementBench(resource_topology(annotations={"node.koordinator.sh/reservation": {"reservedCPUs": "0-3"}}))
    assert cpus(bench.place("p0", 4, lsr=True)) == "8-11"
    assert cpus(bench.place("p1", 8, lsr=True)) == "4-7,12-15"


def test_required_policies() -> None:
    bench = PlacementBench(resource_topology())
    full = ResourceSpec(required_cpu_bind_policy="FullPCPUs")
    spread = ResourceSpec(required_cpu_bind_policy="SpreadByPCPUs")
    assert cpus(bench.place("odd", 3, lsr=True, spec=full)) == "node(s) requested cpus not multiple cpus per core"
    assert cpus(bench.place("even", 4, lsr=True, spec=full)) == "0-3"
    assert cpus(bench.place("spread", 4, lsr=True, spec=spread)) == "8,10,12,14"
    assert cpus(bench.place("full2", 8, lsr=True, spec=full)) == "not enough cpus available to satisfy request"


def test_node_without_topology() -> None:
    bench = PlacementBench(None)
    assert cpus(bench.place("lsr", 2, lsr=True)) == "node(s) invalid CPU Topology"
    assert bench.place("ls", 2) == NumaAllocation()


def test_single_numa_node_with_bound_pods() -> None:
    bench = PlacementBench(resource_topology(), labels={NUMA_LABEL: "SingleNUMANode"})
    outcomes = [bench.place(f"p{n}", cpu, memory=4 * GI, lsr=True) for n, cpu in enumerate((6, 4, 4, 2))]
    assert [cpus(found) for found in outcomes] == ["0-5", "8-11", "12-15", "6-7"]
    assert [zone_cpu(found) for found in outcomes] == [{0: 6}, {1: 4}, {1: 4}, {0: 2}]


def test_best_effort_spans_when_it_must() -> None:
    bench = PlacementBench(resource_topology(), labels={NUMA_LABEL: "BestEffort"})
    outcomes = [bench.place(f"p{n}", cpu, memory=4 * GI) for n, cpu in enumerate((6, 6, 4))]
    assert [zone_cpu(found) for found in outcomes] == [{0: 6}, {1: 6}, {0: 2, 1: 2}]
    last = outcomes[-1]
    assert isinstance(last, NumaAllocation)
    assert [amounts["memory"] for amounts in last.zones.values()] == [2 * GI, 2 * GI]


def test_policy_of_the_kubelet() -> None:
    bench = PlacementBench(resource_topology(policies=("SingleNUMANodePodLevel",)))
    assert zone_cpu(bench.place("toobig", 10, memory=4 * GI)) == UNALIGNED
    assert zone_cpu(bench.place("p0", 6, memory=4 * GI)) == {0: 6}


def test_policy_of_the_pod() -> None:
    bench = PlacementBench(resource_topology())
    assert zone_cpu(bench.place("single", 6, memory=4 * GI, numa="SingleNUMANode")) == {0: 6}
    assert zone_cpu(bench.place("toobig", 10, memory=4 * GI, numa="SingleNUMANode")) == UNALIGNED
    assert bench.place("plain", 2, memory=4 * GI) == NumaAllocation()
    other = PlacementBench(resource_topology(), labels={NUMA_LABEL: "Restricted"})
    assert zone_cpu(other.place("conflict", 2, numa="SingleNUMANode")) == "node(s) NUMA Topology policy not match"


def test_amplified_node_with_single_numa_node() -> None:
    ratio = {"node.koordinator.sh/resource-amplification-ratio": json.dumps({"cpu": 1.5})}
    bench = PlacementBench(resource_topology(), labels={NUMA_LABEL: "SingleNUMANode"}, annotations=ratio)
    assert zone_cpu(bench.place("ls0", 11)) == {0: 11}
    assert zone_cpu(bench.place("ls1", 13)) == UNALIGNED
    lsr = bench.place("lsr0", 8, lsr=True)
    assert (cpus(lsr), zone_cpu(lsr)) == ("8-15", {1: 8})
    assert zone_cpu(bench.place("ls2", 1)) == {0: 1}


def test_restricted_splits_a_pod_that_a_whole_numa_node_could_take() -> None:
    """Unlike the kubelet's policy: what counts is the room that is left, not the size of NUMA nodes."""
    bench = PlacementBench(resource_topology(), labels={NUMA_LABEL: "Restricted"})
    outcomes = [bench.place(f"p{n}", cpu, memory=4 * GI) for n, cpu in enumerate((6, 6, 4))]
    assert [zone_cpu(found) for found in outcomes] == [{0: 6}, {1: 6}, {0: 2, 1: 2}]
