"""The node's topology as it is reported: pools, what the kubelet bound, reservations, zones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import node_codecs
from koord.api.annotations.node_codecs import NodeReservation
from koord.api.koordinator.protocol import (
    A_BE_CPU_SHARED_POOLS,
    A_CPU_MANAGER_POLICY,
    A_CPU_SHARED_POOLS,
    A_CPU_TOPOLOGY,
    A_NODE_RESERVATION,
    A_POD_CPU_ALLOCS,
    A_RESOURCE_STATUS,
    A_SYSTEM_QOS_RESOURCE,
    L_ENABLE_NUMA_RESERVATION,
    L_QOS_CLASS,
)
from koord.api.koordinator.sigs_scheduling import AttributeInfo, ResourceInfo, Zone
from koord.host.hardware import MachineCpu
from koord.koordlet.inputs.machine import CpuManagerState, pack_cpus
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.reporters.builders.node_metric import ReportWithheld
from koord.koordlet.reporters.builders.topology import (
    KubeletResourcePolicy,
    NumaMemory,
    TopologyReport,
    TopologyView,
    build_topology,
    merged_zones,
)

GIB = 2**30


def machine(sockets: int = 1, nodes: int = 2, cores: int = 2, threads: int = 2) -> tuple[MachineCpu, ...]:
    """So many NUMA nodes in all, cores in each; the second threads are numbered after all first ones."""
    found: list[MachineCpu] = []
    whole = nodes * cores
    for core in range(whole):
        node = core // cores
        for thread in range(threads):
            cpu = core + thread * whole
            found.append(MachineCpu(cpu=cpu, core=core, socket=node * sockets // nodes, node=node))
    return tuple(found)


def view(**changes: Any) -> TopologyView:
    given: dict[str, Any] = {
        "processors": machine(),
        "numa": tuple(NumaMemory(number=n, memory_bytes=4 * GIB) for n in range(2)),
        "annotations": {},
    }
    return TopologyView(**{**given, **changes})


def built(**changes: Any) -> TopologyReport:
    found = build_topology(view(**changes))
    assert isinstance(found, TopologyReport), found
    return found


def said(topology: TopologyReport, key: str) -> Any:
    return json.loads(topology.annotations[key])


def pod(uid: str, qos: str = "", cpuset: str = "", phase: str = "Running") -> PodMeta:
    annotations = {A_RESOURCE_STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
    labels = {L_QOS_CLASS: qos} if qos else {}
    return PodMeta(uid=uid, name=uid, namespace="work", labels=labels, annotations=annotations, phase=phase)


def pools(topology: TopologyReport, key: str = A_CPU_SHARED_POOLS) -> dict[int, str]:
    return {pool["node"]: pool["cpuset"] for pool in said(topology, key)}


class TestPools:
    def test_an_idle_machine_shares_everything(self) -> None:
        found = built()
        assert said(found, A_CPU_SHARED_POOLS) == [
            {"socket": 0, "node": 0, "cpuset": "0-1,4-5"},
            {"socket": 0, "node": 1, "cpuset": "2-3,6-7"},
        ]
        assert said(found, A_POD_CPU_ALLOCS) is None
        assert said(found, A_CPU_TOPOLOGY)["detail"][4] == {"id": 4, "core": 0, "socket": 0, "node": 0}

    def test_bound_cpus_leave_the_pool_of_ls_and_only_those_of_lse_that_of_be(self) -> None:
        found = built(pods=(pod("r", "LSR", "0,4"), pod("e", "LSE", "2"), pod("over", "LSE", "3", "Succeeded")))
        assert pools(found) == {0: "1,5", 1: "3,6-7"}
        assert pools(found, A_BE_CPU_SHARED_POOLS) == {0: "0-1,4-5", 1: "3,6-7"}

    def test_cpus_of_be_pods_stay_shared(self) -> None:
        found = built(pods=(pod("b", "BE", "0-3"), pod("n", "", "4")))
        assert pools(found) == {0: "0-1,5", 1: "2-3,6-7"}, "nobody binds a BE pod to the CPUs in its annotation"

    def test_a_node_without_shared_cpus_has_no_entry(self) -> None:
        assert pools(built(pods=(pod("r", "LSR", "0-1,4-5"),))) == {1: "2-3,6-7"}

    @pytest.mark.parametrize(
        ("annotations", "ls"),
        [
            pytest.param({A_NODE_RESERVATION: '{"reservedCPUs":"0,4"}'}, {0: "1,5", 1: "2-3,6-7"}, id="named"),
            pytest.param(
                {A_NODE_RESERVATION: '{"resources":{"cpu":"1500m"}}'}, {0: "1,5", 1: "2-3,6-7"}, id="so-many-of-a-core"
            ),
            pytest.param({A_SYSTEM_QOS_RESOURCE: '{"cpuset":"7"}'}, {0: "0-1,4-5", 1: "2-3,6"}, id="system"),
            pytest.param(
                {A_SYSTEM_QOS_RESOURCE: '{"cpuset":"7","cpusetExclusive":false}'},
                {0: "0-1,4-5", 1: "2-3,6-7"},
                id="system-shares",
            ),
            pytest.param({A_NODE_RESERVATION: "{"}, {0: "0-1,4-5", 1: "2-3,6-7"}, id="unreadable"),
        ],
    )
    def test_reservations_are_taken_from_both(self, annotations: dict[str, str], ls: dict[int, str]) -> None:
        found = built(annotations=annotations)
        assert pools(found) == ls
        assert pools(found, A_BE_CPU_SHARED_POOLS) == ls

    @pytest.mark.parametrize(
        ("text", "reserved"),
        [
            ('{"resources":{"cpu":"1500m"}}', "0,4"),
            ('{"resources":{"cpu":"1"}}', "0"),
            ('{"resources":{"cpu":"1"},"reservedCPUs":"6-7"}', "6-7"),
            ('{"resources":{"memory":"1Gi"}}', ""),
        ],
    )
    def test_a_reservation_by_amount_is_told_as_cpus(self, text: str, reserved: str) -> None:
        told = node_codecs.parse_node_reservation(built(annotations={A_NODE_RESERVATION: text}).annotations)
        assert isinstance(told, NodeReservation)
        assert told.reserved_cpus == reserved


class TestStaticKubelet:
    STATE = CpuManagerState(policy="static", entries={"g": {"one": "1", "two": "5"}, "ls": {"c": "2"}, "k": {"c": "3"}})

    def test_its_own_pods_lose_their_cpus_to_nobody(self) -> None:
        found = built(
            kubelet=KubeletResourcePolicy(
                cpu_manager="static", options={"full-pcpus-only": "true"}, reserved_cpus="0,4"
            ),
            cpu_state=self.STATE,
            pods=(pod("g"), pod("ls", "LS"), pod("k", "", "3")),
        )
        assert said(found, A_POD_CPU_ALLOCS) == [
            {"namespace": "work", "name": "g", "uid": "g", "cpuset": "1,5", "managedByKubelet": True}
        ]
        assert pools(found) == {0: "0,4", 1: "2,6-7"}, "what the kubelet keeps for itself stays shared"
        assert said(found, A_CPU_MANAGER_POLICY) == {
            "policy": "static",
            "options": {"full-pcpus-only": "true"},
            "reservedCPUs": "0,4",
        }

    def test_amounts_become_cpus_as_the_kubelet_chooses_them(self) -> None:
        policy = KubeletResourcePolicy(cpu_manager="static", reserved=({"cpu": "1"}, {"cpu": "500m"}))
        assert said(built(kubelet=policy), A_CPU_MANAGER_POLICY)["reservedCPUs"] == "0,4"

    def test_a_kubelet_that_is_not_static_binds_nothing(self) -> None:
        found = built(cpu_state=self.STATE, pods=(pod("g"),))
        assert said(found, A_POD_CPU_ALLOCS) is None

    def test_a_kubelet_that_is_not_asked_says_nothing(self) -> None:
        assert said(built(kubelet=KubeletResourcePolicy(asked=False)), A_CPU_MANAGER_POLICY) == {}

    @pytest.mark.parametrize(
        ("policy", "scope", "name"),
        [
            ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
            ("restricted", "container", "RestrictedContainerLevel"),
            ("best-effort", "pod", "BestEffortPodLevel"),
            ("none", "pod", "None"),
            ("restricted", "elsewhere", "None"),
        ],
    )
    def test_the_topology_policy_has_one_name(self, policy: str, scope: str, name: str) -> None:
        assert built(kubelet=KubeletResourcePolicy(topology_manager=policy, scope=scope)).policies == (name,)


class TestPacking:
    def test_a_whole_numa_node_then_a_core_then_a_thread(self) -> None:
        assert str(pack_cpus(machine(), 4)) == "0-1,4-5"
        assert str(pack_cpus(machine(), 7)) == "0-6"
        assert str(pack_cpus(machine(), 2)) == "0,4"
        assert str(pack_cpus(machine(), 3)) == "0-1,4"

    @given(
        sockets=st.integers(1, 2),
        per_socket=st.integers(1, 2),
        cores=st.integers(1, 4),
        threads=st.integers(1, 2),
        count=st.integers(0, 40),
    )
    def test_it_is_as_many_as_asked_for_and_splits_few_cores(
        self, sockets: int, per_socket: int, cores: int, threads: int, count: int
    ) -> None:
        processors = machine(sockets, sockets * per_socket, cores, threads)
        found = pack_cpus(processors, count)
        assert len(found) == min(count, len(processors))
        by_core: dict[int, list[bool]] = {}
        for one in processors:
            by_core.setdefault(one.core, []).append(one.cpu in found)
        split = [core for core, taken in by_core.items() if any(taken) and not all(taken)]
        assert len(split) <= 1


class TestZones:
    def test_capacity_is_what_the_machine_has(self) -> None:
        zones = built().zones
        assert [zone.name for zone in zones] == ["node-0", "node-1"]
        assert [one.name for one in zones[0].resources] == ["cpu", "hugepages-1Gi", "hugepages-2Mi", "memory"]
        cpu = zones[0].resources[0]
        assert (cpu.capacity, cpu.allocatable, cpu.available) == ("4", "4", "4")
        assert zones[0].resources[3].capacity == "4Gi"

    def test_huge_pages_are_no_ordinary_memory(self) -> None:
        numa = tuple(NumaMemory(number=n, memory_bytes=4 * GIB, pages_2m=512, pages_1g=1) for n in range(2))
        resources = {one.name: one.capacity for one in built(numa=numa, huge_pages=True).zones[0].resources}
        assert resources == {"cpu": "4", "memory": "2Gi", "hugepages-2Mi": "1Gi", "hugepages-1Gi": "1Gi"}

    def test_what_the_kubelet_reserves_is_spread_when_the_label_says_so(self) -> None:
        labels = {L_ENABLE_NUMA_RESERVATION: "true"}
        found = built(labels=labels, allocatable={"cpu": 7001, "memory": 6 * GIB})
        cpu, memory = found.zones[1].resources[0], found.zones[1].resources[3]
        assert (cpu.capacity, cpu.allocatable) == ("4", "3500m"), "rounded up: never more than there is"
        assert (memory.capacity, memory.allocatable) == ("4Gi", "3Gi")
        assert found.labels[L_ENABLE_NUMA_RESERVATION] == "true"
        unlabelled = built(allocatable={"cpu": 7000, "memory": 6 * GIB})
        assert unlabelled.zones[1].resources[0].allocatable == "4"

    def test_what_others_put_into_a_zone_stays(self) -> None:
        gpu = ResourceInfo(name="koordinator.sh/gpu", capacity="100", allocatable="100", available="100")
        stale = ResourceInfo(name="memory", capacity="1", allocatable="1", available="1")
        attribute = (AttributeInfo(name="a", value="b"),)
        there = (
            Zone(name="node-0", type="Node", resources=(gpu, stale), attributes=attribute),
            Zone(name="node-9", type="Node"),
        )
        merged = merged_zones(built().zones, there)
        assert [zone.name for zone in merged] == ["node-0", "node-1"]
        assert [one.name for one in merged[0].resources][-2:] == ["koordinator.sh/gpu", "memory"]
        assert merged[0].resources[-1].capacity == "4Gi"
        assert merged[0].attributes == attribute
        assert merged_zones(built().zones, merged) == merged


def test_a_machine_that_contradicts_itself_is_not_reported() -> None:
    assert isinstance(build_topology(view(processors=())), ReportWithheld)
    assert isinstance(build_topology(view(numa=(NumaMemory(number=0, memory_bytes=1),))), ReportWithheld)
