"""Allocate devices of every requested type on one node, jointly where the pod demands it, or say why not.

Nothing is recorded here: the result goes into the ledger, and `allocated_annotation` writes it for others. NUMA hints
are the part of DeviceShare in aligning CPUs, memory and devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from koord.api.koordinator import scheduling as wire
from koord.scheduler.framework.reservation import NumaTopologyHint
from koord.scheduler.plugins.device_share import node_devices, refusal
from koord.scheduler.plugins.device_share.device_amounts import DeviceAmounts, DeviceScorer, vf_key
from koord.scheduler.plugins.device_share.gpu_selection import GpuNodeLabels, GpuSelectionOptions, select_gpus
from koord.scheduler.plugins.device_share.inventory import DeviceInventory
from koord.scheduler.plugins.device_share.request import DeviceDemand
from koord.scheduler.plugins.device_share.selection import (
    DeviceTypeRequest,
    SelectedDevice,
    requests_on_node,
    select_by_score,
)
from koord.values.bitmask import BitMask, masks_over


class AllocatedDevices(msgspec.Struct, frozen=True):
    devices: Mapping[str, tuple[SelectedDevice, ...]]  # by device type, in the order in which they were chosen

    @property
    def device_amounts(self) -> DeviceAmounts:
        return {kind: {one.card.minor: _held_amounts(one) for one in chosen} for kind, chosen in self.devices.items()}

    def minors(self, device_type: str) -> tuple[int, ...]:
        return tuple(one.card.minor for one in self.devices.get(device_type, ()))


class DeviceAllocateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one allocation. `final`: for good. The last two differ from Koordinator's defaults."""

    scorer: DeviceScorer | None = None  # None: by minor alone
    final: bool = False
    keep_switches_apart: bool = False  # give effect to the PCIeLevel exclusive policy
    best_partitions_first: bool = False  # the highest allocationScore first


DEFAULT_ALLOCATE_OPTIONS = DeviceAllocateOptions()
NO_GPU_LABELS = GpuNodeLabels()


def allocate_devices(
    ledger: node_devices.DeviceLedger,
    demand: DeviceDemand,
    facts: GpuNodeLabels = NO_GPU_LABELS,
    terms: node_devices.DeviceConstraints = node_devices.NO_CONSTRAINTS,
    options: DeviceAllocateOptions = DEFAULT_ALLOCATE_OPTIONS,
) -> AllocatedDevices | refusal.DeviceRefusal:
    wanted = requests_on_node(demand, ledger.inventory, final=options.final)
    if isinstance(wanted, refusal.DeviceRefusal):
        return wanted
    attempt = _Attempt(ledger, demand, facts, terms, options, wanted)
    found = _allocate_jointly(attempt) if len(wanted) > 1 and demand.joint_types else {}
    if isinstance(found, refusal.DeviceRefusal):
        return found
    for device_type in wanted:
        if device_type not in found:
            chosen = attempt.choose(device_type)
            if isinstance(chosen, refusal.DeviceRefusal):
                return chosen
            found[device_type] = chosen
    if not any(found.values()):
        return refusal.DeviceRefusal(
            refusal.DeviceRefusalCode.UNSCHEDULABLE,
            tuple(refusal.insufficient_devices(device_type) for device_type in wanted),
        )
    return AllocatedDevices({kind: tuple(found[kind]) for kind in sorted(found)})


class _Attempt(msgspec.Struct, frozen=True):
    """One allocation attempt on one node: what stays the same from type to type."""

    ledger: node_devices.DeviceLedger
    demand: DeviceDemand
    facts: GpuNodeLabels
    terms: node_devices.DeviceConstraints
    options: DeviceAllocateOptions
    wanted: Mapping[str, DeviceTypeRequest]

    def view(self, device_type: str) -> node_devices.UsableDevices:
        return node_devices.usable_devices(
            self.ledger,
            device_type,
            self.wanted[device_type].hint,
            self.terms,
            keep_switches_apart=self.options.keep_switches_apart,
        )

    def choose(
        self,
        device_type: str,
        *,
        switches: frozenset[str] = frozenset(),
        desired: int | None = None,
        most: int | None = None,
    ) -> list[SelectedDevice] | refusal.DeviceRefusal:
        wanted = self.wanted[device_type]
        preferred = self.terms.preferred.get(device_type, frozenset())
        included = self.terms.included.get(device_type, frozenset())
        if device_type == wire.GPU:
            order = GpuSelectionOptions(
                scorer=self.options.scorer,
                preferred=preferred,
                included=included,
                switches=switches,
                highest_partition_score_first=self.options.best_partitions_first,
            )
            return select_gpus(self.view(device_type), wanted, self.demand, self.ledger.inventory, self.facts, order)
        return select_by_score(
            self.view(device_type),
            wanted,
            self.options.scorer,
            desired=desired,
            most=most,
            preferred=preferred,
            included=included,
            switches=switches,
        )


def _allocate_jointly(attempt: _Attempt) -> dict[str, list[SelectedDevice]] | refusal.DeviceRefusal:
    """Allocate the leading type first; the others follow it to its PCIe switches.

    Each of the others tries to get one device per switch and settles for its own count. SamePCIe requires one
    per switch, with no device elsewhere. GPUs are the exception: no pod gets more of them than it requested.
    """
    demand = attempt.demand
    leading, *following = (kind for kind in demand.joint_types if kind in attempt.wanted)
    first = attempt.choose(leading)
    if isinstance(first, refusal.DeviceRefusal):
        return first
    if not first:
        return refusal.unschedulable(refusal.NO_PRIMARY)
    found = {leading: first}
    switches = frozenset(one.card.pcie for one in first if one.card.pcie is not None)
    for device_type in following:
        count = attempt.wanted[device_type].count
        desired = max(count, len(switches)) if demand.same_pcie else count
        chosen = attempt.choose(device_type, switches=switches, desired=desired, most=max(desired, len(switches)))
        if isinstance(chosen, refusal.DeviceRefusal):
            return chosen
        found[device_type] = chosen
        if demand.same_pcie and len(demand.joint_types) > 1:
            theirs = {one.card.pcie for one in chosen}
            if theirs != switches:  # a device without topology shares no switch
                return refusal.unschedulable(
                    refusal.JOINT_VIOLATED, _joint_near_miss(leading, device_type, switches, theirs)
                )
    return found


def _joint_near_miss(
    leading: str, device_type: str, switches: frozenset[str], theirs: set[str | None]
) -> refusal.DeviceNearMiss:
    missing = ", ".join(sorted(switches - theirs)) or "none"
    return refusal.DeviceNearMiss(
        device_type=device_type,
        wanted=max(len(switches), 1),
        fitting=len(switches & theirs),
        group="PCIe switch",
        best=len(switches & theirs),
        detail=f"{leading} sits on PCIe {', '.join(sorted(switches)) or 'unknown'}; no {device_type} on {missing}",
    )


def _held_amounts(one: SelectedDevice) -> dict[str, int]:
    amounts = {name: amount for name, amount in one.amounts.items() if amount}
    if one.virtual_function is not None:
        amounts[vf_key(one.virtual_function.bus_id)] = 1
    return amounts


# Above any score of CPUs, so that where the GPUs sit decides.
BEST_HINT_SCORE = 500

TrialAllocation: TypeAlias = Callable[[BitMask], AllocatedDevices | refusal.DeviceRefusal]


DeviceNumaHints: TypeAlias = dict[str, tuple[NumaTopologyHint, ...]]


def device_hints(
    demand: DeviceDemand, inventory: DeviceInventory, trial: TrialAllocation
) -> DeviceNumaHints | refusal.DeviceRefusal:
    """Compute hints by device type. `trial` allocates within the given NUMA nodes, with everything else the pod
    may use.

    A set of NUMA nodes scores when it yields the same GPUs that the whole machine would. When even the whole
    machine does not suffice, its refusal is returned. No hint at all means that any NUMA node will do: no
    device states its topology.
    """
    wanted = requests_on_node(demand, inventory)
    if isinstance(wanted, refusal.DeviceRefusal):
        return wanted
    whole = BitMask.of(*inventory.zones)
    everything = _try_zones(whole, wanted, inventory, trial)
    if isinstance(everything, refusal.DeviceRefusal):
        return everything
    if not inventory.zones:
        return {}
    chosen = frozenset(everything.minors(wire.GPU))
    feasible: list[tuple[BitMask, int]] = []
    for zones in masks_over(inventory.zones):
        found = everything if zones == whole else _try_zones(zones, wanted, inventory, trial)
        if isinstance(found, AllocatedDevices):
            feasible.append((zones, BEST_HINT_SCORE if frozenset(found.minors(wire.GPU)) == chosen else 0))
    smallest = min((len(zones) for zones, _ in feasible), default=0)
    hints = tuple(NumaTopologyHint(zones, len(zones) == smallest, score) for zones, score in feasible)
    return dict.fromkeys(wanted, hints)


def designated_hints(inventory: DeviceInventory, designated: DeviceAmounts) -> DeviceNumaHints | refusal.DeviceRefusal:
    """Return the NUMA nodes of devices that are already fixed as the only hint."""
    hints: DeviceNumaHints = {}
    for device_type, minors in sorted(designated.items()):
        zones = BitMask()
        for minor in minors:
            card = inventory.of_type(device_type).get(minor)
            if card is None or card.numa is None:
                return refusal.unschedulable(refusal.NO_ZONE_OF_DESIGNATED)
            zones = zones.set(card.numa)
        hints[device_type] = (NumaTopologyHint(zones, True, BEST_HINT_SCORE),)
    return hints


def _try_zones(
    zones: BitMask, wanted: Mapping[str, DeviceTypeRequest], inventory: DeviceInventory, trial: TrialAllocation
) -> AllocatedDevices | refusal.DeviceRefusal:
    for device_type, want in wanted.items():
        inside = sum(c.placed and (c.numa is None or c.numa in zones) for c in inventory.of_type(device_type).values())
        if inside < want.count:
            nearest = refusal.DeviceNearMiss(device_type=device_type, wanted=want.count, fitting=inside)
            return refusal.unresolvable(refusal.NO_DEVICES_IN_ZONES, nearest)
    return trial(zones)
