"""This module reads what one node offers to CPU binding and NUMA placement, read from its NodeResourceTopology
and its own metadata; with the arithmetic of resource amplification.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from koord.api.annotations import cpu_codecs, node_codecs
from koord.api.annotations.codec import MalformedAnnotation, value_or_none
from koord.api.koordinator.sigs_scheduling import ZONE_NAME_PREFIX, ZONE_TYPE_NODE, NodeResourceTopology, Zone
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology, InvalidCpuTopology, parse_cpu_topology
from koord.values.bitmask import WIDTH, BitMask
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.go_format import parse_decimal_int
from koord.values.quantity import Quantity, QuantityError
from koord.values.resources import CPU, units

# The ratio is a float and is multiplied as one: 3000 at 1.1 is 3301 on the wire, and must be here.


def amplify(amount: int, ratio: float | None) -> int:
    """Multiply and round up; a ratio of 1 or less changes nothing."""
    if ratio is None or ratio <= 1:
        return amount
    return math.ceil(amount * ratio)


def amplify_all(amounts: Mapping[str, int], ratios: Mapping[str, float]) -> dict[str, int]:
    return {name: amplify(amount, ratios.get(name)) for name, amount in amounts.items()}


def amplify_cpu(amounts: Mapping[str, int], ratio: float | None) -> Mapping[str, int]:
    """Amplify the cpu amount of a pod with bound CPUs: its CPUs are physical, so each counts for `ratio`."""
    cpu = amounts.get(CPU, 0)
    return amounts if ratio is None or ratio <= 1 or not cpu else {**amounts, CPU: amplify(cpu, ratio)}


T = TypeVar("T")

# The first of these that the topology names is the node's own policy.
_KUBELET_POLICIES = {
    "BestEffort": cpu_codecs.NUMA_POLICY_BEST_EFFORT,
    "Restricted": cpu_codecs.NUMA_POLICY_RESTRICTED,
    "SingleNUMANodePodLevel": cpu_codecs.NUMA_POLICY_SINGLE_NUMA_NODE,
}


class NumaZone(msgspec.Struct, frozen=True):
    """The allocatable amounts of one NUMA node: milli-cores of cpu, whole units of all else, amplified."""

    number: int
    amounts: Mapping[str, int]


class TopologyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The NUMA and CPU options of one node. `cpu` is invalid when CPUs cannot be bound here.

    `bind_policy`, `numa_policy` and `strategy` are the effective ones, label before kubelet. `ratio` is the
    amplification of cpu in the zones, `node_ratio` that of the node's allocatable; None when nothing is
    amplified. Sources that could not be read are listed.
    """

    cpu: CpuTopology | InvalidCpuTopology
    reserved: int = 0
    zones: tuple[NumaZone, ...] = ()
    bind_policy: str = cpu_codecs.NODE_BIND_NONE
    numa_policy: str = cpu_codecs.NUMA_POLICY_NONE
    strategy: str = cpu_codecs.NUMA_LEAST_ALLOCATED
    ratio: float | None = None
    node_ratio: float | None = None
    ratio_error: str = ""
    max_ref_count: int = 1
    unreadable: tuple[str, ...] = ()

    @property
    def zone_numbers(self) -> tuple[int, ...]:
        return tuple(zone.number for zone in self.zones)

    @property
    def all_zones(self) -> BitMask:
        return BitMask.of(*self.zone_numbers)

    @property
    def bindable_cpus(self) -> int:
        """Return the CPUs that pods can be bound to."""
        return 0 if isinstance(self.cpu, InvalidCpuTopology) else self.cpu.cpus & ~self.reserved


def read_topology_options(
    found: NodeResourceTopology | None,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    default_strategy: str = cpu_codecs.NUMA_LEAST_ALLOCATED,
    max_ref_count: int = 1,
) -> TopologyOptions:
    """Read the options. `found` is the node's NodeResourceTopology; labels and annotations are the node's own."""
    ignored: list[str] = []
    given = {} if found is None else found.metadata.annotations or {}
    cpu = (
        InvalidCpuTopology("there is no NodeResourceTopology of this node")
        if found is None
        else parse_cpu_topology(given)
    )
    kubelet = value_or_none(cpu_codecs.parse_cpu_manager_policy(given), ignored)
    reserved = _reserved(given, kubelet, ignored)
    zones = () if found is None else tuple(_zones(found.zones, cpu, reserved, ignored))
    ratios = value_or_none(node_codecs.parse_amplification_ratios(given), ignored)
    own = node_codecs.parse_amplification_ratios(annotations)
    if ratios is None and own and not isinstance(own, MalformedAnnotation):
        # Ratios in the topology mean that its zones are written amplified; those of the node still have to be applied.
        ratios = own
        zones = tuple(NumaZone(zone.number, amplify_all(zone.amounts, own)) for zone in zones)
    return TopologyOptions(
        cpu=cpu,
        reserved=reserved,
        zones=zones,
        bind_policy=_bind_policy(labels, kubelet),
        numa_policy=_numa_policy(labels, found),
        strategy=cpu_codecs.node_numa_allocate_strategy(labels) or default_strategy,
        ratio=(ratios or {}).get(CPU),
        node_ratio=None if isinstance(own, MalformedAnnotation) else (own or {}).get(CPU),
        ratio_error=str(own) if isinstance(own, MalformedAnnotation) else "",
        max_ref_count=max_ref_count,
        unreadable=tuple(ignored),
    )


def _bind_policy(labels: Mapping[str, str], kubelet: cpu_codecs.CPUManagerPolicy | None) -> str:
    stated = cpu_codecs.node_cpu_bind_policy(labels)
    return cpu_codecs.NODE_BIND_FULL_PCPUS_ONLY if kubelet is not None and kubelet.wants_full_cores else stated


def _numa_policy(labels: Mapping[str, str], found: NodeResourceTopology | None) -> str:
    """Return the effective policy. An unknown label counts as none and does not bring the kubelet's policy back."""
    stated = cpu_codecs.node_numa_topology_policy(labels)
    if stated:
        return stated if stated in cpu_codecs.NUMA_TOPOLOGY_POLICIES else cpu_codecs.NUMA_POLICY_NONE
    named = () if found is None else found.topology_policies
    return next((_KUBELET_POLICIES[name] for name in named if name in _KUBELET_POLICIES), cpu_codecs.NUMA_POLICY_NONE)


def _reserved(annotations: Mapping[str, str], kubelet: cpu_codecs.CPUManagerPolicy | None, ignored: list[str]) -> int:
    """Return CPUs that no pod may be bound to: reserved by kubelet or node, or held by exclusive SYSTEM pods."""
    bits = 0
    for pod in value_or_none(cpu_codecs.parse_pod_cpu_allocs(annotations), ignored) or ():
        if pod.managed_by_kubelet and pod.uid and pod.cpuset:
            bits |= _cpus(pod.cpuset, f"cpuset of pod {pod.namespace}/{pod.name}", ignored)
    if kubelet is not None:
        bits |= _cpus(kubelet.reserved_cpus, "reservedCPUs of the kubelet", ignored)
    node = value_or_none(node_codecs.parse_node_reservation(annotations), ignored)
    if node is not None:
        bits |= _cpus(node.reserved_cpus, "reservedCPUs of the node", ignored)
    system = value_or_none(cpu_codecs.parse_system_qos_resource(annotations), ignored)
    if system is not None and system.is_exclusive:
        bits |= _cpus(system.cpuset, "cpuset of SYSTEM pods", ignored)
    return bits


def _cpus(text: str, what: str, ignored: list[str]) -> int:
    try:
        return CPUSet.parse(text).bits
    except CPUSetError as error:
        ignored.append(f"{what}: {error}")
        return 0


def _zones(
    zones: tuple[Zone, ...], cpu: CpuTopology | InvalidCpuTopology, reserved: int, ignored: list[str]
) -> Iterator[NumaZone]:
    found: dict[int, NumaZone] = {}
    for zone in zones:
        number = _zone_number(zone)
        if number is None:
            continue
        if not 0 <= number < WIDTH:
            ignored.append(f"zone {zone.name}: number not in range 0-{WIDTH - 1}")
            continue
        try:
            amounts = {r.name: units(r.name, Quantity.parse(r.allocatable)) for r in zone.resources}
        except QuantityError as error:
            ignored.append(f"zone {zone.name}: {error}")
            continue
        if CPU in amounts and reserved and isinstance(cpu, CpuTopology):
            kept = (cpu.zone_mask(number) & reserved).bit_count()
            amounts[CPU] = max(amounts[CPU] - 1000 * kept, 0)
        found[number] = NumaZone(number, amounts)
    return iter(found[number] for number in sorted(found))


def _zone_number(zone: Zone) -> int | None:
    if zone.type != ZONE_TYPE_NODE:
        return None
    parts = zone.name.split(ZONE_NAME_PREFIX)
    return parse_decimal_int(parts[1]) if len(parts) == 2 else None
