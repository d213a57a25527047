"""The devices of one type that a pod may use now, with what is free on each.

The view narrows the ledger by NUMA nodes, labels and a reservation's own devices, and widens it by what
others will release.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.scheduler.plugins.device_share.device_amounts import (
    NO_AMOUNTS,
    NO_DEVICE_AMOUNTS,
    NO_MINORS,
    Amounts,
    DeviceAmounts,
    vf_key,
)
from koord.scheduler.plugins.device_share.inventory import Card, CardVirtualFunction
from koord.scheduler.plugins.device_share.ledger import DeviceLedger, remaining_amounts
from koord.scheduler.plugins.device_share.request import DeviceTypeHint
from koord.values.bitmask import BitMask


class DeviceConstraints(msgspec.Struct, frozen=True, kw_only=True):
    """Constraints under which devices are selected.

    `reusable` amounts will be released by others. `required`, for the types that it names, is all that may be
    used. `preferred` devices come first where only order decides. `included` devices must all be among the
    selected ones.
    """

    zones: BitMask | None = None
    reusable: DeviceAmounts = NO_DEVICE_AMOUNTS
    required: DeviceAmounts | None = None
    preferred: Mapping[str, frozenset[int]] = {}
    included: Mapping[str, frozenset[int]] = {}


NO_CONSTRAINTS = DeviceConstraints()


class UsableDevices(msgspec.Struct, frozen=True):
    type: str
    cards: Mapping[int, Card]  # that may be used, by minor ascending
    free: Mapping[int, Amounts]
    held: Mapping[int, Amounts]  # what stays in use on them, virtual functions included
    used_mask: int  # minors in use, also of devices outside the view
    healthy_mask: int
    reserved_only: Mapping[int, Amounts] | None  # what a required map leaves of each

    def free_virtual_function(self, minor: int, hint: DeviceTypeHint) -> CardVirtualFunction | None:
        """Return the first free virtual function, by bus id, that the pod's selector matches."""
        taken = self.held.get(minor, NO_AMOUNTS)
        only = None if self.reserved_only is None else self.reserved_only.get(minor, NO_AMOUNTS)
        for function in self.cards[minor].virtual_functions:
            key = vf_key(function.bus_id)
            if taken.get(key, 0) > 0 or (only is not None and key not in only):
                continue
            if hint.vf_selector is None or hint.vf_selector.matches(function.labels):
                return function
        return None


def usable_devices(
    ledger: DeviceLedger,
    device_type: str,
    hint: DeviceTypeHint,
    terms: DeviceConstraints,
    *,
    keep_switches_apart: bool = False,
) -> UsableDevices:
    """Build the view of one device type. `keep_switches_apart` enforces the PCIeLevel exclusive policy."""
    used = ledger.used_by_type(device_type)
    reusable = terms.reusable.get(device_type, NO_MINORS)
    only = None if terms.required is None else terms.required.get(device_type)
    zones, selector = terms.zones, hint.selector
    cards: dict[int, Card] = {}
    free: dict[int, Amounts] = {}
    taken: dict[int, Amounts] = {}
    used_mask = healthy_mask = 0
    for minor, card in ledger.inventory.of_type(device_type).items():
        held = used.get(minor, NO_AMOUNTS)
        if (
            (only is not None and minor not in only)
            or (zones is not None and not (card.placed and (card.numa is None or card.numa in zones)))
            or (selector is not None and not selector.matches(card.labels))
        ):
            if held:
                used_mask |= 1 << minor
            continue
        if minor in reusable:
            held = _still_held(held, reusable[minor])
        room = remaining_amounts(card.total, held)
        if only is not None:
            cap = card.with_both_memory_units(only[minor])
            room = {name: min(amount, cap.get(name, 0)) for name, amount in room.items()}
        cards[minor] = card
        free[minor] = room
        if held:
            taken[minor] = held
        if card.healthy:
            healthy_mask |= 1 << minor
        elif held:  # it has no amounts to be missing, and its pods still run there
            used_mask |= 1 << minor
        if room is not card.total and any(room[name] < amount for name, amount in card.total.items()):
            used_mask |= 1 << minor
    if keep_switches_apart and hint.exclusive_switch:
        busy = {card.pcie for minor, card in ledger.inventory.of_type(device_type).items() if used_mask >> minor & 1}
        cards = {minor: card for minor, card in cards.items() if card.pcie is not None and card.pcie not in busy}
        free = {minor: free[minor] for minor in cards}
        healthy_mask &= sum(1 << minor for minor in cards)
    return UsableDevices(device_type, cards, free, taken, used_mask, healthy_mask, only)


def _still_held(held: Amounts, given_up: Amounts) -> dict[str, int]:
    """Return what stays in use. A released amount may be negative when a pod was counted in beforehand."""
    names = {*held, *given_up}
    return {name: rest for name in names if (rest := held.get(name, 0) - given_up.get(name, 0)) > 0}
