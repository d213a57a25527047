"""A node's CPUs, reserved CPUs, NUMA nodes and policies are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology, InvalidCpuTopology, parse_cpu_topology
from koord.scheduler.plugins.node_numa_resource.topology_options import read_topology_options
from koord.values.cpuset import CPUSet
from tests.scheduler.plugins.node_numa_resource.numa_builders import bits, machine, resource_topology, rows, valid, zone

KEY = "node.koordinator.sh/cpu-topology"
GI = 1 << 30


def annotated(detail: Any) -> dict[str, str]:
    return {KEY: json.dumps({"detail": detail})}


def test_cpus_by_core_zone_and_socket() -> None:
    topology = valid(parse_cpu_topology(annotated(rows(2, 2, 2, 2))))
    assert topology.cpus == bits("0-15")
    assert [str(CPUSet(core)) for core in topology.cores[:2]] == ["0-1", "2-3"]
    assert [str(CPUSet(z.cpus)) for z in topology.zones] == ["0-3", "4-7", "8-11", "12-15"]
    assert [z.socket for z in topology.zones] == [0, 0, 1, 1]
    assert [str(CPUSet(s.cpus)) for s in topology.sockets] == ["0-7", "8-15"]
    assert (topology.per_core, topology.per_zone, topology.per_socket) == (2, 4, 8)


def test_core_numbers_may_repeat_on_other_sockets() -> None:
    topology = valid(
        parse_cpu_topology(annotated([{"id": c, "core": c % 2, "socket": c // 2, "node": 0} for c in range(4)]))
    )
    assert len(topology.cores) == 4
    # One NUMA node over two sockets counts once for each of them.
    assert (len(topology.zones), topology.per_zone, topology.per_socket) == (1, 2, 2)


def test_one_text_gives_one_topology() -> None:
    assert parse_cpu_topology(annotated(rows(1, 1, 2, 2))) is parse_cpu_topology(annotated(rows(1, 1, 2, 2)))


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        pytest.param([], "detail is empty", id="empty"),
        pytest.param([{"core": 0, "socket": 0, "node": 0}], "detail[0].id is missing", id="no-id"),
        pytest.param([*rows(1, 1, 1, 1), {"id": 1, "socket": 0, "node": 0}], "detail[1].core is missing", id="no-core"),
        pytest.param([{"id": 0, "core": 0, "socket": 0}], "detail[0].node is missing", id="no-node"),
        pytest.param([{"id": 0, "core": 0, "node": 0}], "detail[0].socket is missing", id="no-socket"),
        pytest.param(
            [{"id": 0, "core": 0, "socket": 0, "node": -1}],
            "detail[0].node is -1, not in range 0-63",
            id="unknown-numa-node",
        ),
        pytest.param(
            [{"id": 99999, "core": 0, "socket": 0, "node": 0}],
            "detail[0].id is 99999, not in range 0-65535",
            id="absurd-id",
        ),
        pytest.param(
            [{"id": 0, "core": 0, "socket": 0, "node": 0}, {"id": 0, "core": 1, "socket": 0, "node": 0}],
            "detail[1].id: CPU 0 is listed twice, in different places",
            id="cpu-in-two-places",
        ),
        pytest.param(
            [{"id": 0, "core": 0, "socket": 0, "node": 0}, {"id": 1, "core": 0, "socket": 0, "node": 1}],
            "detail[1].node: core 0 of socket 0 is on NUMA nodes 0 and 1",
            id="core-on-two-numa-nodes",
        ),
    ],
)
def test_contradictions_name_the_field(detail: Any, reason: str) -> None:
    assert parse_cpu_topology(annotated(detail)) == InvalidCpuTopology(reason)


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        pytest.param({}, f"{KEY} is missing", id="no-annotation"),
        pytest.param({KEY: "{}"}, f"{KEY}: detail is missing", id="no-detail"),
        pytest.param({KEY: "null"}, f"{KEY}: detail is missing", id="null"),
    ],
)
def test_no_topology(annotations: dict[str, str], reason: str) -> None:
    assert parse_cpu_topology(annotations) == InvalidCpuTopology(reason)


def test_unreadable_text_says_so() -> None:
    found = parse_cpu_topology({KEY: "{"})
    assert isinstance(found, InvalidCpuTopology)
    assert found.reason.startswith(f"{KEY}: ")


def test_same_cpu_told_twice_alike_is_no_contradiction() -> None:
    assert isinstance(parse_cpu_topology(annotated([*rows(1, 1, 1, 2), *rows(1, 1, 1, 2)])), CpuTopology)


@pytest.mark.parametrize(
    ("annotations", "reserved"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"kubelet.koordinator.sh/cpu-manager-policy": {"reservedCPUs": "0-1"}}, "0-1", id="kubelet"),
        pytest.param({"node.koordinator.sh/reservation": {"reservedCPUs": "2"}}, "2", id="node"),
        pytest.param({"node.koordinator.sh/system-qos-resource": {"cpuset": "3"}}, "3", id="system-pods"),
        pytest.param(
            {"node.koordinator.sh/system-qos-resource": {"cpuset": "3", "cpusetExclusive": False}},
            "",
            id="system-pods-that-share",
        ),
        pytest.param(
            {
                "node.koordinator.sh/pod-cpu-allocs": [
                    {"uid": "a", "cpuset": "4-5", "managedByKubelet": True},
                    {"uid": "b", "cpuset": "6", "managedByKubelet": False},
                    {"uid": "", "cpuset": "7", "managedByKubelet": True},
                    {"uid": "c", "cpuset": "", "managedByKubelet": True},
                ]
            },
            "4-5",
            id="pods-that-the-kubelet-bound",
        ),
        pytest.param(
            {
                "kubelet.koordinator.sh/cpu-manager-policy": {"reservedCPUs": "0-1"},
                "node.koordinator.sh/reservation": {"reservedCPUs": "1-2"},
                "node.koordinator.sh/system-qos-resource": {"cpuset": "8"},
            },
            "0-2,8",
            id="all-together",
        ),
    ],
)
def test_reserved_cpus(annotations: dict[str, Any], reserved: str) -> None:
    node = read_topology_options(resource_topology(annotations=annotations), {}, {})
    assert str(CPUSet(node.reserved)) == reserved
    assert node.bindable_cpus == bits("0-15") & ~bits(reserved)
    assert node.unreadable == ()
    kept = [(bits("0-7") & node.reserved).bit_count(), (bits("8-15") & node.reserved).bit_count()]
    assert [z.amounts["cpu"] for z in node.zones] == [8000 - 1000 * n for n in kept]


def test_a_source_that_cannot_be_read_is_left_out_and_named() -> None:
    annotations = {
        "node.koordinator.sh/reservation": {"reservedCPUs": "x"},
        "node.koordinator.sh/system-qos-resource": "{",
        "kubelet.koordinator.sh/cpu-manager-policy": {"reservedCPUs": "1"},
    }
    node = read_topology_options(resource_topology(annotations=annotations), {}, {})
    assert node.reserved == bits("1")
    assert len(node.unreadable) == 2
    assert node.unreadable[0].startswith("reservedCPUs of the node: ")
    assert node.unreadable[1].startswith("node.koordinator.sh/system-qos-resource: ")


@pytest.mark.parametrize(
    ("zones", "numbers"),
    [
        pytest.param([zone("node-1"), zone("node-0")], (0, 1), id="sorted"),
        pytest.param([zone("node-0", kind="Socket")], (), id="other-type"),
        pytest.param([zone("zone-0"), zone("node-x"), zone("node-node-1")], (), id="other-names"),
        pytest.param([zone("my-node-3")], (3,), id="name-with-a-prefix"),
        pytest.param([], (), id="none"),
    ],
)
def test_zones(zones: list[dict[str, Any]], numbers: tuple[int, ...]) -> None:
    assert read_topology_options(resource_topology(zones=zones), {}, {}).zone_numbers == numbers


def test_zones_have_units_of_all_they_list() -> None:
    zones = [zone("node-0", cpu="7500m", memory="1Gi", more={"kubernetes.io/batch-cpu": "300"})]
    node = read_topology_options(resource_topology(zones=zones), {}, {})
    assert node.zones[0].amounts == {"cpu": 7500, "memory": GI, "kubernetes.io/batch-cpu": 300}


def test_zone_smaller_than_what_is_reserved_in_it() -> None:
    kept = {"node.koordinator.sh/reservation": {"reservedCPUs": "0-3"}}
    found = resource_topology(annotations=kept, zones=[zone("node-0", cpu=1)])
    assert read_topology_options(found, {}, {}).zones[0].amounts["cpu"] == 0


def test_bad_zones_are_named() -> None:
    zones = [zone("node-0", cpu="many"), zone("node-70"), zone("node-1")]
    node = read_topology_options(resource_topology(zones=zones), {}, {})
    assert node.zone_numbers == (1,)
    assert [text.split(":")[0] for text in node.unreadable] == ["zone node-0", "zone node-70"]


RATIO = "node.koordinator.sh/resource-amplification-ratio"


@pytest.mark.parametrize(
    ("own", "topology", "cpu", "ratio", "node_ratio"),
    [
        pytest.param({}, {}, 8000, None, None, id="none"),
        pytest.param({RATIO: '{"cpu":1.50}'}, {}, 12000, 1.5, 1.5, id="of-the-node-is-applied"),
        pytest.param({}, {RATIO: '{"cpu":1.50}'}, 8000, 1.5, None, id="of-the-topology-is-in-it-already"),
        pytest.param({RATIO: '{"cpu":2}'}, {RATIO: '{"cpu":1.50}'}, 8000, 1.5, 2.0, id="topology-before-node"),
        pytest.param({RATIO: '{"memory":2}'}, {}, 8000, None, None, id="of-another-resource"),
        pytest.param({RATIO: '{"cpu":0.5}'}, {}, 8000, 0.5, 0.5, id="below-one-has-no-effect"),
    ],
)
def test_amplification(
    own: dict[str, str], topology: dict[str, str], cpu: int, ratio: float | None, node_ratio: float | None
) -> None:
    node = read_topology_options(resource_topology(annotations=topology), {}, own)
    assert node.zones[0].amounts["cpu"] == cpu
    assert (node.ratio, node.node_ratio) == (ratio, node_ratio)


def test_bad_ratio_is_told() -> None:
    assert read_topology_options(resource_topology(), {}, {RATIO: "x"}).ratio_error.startswith(f"{RATIO}: ")


KUBELET = "kubelet.koordinator.sh/cpu-manager-policy"
FULL_ONLY = {KUBELET: {"policy": "static", "options": {"full-pcpus-only": "true"}}}
BIND = "node.koordinator.sh/cpu-bind-policy"


@pytest.mark.parametrize(
    ("labels", "annotations", "policy"),
    [
        pytest.param({}, {}, "None", id="nothing-stated"),
        pytest.param({BIND: "FullPCPUsOnly"}, {}, "FullPCPUsOnly", id="label"),
        pytest.param({BIND: "SpreadByPCPUs"}, {}, "SpreadByPCPUs", id="spread"),
        pytest.param({BIND: "Whatever"}, {}, "None", id="unknown-label"),
        pytest.param({}, FULL_ONLY, "FullPCPUsOnly", id="kubelet"),
        pytest.param({BIND: "SpreadByPCPUs"}, FULL_ONLY, "FullPCPUsOnly", id="kubelet-before-spread"),
        pytest.param({}, {KUBELET: {**FULL_ONLY[KUBELET], "policy": "none"}}, "None", id="kubelet-that-does-not-bind"),
    ],
)
def test_bind_policy(labels: dict[str, str], annotations: dict[str, Any], policy: str) -> None:
    assert read_topology_options(resource_topology(annotations=annotations), labels, {}).bind_policy == policy


NUMA = "node.koordinator.sh/numa-topology-policy"


@pytest.mark.parametrize(
    ("labels", "kubelet", "policy"),
    [
        pytest.param({}, ("None",), "", id="nothing-stated"),
        pytest.param({}, ("SingleNUMANodePodLevel",), "SingleNUMANode", id="single"),
        pytest.param({}, ("SingleNUMANodeContainerLevel",), "", id="container-scope-is-not-ours"),
        pytest.param({}, ("None", "Restricted", "BestEffort"), "Restricted", id="first-known"),
        pytest.param({NUMA: "BestEffort"}, ("Restricted",), "BestEffort", id="label-first"),
        pytest.param({NUMA: "Sideways"}, ("Restricted",), "", id="unknown-label-is-none"),
    ],
)
def test_numa_policy(labels: dict[str, str], kubelet: tuple[str, ...], policy: str) -> None:
    assert read_topology_options(resource_topology(policies=kubelet), labels, {}).numa_policy == policy


@pytest.mark.parametrize(
    ("labels", "strategy"),
    [
        pytest.param({}, "LeastAllocated", id="default"),
        pytest.param({"node.koordinator.sh/numa-allocate-strategy": "MostAllocated"}, "MostAllocated", id="label"),
        pytest.param({"node.koordinator.sh/numa-allocate-strategy": ""}, "LeastAllocated", id="empty-label"),
    ],
)
def test_strategy(labels: dict[str, str], strategy: str) -> None:
    assert read_topology_options(resource_topology(), labels, {}).strategy == strategy


def test_node_without_topology_object() -> None:
    node = read_topology_options(None, {}, {})
    assert node.cpu == InvalidCpuTopology("there is no NodeResourceTopology of this node")
    assert (node.bindable_cpus, node.zones) == (0, ())


def test_masks_of_a_choice() -> None:
    topology = machine(1, 2, 2, 2)
    assert topology.full_core_cpus(bits("0-2,4-5")) == bits("0-1,4-5")
    assert topology.one_per_core(bits("1-3,5")) == bits("1-2,5")
    assert topology.cpus_sharing_cores(bits("1,4")) == bits("0-1,4-5")
    assert topology.cpus_sharing_zones(bits("1")) == bits("0-3")
    assert topology.core_count(bits("0-1,5")) == 2
    assert topology.zone_mask(9) == 0
