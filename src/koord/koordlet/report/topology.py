"""Build this node's NodeResourceTopology: CPUs, shared pools, the kubelet's assignments, NUMA zones.

Which CPUs belong to whom is decided in `koord.koordlet.report.share_pool`; writing the object is left to others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from koord.api import pod_resources
from koord.api.annotations import (
    cpu_basic_info,
    cpu_manager_policy,
    cpu_shared_pools,
    cpu_topology,
    node_reservation,
    pod_cpu_allocs,
    system_qos,
)
from koord.api.annotations.codec import Malformed
from koord.api.annotations.cpu_basic_info import CPUBasicInfo
from koord.api.annotations.cpu_manager_policy import CPUManagerPolicy
from koord.api.annotations.cpu_topology import CPUInfo, CPUTopology
from koord.api.annotations.node_reservation import NodeReservation
from koord.api.annotations.system_qos import SystemQOSResource
from koord.api.part import ResourceList
from koord.api.protocol import (
    A_BE_CPU_SHARED_POOLS,
    A_CPU_BASIC_INFO,
    A_CPU_MANAGER_POLICY,
    A_CPU_SHARED_POOLS,
    A_CPU_TOPOLOGY,
    A_NODE_RESERVATION,
    A_POD_CPU_ALLOCS,
    A_SYSTEM_QOS_RESOURCE,
    L_ENABLE_NUMA_RESERVATION,
    L_MANAGED_BY,
)
from koord.api.resource_name import CPU, MEMORY
from koord.api.topology import ZONE_NAME_PREFIX, ZONE_TYPE_NODE, ResourceInfo, Zone
from koord.koordlet.pod import PodView
from koord.koordlet.report.share_pool import CpuState, Shares, decide_shares
from koord.koordlet.report.status import Withheld
from koord.koordlet.report.usage import bytes_text, milli_text
from koord.koordlet.strategies.processor import Processor
from koord.values.cpuset import EMPTY, CPUSet, CPUSetError

T = TypeVar("T")
D = TypeVar("D")

MANAGER = "Koordinator"
HUGE_2M, HUGE_1G = "hugepages-2Mi", "hugepages-1Gi"
MANAGED_RESOURCES = frozenset({CPU, MEMORY, HUGE_2M, HUGE_1G})
_POLICIES = {
    ("single-numa-node", "container"): "SingleNUMANodeContainerLevel",
    ("single-numa-node", "pod"): "SingleNUMANodePodLevel",
    ("restricted", "container"): "RestrictedContainerLevel",
    ("restricted", "pod"): "RestrictedPodLevel",
    ("best-effort", "container"): "BestEffortContainerLevel",
    ("best-effort", "pod"): "BestEffortPodLevel",
}


class NumaMemory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    number: int
    memory_bytes: int
    pages_2m: int = 0
    pages_1g: int = 0


class KubeletPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's CPU and topology manager settings; `asked` is False where it is not to be asked."""

    asked: bool = True
    cpu_manager: str = "none"
    options: dict[str, str] = {}
    reserved_cpus: str = ""
    reserved: tuple[ResourceList, ...] = ()  # for the system and for Kubernetes
    topology_manager: str = "none"
    scope: str = "container"


class TopologyView(msgspec.Struct, frozen=True, kw_only=True):
    """What the topology is built of."""
    labels: Mapping[str, str] = {}  # of the Node
    annotations: Mapping[str, str] | None = None
    allocatable: Mapping[str, int] = {}  # milli-cores and bytes
    processors: tuple[Processor, ...] = ()
    basic: CPUBasicInfo = CPUBasicInfo()
    numa: tuple[NumaMemory, ...] = ()
    kubelet: KubeletPolicy = KubeletPolicy()
    cpu_state: CpuState = CpuState()
    pods: tuple[PodView, ...] = ()
    huge_pages: bool = False  # whether they are reported at all


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """All of the object that this agent is responsible for."""

    policies: tuple[str, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    zones: tuple[Zone, ...]
    shares: Shares


def build_topology(seen: TopologyView) -> Topology | Withheld:
    """Build the topology, or say why it is withheld."""
    if not seen.processors:
        return Withheld("the processors of this machine are not known yet")
    numbers = sorted({one.node for one in seen.processors})
    if seen.numa and [one.number for one in seen.numa] != numbers:
        told = [one.number for one in seen.numa]
        return Withheld(f"memory is on NUMA nodes {told} but processors are on {numbers}")
    reservation = _read(node_reservation.parse(seen.annotations or {}), NodeReservation())
    system = _read(system_qos.parse(seen.annotations or {}), None)
    shares = decide_shares(
        processors=seen.processors,
        pods=seen.pods,
        state=seen.cpu_state,
        static=seen.kubelet.cpu_manager == cpu_manager_policy.STATIC,
        kubelet_cpus=_cpus(seen.kubelet.reserved_cpus),
        kubelet_milli=sum(pod_resources.amounts(one).get(CPU, 0) for one in seen.kubelet.reserved),
        node_cpus=_cpus(reservation.reserved_cpus),
        node_milli=pod_resources.amounts(reservation.resources).get(CPU, 0),
        system_cpus=_cpus(system.cpuset) if system is not None and system.is_exclusive else EMPTY,
    )
    kept = {L_ENABLE_NUMA_RESERVATION: seen.labels.get(L_ENABLE_NUMA_RESERVATION, "")}
    return Topology(
        policies=(_POLICIES.get((seen.kubelet.topology_manager, seen.kubelet.scope), "None"),),
        labels={L_MANAGED_BY: MANAGER, **{name: value for name, value in kept.items() if value}},
        annotations=_annotations(seen, shares, reservation, system),
        zones=_zones(seen, numbers),
        shares=shares,
    )


def merged_zones(mine: Sequence[Zone], there: Sequence[Zone]) -> tuple[Zone, ...]:
    """Return this agent's zones with what others put into them: foreign resources, costs and attributes."""
    before = {zone.name: zone for zone in there}
    found: list[Zone] = []
    for zone in mine:
        old = before.get(zone.name)
        if old is None:
            found.append(zone)
            continue
        own = {one.name for one in zone.resources}
        foreign = tuple(one for one in old.resources if one.name not in own | MANAGED_RESOURCES)
        resources = tuple(sorted((*zone.resources, *foreign), key=lambda one: one.name))
        found.append(msgspec.structs.replace(old, type=zone.type, resources=resources))
    return tuple(found)


def _annotations(
    seen: TopologyView, shares: Shares, reservation: NodeReservation, system: SystemQOSResource | None
) -> dict[str, str]:
    detail = tuple(
        CPUInfo(id=one.cpu, core=one.core, socket=one.socket, node=one.node)
        for one in sorted(seen.processors, key=lambda one: one.cpu)
    )
    kubelet = CPUManagerPolicy()
    if seen.kubelet.asked:
        kubelet = CPUManagerPolicy(
            policy=seen.kubelet.cpu_manager, options=seen.kubelet.options, reserved_cpus=str(shares.kubelet_reserved)
        )
    # Go writes null for what is not there, and readers of the annotation take it as such.
    nothing = "null" if seen.annotations is None else system_qos.dump(SystemQOSResource())
    return {
        A_CPU_BASIC_INFO: cpu_basic_info.dump(seen.basic),
        A_CPU_TOPOLOGY: cpu_topology.dump(CPUTopology(detail=detail)),
        A_CPU_SHARED_POOLS: cpu_shared_pools.dump(shares.ls_pools),
        A_BE_CPU_SHARED_POOLS: cpu_shared_pools.dump(shares.be_pools),
        A_CPU_MANAGER_POLICY: cpu_manager_policy.dump(kubelet),
        A_POD_CPU_ALLOCS: pod_cpu_allocs.dump(shares.allocs) if shares.allocs else "null",
        A_NODE_RESERVATION: node_reservation.dump(reservation),
        A_SYSTEM_QOS_RESOURCE: nothing if system is None else system_qos.dump(system),
    }


def _zones(seen: TopologyView, numbers: Sequence[int]) -> tuple[Zone, ...]:
    memory = {one.number: one for one in seen.numa}
    capacity: dict[int, dict[str, int]] = {}  # milli-cores and bytes
    for number in numbers:
        of = memory.get(number, NumaMemory(number=number, memory_bytes=0))
        large = (of.pages_2m * 2**21, of.pages_1g * 2**30) if seen.huge_pages else (0, 0)
        capacity[number] = {
            CPU: 1000 * sum(1 for one in seen.processors if one.node == number),
            MEMORY: max(of.memory_bytes - sum(large), 0),
            HUGE_2M: large[0],
            HUGE_1G: large[1],
        }
    kept = {CPU: 0, MEMORY: 0}
    if node_reservation.reserves_per_numa_node(seen.labels):
        for name in kept:
            whole = sum(amounts[name] for amounts in capacity.values())
            kept[name] = math.ceil(max(whole - seen.allocatable.get(name, whole), 0) / len(numbers))
    return tuple(
        Zone(
            name=f"{ZONE_NAME_PREFIX}{number}",
            type=ZONE_TYPE_NODE,
            resources=tuple(
                _resource(name, capacity[number][name], max(capacity[number][name] - kept.get(name, 0), 0))
                for name in sorted(capacity[number])
            ),
        )
        for number in numbers
    )


def _resource(name: str, capacity: int, allocatable: int) -> ResourceInfo:
    text = milli_text if name == CPU else bytes_text
    return ResourceInfo(name=name, capacity=text(capacity), allocatable=text(allocatable), available=text(allocatable))


def _cpus(text: str) -> CPUSet:
    try:
        return CPUSet.parse(text)
    except CPUSetError:
        return EMPTY


def _read(value: T | Malformed | None, otherwise: D) -> T | D:
    """Return the value, or `otherwise` when it is absent or malformed; the scheduler reports malformed annotations."""
    return otherwise if value is None or isinstance(value, Malformed) else value
