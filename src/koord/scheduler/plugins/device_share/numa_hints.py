"""NUMA hints of devices: the part of DeviceShare in aligning CPUs, memory and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from koord.api.koordinator import device as wire
from koord.scheduler.framework.numa_hint import NumaTopologyHint
from koord.scheduler.plugins.device_share import refusal
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices
from koord.scheduler.plugins.device_share.device_amounts import DeviceAmounts
from koord.scheduler.plugins.device_share.inventory import DeviceInventory
from koord.scheduler.plugins.device_share.request import DeviceDemand
from koord.scheduler.plugins.device_share.selection import DeviceTypeRequest, requests_on_node
from koord.values.bitmask import BitMask, masks_over

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
