"""What one node offers to CPU binding and NUMA placement, read from its NodeResourceTopology and its own metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from koord.api.annotations import (
    amplification,
    cpu_manager_policy,
    node_numa,
    node_reservation,
    numa_topology_spec,
    pod_cpu_allocs,
    system_qos,
)
from koord.api.annotations.codec import Malformed
from koord.api.topology import ZONE_NAME_PREFIX, ZONE_TYPE_NODE, NodeResourceTopology, Zone
from koord.policy.topology.amplification import amplify_all
from koord.policy.topology.cpu_topology import CpuTopology, Invalid, read_topology
from koord.values.bitmask import WIDTH, BitMask
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.quantity import Quantity, QuantityError
from koord.values.quotation import integer
from koord.values.resources import CPU, units

T = TypeVar("T")

# The first of these that the topology names is the node's own policy.
_KUBELET_POLICIES = {
    "BestEffort": numa_topology_spec.BEST_EFFORT,
    "Restricted": numa_topology_spec.RESTRICTED,
    "SingleNUMANodePodLevel": numa_topology_spec.SINGLE_NUMA_NODE,
}


class NumaZone(msgspec.Struct, frozen=True):
    """The allocatable amounts of one NUMA node: milli-cores of cpu, whole units of all else, amplified."""

    number: int
    amounts: Mapping[str, int]


class NodeTopology(msgspec.Struct, frozen=True, kw_only=True):
    """The NUMA and CPU options of one node. `cpu` is invalid when CPUs cannot be bound here.

    `bind_policy`, `numa_policy` and `strategy` are the effective ones, label before kubelet. `ratio` is the
    amplification of cpu in the zones, `node_ratio` that of the node's allocatable; None when nothing is
    amplified. Sources that could not be read are listed.
    """

    cpu: CpuTopology | Invalid
    reserved: int = 0
    zones: tuple[NumaZone, ...] = ()
    bind_policy: str = node_numa.BIND_NONE
    numa_policy: str = numa_topology_spec.NONE
    strategy: str = node_numa.LEAST_ALLOCATED
    ratio: float | None = None
    node_ratio: float | None = None
    ratio_fault: str = ""
    max_ref_count: int = 1
    ignored: tuple[str, ...] = ()

    @property
    def zone_numbers(self) -> tuple[int, ...]:
        return tuple(zone.number for zone in self.zones)

    @property
    def all_zones(self) -> BitMask:
        return BitMask.of(*self.zone_numbers)

    @property
    def usable(self) -> int:
        """Return the CPUs that pods can be bound to."""
        return 0 if isinstance(self.cpu, Invalid) else self.cpu.cpus & ~self.reserved


def node_topology(
    found: NodeResourceTopology | None,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    default_strategy: str = node_numa.LEAST_ALLOCATED,
    max_ref_count: int = 1,
) -> NodeTopology:
    """Read the options. `found` is the node's NodeResourceTopology; labels and annotations are the node's own."""
    ignored: list[str] = []
    given = {} if found is None else found.metadata.annotations or {}
    cpu = Invalid("there is no NodeResourceTopology of this node") if found is None else read_topology(given)
    kubelet = _readable(cpu_manager_policy.parse(given), ignored)
    reserved = _reserved(given, kubelet, ignored)
    zones = () if found is None else tuple(_zones(found.zones, cpu, reserved, ignored))
    ratios = _readable(amplification.parse_ratios(given), ignored)
    own = amplification.parse_ratios(annotations)
    if ratios is None and own and not isinstance(own, Malformed):
        # Ratios in the topology mean that its zones are written amplified; those of the node still have to be applied.
        ratios = own
        zones = tuple(NumaZone(zone.number, amplify_all(zone.amounts, own)) for zone in zones)
    return NodeTopology(
        cpu=cpu,
        reserved=reserved,
        zones=zones,
        bind_policy=_bind_policy(labels, kubelet),
        numa_policy=_numa_policy(labels, found),
        strategy=node_numa.allocate_strategy(labels) or default_strategy,
        ratio=(ratios or {}).get(CPU),
        node_ratio=None if isinstance(own, Malformed) else (own or {}).get(CPU),
        ratio_fault=str(own) if isinstance(own, Malformed) else "",
        max_ref_count=max_ref_count,
        ignored=tuple(ignored),
    )


def _bind_policy(labels: Mapping[str, str], kubelet: cpu_manager_policy.CPUManagerPolicy | None) -> str:
    stated = node_numa.bind_policy(labels)
    return node_numa.FULL_PCPUS_ONLY if kubelet is not None and kubelet.wants_full_cores else stated


def _numa_policy(labels: Mapping[str, str], found: NodeResourceTopology | None) -> str:
    """Return the effective policy. An unknown label counts as none and does not bring the kubelet's policy back."""
    stated = node_numa.topology_policy(labels)
    if stated:
        return stated if stated in numa_topology_spec.POLICIES else numa_topology_spec.NONE
    named = () if found is None else found.topology_policies
    return next((_KUBELET_POLICIES[name] for name in named if name in _KUBELET_POLICIES), numa_topology_spec.NONE)


def _reserved(
    annotations: Mapping[str, str], kubelet: cpu_manager_policy.CPUManagerPolicy | None, ignored: list[str]
) -> int:
    """Return CPUs that no pod may be bound to: reserved by the kubelet or the node, or held by exclusive SYSTEM pods.

    """
    bits = 0
    for pod in _readable(pod_cpu_allocs.parse(annotations), ignored) or ():
        if pod.managed_by_kubelet and pod.uid and pod.cpuset:
            bits |= _cpus(pod.cpuset, f"cpuset of pod {pod.namespace}/{pod.name}", ignored)
    if kubelet is not None:
        bits |= _cpus(kubelet.reserved_cpus, "reservedCPUs of the kubelet", ignored)
    node = _readable(node_reservation.parse(annotations), ignored)
    if node is not None:
        bits |= _cpus(node.reserved_cpus, "reservedCPUs of the node", ignored)
    system = _readable(system_qos.parse(annotations), ignored)
    if system is not None and system.is_exclusive:
        bits |= _cpus(system.cpuset, "cpuset of SYSTEM pods", ignored)
    return bits


def _cpus(text: str, what: str, ignored: list[str]) -> int:
    try:
        return CPUSet.parse(text).bits
    except CPUSetError as error:
        ignored.append(f"{what}: {error}")
        return 0


def _readable(value: T | Malformed | None, ignored: list[str]) -> T | None:
    if isinstance(value, Malformed):
        ignored.append(str(value))
        return None
    return value


def _zones(
    zones: tuple[Zone, ...], cpu: CpuTopology | Invalid, reserved: int, ignored: list[str]
) -> Iterator[NumaZone]:
    found: dict[int, NumaZone] = {}
    for zone in zones:
        number = _number(zone)
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


def _number(zone: Zone) -> int | None:
    if zone.type != ZONE_TYPE_NODE:
        return None
    parts = zone.name.split(ZONE_NAME_PREFIX)
    return integer(parts[1]) if len(parts) == 2 else None
