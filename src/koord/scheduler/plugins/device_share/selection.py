"""Select devices for a pod: its request by type on this node, what fits on a card, the choice by score and minor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.annotations.device_codecs import APPLY_FOR_ALL, REQUESTS_AS_COUNT
from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.resource_name import GPU_MEMORY
from koord.scheduler.plugins.device_share import refusal
from koord.scheduler.plugins.device_share.device_amounts import Amounts, DeviceScorer, pooled_score
from koord.scheduler.plugins.device_share.inventory import FULL_CARD_PERCENT, Card, CardVirtualFunction, DeviceInventory
from koord.scheduler.plugins.device_share.node_devices import (
    NO_CONSTRAINTS,
    DeviceConstraints,
    DeviceLedger,
    UsableDevices,
    usable_devices,
)
from koord.scheduler.plugins.device_share.request import DeviceDemand, DeviceTypeHint


class DeviceTypeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for `count` devices of one type, each with the amounts of `each`."""

    type: str
    each: Amounts
    count: int
    hint: DeviceTypeHint

    @property
    def needs_virtual_function(self) -> bool:
        return self.hint.vf_selector is not None


class SelectedDevice(msgspec.Struct, frozen=True, kw_only=True):
    card: Card
    amounts: Amounts
    virtual_function: CardVirtualFunction | None = None
    template: str = ""


def fitting_devices(view: UsableDevices, wanted: DeviceTypeRequest) -> dict[int, Amounts]:
    """Return the devices that could each serve one instance, with the amounts that it would take there."""
    result: dict[int, Amounts] = {}
    shares: dict[int, Amounts] = {}  # cards of a node are mostly alike
    for minor, free in view.free.items():
        card = view.cards[minor]
        if not card.total:
            continue
        memory = card.total.get(GPU_MEMORY, 0)
        share = shares.get(memory)
        if share is None:
            share = shares[memory] = card.with_both_memory_units(wanted.each)
        # A derived amount counts where the card has the resource; a requested one must be there.
        if all(free.get(name, 0) >= amount for name, amount in share.items() if name in free or name in wanted.each):
            result[minor] = share
    return result


def select_minors(view: UsableDevices, minors: Iterable[int], shares: Mapping[int, Amounts]) -> list[SelectedDevice]:
    return [SelectedDevice(card=view.cards[minor], amounts=shares[minor]) for minor in minors]


def select_by_score(
    view: UsableDevices,
    wanted: DeviceTypeRequest,
    scorer: DeviceScorer | None,
    *,
    desired: int | None = None,
    most: int | None = None,
    preferred: frozenset[int] = frozenset(),
    included: frozenset[int] = frozenset(),
    switches: frozenset[str] = frozenset(),
) -> list[SelectedDevice] | refusal.DeviceRefusal:
    """Select at least `desired` devices and up to `most`, by best score and then by minor, with the included
    ones in any case.

    Preferred devices come before all others. Failing these, one device of each preferred PCIe switch, then a
    second of each, and so on, come first.
    """
    desired = wanted.count if desired is None else desired
    most = desired if most is None else most
    shares = fitting_devices(view, wanted)
    functions = _free_virtual_functions(view, wanted, shares)
    usable = list(shares) if functions is None else list(functions)
    if len(usable) < desired or len(included) > most or not included.issubset(usable):
        return refusal.unschedulable(
            refusal.insufficient_devices(wanted.type), _near_miss(view, wanted, desired, len(usable), len(shares))
        )
    ordered = _order_minors(usable, view, wanted, scorer, preferred, switches)
    if included:
        ordered.sort(key=lambda minor: minor not in included)  # stable
    return [
        SelectedDevice(
            card=view.cards[m], amounts=shares[m], virtual_function=None if functions is None else functions[m]
        )
        for m in ordered[:most]
    ]


def _free_virtual_functions(
    view: UsableDevices, wanted: DeviceTypeRequest, minors: Iterable[int]
) -> dict[int, CardVirtualFunction] | None:
    if not wanted.needs_virtual_function:
        return None
    found = ((minor, view.free_virtual_function(minor, wanted.hint)) for minor in minors)
    return {minor: function for minor, function in found if function is not None}


def _order_minors(
    minors: list[int],
    view: UsableDevices,
    wanted: DeviceTypeRequest,
    scorer: DeviceScorer | None,
    preferred: frozenset[int],
    switches: frozenset[str],
) -> list[int]:
    if scorer is not None:
        scores = {m: scorer.score(wanted.each, view.cards[m].total, view.free[m]) for m in minors}
        minors.sort(key=lambda m: (-scores[m], m))
    if preferred:
        return [m for m in minors if m in preferred] + [m for m in minors if m not in preferred]
    if not switches:
        return minors
    turn: dict[int, int] = {}  # minor -> its place among the devices of its switch
    seen: dict[str, int] = {}
    for minor in minors:
        pcie = view.cards[minor].pcie
        if pcie in switches and pcie is not None:
            turn[minor] = seen[pcie] = seen.get(pcie, -1) + 1
    last = len(minors)
    return sorted(minors, key=lambda m: turn.get(m, last))  # a stable sort: each round stays best first


def _near_miss(
    view: UsableDevices, wanted: DeviceTypeRequest, desired: int, found: int, with_room: int
) -> refusal.DeviceNearMiss:
    detail = ""
    if wanted.needs_virtual_function and with_room > found:
        detail = f"{with_room - found} more have room but no virtual function left"
    return refusal.DeviceNearMiss(
        device_type=wanted.type,
        wanted=desired,
        fitting=found,
        unhealthy=sum(not card.healthy for card in view.cards.values()),
        detail=detail,
    )


def types_to_select(demand: DeviceDemand, inventory: DeviceInventory, *, final: bool) -> tuple[str, ...]:
    """Return the device types to select. On a planned layout network cards are checked in the `final` one."""
    if demand.trusts_planned_layout and inventory.has_planned_secondary_devices and not final:
        return (demand.joint_types[0],)
    return tuple(demand.requests)


def requests_on_node(
    demand: DeviceDemand, inventory: DeviceInventory, *, final: bool = False
) -> dict[str, DeviceTypeRequest] | refusal.DeviceRefusal:
    result: dict[str, DeviceTypeRequest] = {}
    for device_type in types_to_select(demand, inventory, final=final):
        wanted = _request_on_node(device_type, demand, inventory)
        if isinstance(wanted, refusal.DeviceRefusal):
            return wanted
        result[device_type] = wanted
    return result


def _request_on_node(
    device_type: str, demand: DeviceDemand, inventory: DeviceInventory
) -> DeviceTypeRequest | refusal.DeviceRefusal:
    cards = inventory.of_type(device_type)
    hint = demand.hint(device_type)
    if not cards:
        return refusal.unresolvable(
            refusal.insufficient_devices(device_type),
            refusal.DeviceNearMiss(device_type=device_type, wanted=1, fitting=0),
        )
    found = per_device_amounts(device_type, demand)
    if found is None:
        matching = sum(hint.selector is None or hint.selector.matches(card.labels) for card in cards.values())
        found = demand.requests[device_type], matching
    each, count = found
    if count == 0:
        detail = "no device has the labels asked for"
        return refusal.unresolvable(
            refusal.insufficient_devices(device_type),
            refusal.DeviceNearMiss(device_type=device_type, wanted=1, fitting=0, detail=detail),
        )
    if hint.vf_selector is not None and not any(card.virtual_functions for card in cards.values()):
        detail = "no device has virtual functions"
        return refusal.unresolvable(
            refusal.insufficient_vfs(device_type),
            refusal.DeviceNearMiss(device_type=device_type, wanted=count, fitting=0, detail=detail),
        )
    return DeviceTypeRequest(type=device_type, each=each, count=count, hint=hint)


def per_device_amounts(device_type: str, demand: DeviceDemand) -> tuple[Amounts, int] | None:
    """Return the amounts per device and the number of devices; None when all devices of the node are requested."""
    if device_type == wire.GPU and demand.gpu is not None:
        return demand.gpu.each, demand.gpu.count
    hint = demand.hint(device_type)
    request = demand.requests[device_type]
    ((name, amount),) = request.items()
    if amount > FULL_CARD_PERCENT and amount % FULL_CARD_PERCENT == 0:
        return {name: FULL_CARD_PERCENT}, amount // FULL_CARD_PERCENT
    if hint.strategy == APPLY_FOR_ALL:
        return None
    if hint.strategy == REQUESTS_AS_COUNT:
        return {name: FULL_CARD_PERCENT if hint.exclusive_device else 1}, amount
    return request, 1


def score_node_devices(
    ledger: DeviceLedger, demand: DeviceDemand, scorer: DeviceScorer, terms: DeviceConstraints = NO_CONSTRAINTS
) -> int:
    """Return the sum of the scores of the requested types, not yet scaled to 100."""
    wanted = requests_on_node(demand, ledger.inventory)
    if isinstance(wanted, refusal.DeviceRefusal):
        return 0
    total = 0
    for device_type, want in wanted.items():
        view = usable_devices(ledger, device_type, want.hint, terms)
        total += pooled_score(scorer, want.each, ((c.total, view.free[m]) for m, c in view.cards.items()))
    return total
