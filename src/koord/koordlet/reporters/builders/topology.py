"""Build this node's NodeResourceTopology: CPUs, shared pools, the kubelet's assignments, NUMA zones.

Which CPUs belong to whom is decided in `koord.koordlet.inputs.machine`; writing the object is left to
others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from koord.api.annotations import cpu_codecs, node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.cpu_codecs import CPUBasicInfo, CPUInfo, CPUManagerPolicy, CPUTopology, SystemQOSResource
from koord.api.annotations.node_codecs import NodeReservation
from koord.api.koordinator import protocol
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.sigs_scheduling import ZONE_NAME_PREFIX, ZONE_TYPE_NODE, ResourceInfo, Zone
from koord.api.kubernetes import pod_resources
from koord.api.model import ResourceList
from koord.host.hardware import MachineCpu
from koord.koordlet.inputs.machine import CpuManagerState, CpuPools, decide_cpu_pools, reserved_cpus
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.reporters.builders.node_metric import ReportWithheld
from koord.koordlet.reporters.builders.reclaimable import bytes_quantity, milli_quantity
from koord.values.cpuset import EMPTY, CPUSet

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


class KubeletResourcePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's CPU and topology manager settings; `asked` is False where it is not to be asked."""

    asked: bool = True
    cpu_manager: str = "none"
    options: dict[str, str] = {}
    reserved_cpus: str = ""
    reserved: tuple[ResourceList, ...] = ()  # for the system and for Kubernetes
    topology_manager: str = "none"
    scope: str = "container"


class TopologyView(msgspec.Struct, frozen=True, kw_only=True):
    labels: Mapping[str, str] = {}  # of the Node
    annotations: Mapping[str, str] | None = None
    allocatable: Mapping[str, int] = {}  # milli-cores and bytes
    processors: tuple[MachineCpu, ...] = ()
    basic: CPUBasicInfo = CPUBasicInfo()
    numa: tuple[NumaMemory, ...] = ()
    kubelet: KubeletResourcePolicy = KubeletResourcePolicy()
    cpu_state: CpuManagerState = CpuManagerState()
    pods: tuple[PodMeta, ...] = ()
    huge_pages: bool = False  # whether they are reported at all


class TopologyReport(msgspec.Struct, frozen=True, kw_only=True):
    policies: tuple[str, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    zones: tuple[Zone, ...]
    shares: CpuPools


def build_topology(view: TopologyView) -> TopologyReport | ReportWithheld:
    """Build the topology, or say why it is withheld."""
    if not view.processors:
        return ReportWithheld("the processors of this machine are not known yet")
    numbers = sorted({one.node for one in view.processors})
    if view.numa and [one.number for one in view.numa] != numbers:
        told = [one.number for one in view.numa]
        return ReportWithheld(f"memory is on NUMA nodes {told} but processors are on {numbers}")
    reservation = _value_or(node_codecs.parse_node_reservation(view.annotations or {}), NodeReservation())
    named = CPUSet.parse_or_empty(reservation.reserved_cpus)
    if not named:  # an amount stands for CPUs, which everybody must know: the scheduler gives out what is not reserved
        named = reserved_cpus(view.processors, pod_resources.resource_amounts(reservation.resources).get(CPU, 0))
        reservation = msgspec.structs.replace(reservation, reserved_cpus=str(named))
    system = _value_or(cpu_codecs.parse_system_qos_resource(view.annotations or {}), None)
    shares = decide_cpu_pools(
        processors=view.processors,
        pods=view.pods,
        state=view.cpu_state,
        static=view.kubelet.cpu_manager == cpu_codecs.CPU_MANAGER_STATIC,
        kubelet_cpus=CPUSet.parse_or_empty(view.kubelet.reserved_cpus),
        kubelet_milli=sum(pod_resources.resource_amounts(one).get(CPU, 0) for one in view.kubelet.reserved),
        node_cpus=named,
        system_cpus=CPUSet.parse_or_empty(system.cpuset) if system is not None and system.is_exclusive else EMPTY,
    )
    kept = {protocol.L_ENABLE_NUMA_RESERVATION: view.labels.get(protocol.L_ENABLE_NUMA_RESERVATION, "")}
    return TopologyReport(
        policies=(_POLICIES.get((view.kubelet.topology_manager, view.kubelet.scope), "None"),),
        labels={protocol.L_MANAGED_BY: MANAGER, **{name: value for name, value in kept.items() if value}},
        annotations=_annotations(view, shares, reservation, system),
        zones=_zones(view, numbers),
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
    view: TopologyView, shares: CpuPools, reservation: NodeReservation, system: SystemQOSResource | None
) -> dict[str, str]:
    detail = tuple(
        CPUInfo(id=one.cpu, core=one.core, socket=one.socket, node=one.node)
        for one in sorted(view.processors, key=lambda one: one.cpu)
    )
    kubelet = CPUManagerPolicy()
    if view.kubelet.asked:
        kubelet = CPUManagerPolicy(
            policy=view.kubelet.cpu_manager, options=view.kubelet.options, reserved_cpus=str(shares.kubelet_reserved)
        )
    # Go writes null for what is not there, and readers of the annotation take it as such.
    nothing = "null" if view.annotations is None else cpu_codecs.dump_system_qos_resource(SystemQOSResource())
    return {
        protocol.A_CPU_BASIC_INFO: cpu_codecs.dump_cpu_basic_info(view.basic),
        protocol.A_CPU_TOPOLOGY: cpu_codecs.dump_cpu_topology(CPUTopology(detail=detail)),
        protocol.A_CPU_SHARED_POOLS: cpu_codecs.dump_cpu_shared_pools(shares.ls_pools),
        protocol.A_BE_CPU_SHARED_POOLS: cpu_codecs.dump_cpu_shared_pools(shares.be_pools),
        protocol.A_CPU_MANAGER_POLICY: cpu_codecs.dump_cpu_manager_policy(kubelet),
        protocol.A_POD_CPU_ALLOCS: cpu_codecs.dump_pod_cpu_allocs(shares.allocs) if shares.allocs else "null",
        protocol.A_NODE_RESERVATION: node_codecs.dump_node_reservation(reservation),
        protocol.A_SYSTEM_QOS_RESOURCE: nothing if system is None else cpu_codecs.dump_system_qos_resource(system),
    }


def _zones(view: TopologyView, numbers: Sequence[int]) -> tuple[Zone, ...]:
    memory = {one.number: one for one in view.numa}
    capacity: dict[int, dict[str, int]] = {}  # milli-cores and bytes
    for number in numbers:
        of = memory.get(number, NumaMemory(number=number, memory_bytes=0))
        large = (of.pages_2m * 2**21, of.pages_1g * 2**30) if view.huge_pages else (0, 0)
        capacity[number] = {
            CPU: 1000 * sum(1 for one in view.processors if one.node == number),
            MEMORY: max(of.memory_bytes - sum(large), 0),
            HUGE_2M: large[0],
            HUGE_1G: large[1],
        }
    kept = {CPU: 0, MEMORY: 0}
    if node_codecs.reserves_per_numa_node(view.labels):
        for name in kept:
            whole = sum(amounts[name] for amounts in capacity.values())
            kept[name] = math.ceil(max(whole - view.allocatable.get(name, whole), 0) / len(numbers))
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
    text = milli_quantity if name == CPU else bytes_quantity
    return ResourceInfo(name=name, capacity=text(capacity), allocatable=text(allocatable), available=text(allocatable))


def _value_or(value: T | MalformedAnnotation | None, otherwise: D) -> T | D:
    """Return the value, or `otherwise` when it is absent or malformed; the scheduler reports malformed annotations."""
    return otherwise if value is None or isinstance(value, MalformedAnnotation) else value
