"""NUMA hints of devices: the part of DeviceShare in aligning CPUs, memory and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from koord.api import device as wire
from koord.policy.device.allocator import Allocation
from koord.policy.device.choice import Wanted
from koord.policy.device.demand import Demand
from koord.policy.device.holding import Holdings
from koord.policy.device.inventory import DeviceInventory
from koord.policy.device.refusal import (
    NO_DEVICES_IN_ZONES,
    NO_ZONE_OF_DESIGNATED,
    Nearest,
    Refusal,
    unresolvable,
    unschedulable,
)
from koord.policy.device.want import wants
from koord.values.bitmask import BitMask, masks_over

# Above any score of CPUs, so that where the GPUs sit decides.
BEST = 500

Trial: TypeAlias = Callable[[BitMask], Allocation | Refusal]


class NumaHint(msgspec.Struct, frozen=True):
    zones: BitMask
    preferred: bool
    score: int


Hints: TypeAlias = dict[str, tuple[NumaHint, ...]]


def device_hints(demand: Demand, inventory: DeviceInventory, trial: Trial) -> Hints | Refusal:
    """Compute hints by device type. `trial` allocates within the given NUMA nodes, with everything else the pod
    may use.

    A set of NUMA nodes scores when it yields the same GPUs that the whole machine would. When even the whole
    machine does not suffice, its refusal is returned. No hint at all means that any NUMA node will do: no
    device states its topology.
    """
    wanted = wants(demand, inventory)
    if isinstance(wanted, Refusal):
        return wanted
    whole = BitMask.of(*inventory.zones)
    everything = _try(whole, wanted, inventory, trial)
    if isinstance(everything, Refusal):
        return everything
    if not inventory.zones:
        return {}
    chosen = frozenset(everything.minors(wire.GPU))
    feasible: list[tuple[BitMask, int]] = []
    for zones in masks_over(inventory.zones):
        found = everything if zones == whole else _try(zones, wanted, inventory, trial)
        if isinstance(found, Allocation):
            feasible.append((zones, BEST if frozenset(found.minors(wire.GPU)) == chosen else 0))
    smallest = min((len(zones) for zones, _ in feasible), default=0)
    hints = tuple(NumaHint(zones, len(zones) == smallest, score) for zones, score in feasible)
    return dict.fromkeys(wanted, hints)


def designated_hints(inventory: DeviceInventory, designated: Holdings) -> Hints | Refusal:
    """Return the NUMA nodes of devices that are already fixed as the only hint."""
    hints: Hints = {}
    for device_type, minors in sorted(designated.items()):
        zones = BitMask()
        for minor in minors:
            card = inventory.of(device_type).get(minor)
            if card is None or card.numa is None:
                return unschedulable(NO_ZONE_OF_DESIGNATED)
            zones = zones.set(card.numa)
        hints[device_type] = (NumaHint(zones, True, BEST),)
    return hints


def _try(
    zones: BitMask, wanted: Mapping[str, Wanted], inventory: DeviceInventory, trial: Trial
) -> Allocation | Refusal:
    for device_type, want in wanted.items():
        inside = sum(c.placed and (c.numa is None or c.numa in zones) for c in inventory.of(device_type).values())
        if inside < want.count:
            nearest = Nearest(device_type=device_type, wanted=want.count, fitting=inside)
            return unresolvable(NO_DEVICES_IN_ZONES, nearest)
    return trial(zones)
