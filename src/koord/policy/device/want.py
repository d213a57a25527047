"""Compute how many devices of each type a pod's request means on one node, and what it requests of each."""

from __future__ import annotations

from koord.api import device as wire
from koord.api.annotations.device_hint import APPLY_FOR_ALL, REQUESTS_AS_COUNT
from koord.policy.device.choice import Wanted
from koord.policy.device.demand import Demand
from koord.policy.device.holding import Amounts
from koord.policy.device.inventory import WHOLE, DeviceInventory
from koord.policy.device.refusal import Nearest, Refusal, insufficient, insufficient_functions, unresolvable


def types_to_place(demand: Demand, inventory: DeviceInventory, *, final: bool) -> tuple[str, ...]:
    """Return the device types to select. On a planned layout network cards are only checked in the `final` allocation.

    """
    if demand.trusts_plan and inventory.well_planned and not final:
        return (demand.joint[0],)
    return tuple(demand.requests)


def wants(demand: Demand, inventory: DeviceInventory, *, final: bool = False) -> dict[str, Wanted] | Refusal:
    result: dict[str, Wanted] = {}
    for device_type in types_to_place(demand, inventory, final=final):
        wanted = _wanted(device_type, demand, inventory)
        if isinstance(wanted, Refusal):
            return wanted
        result[device_type] = wanted
    return result


def _wanted(device_type: str, demand: Demand, inventory: DeviceInventory) -> Wanted | Refusal:
    cards = inventory.of(device_type)
    hint = demand.hint(device_type)
    if not cards:
        return unresolvable(insufficient(device_type), Nearest(device_type=device_type, wanted=1, fitting=0))
    found = per_device(device_type, demand)
    if found is None:
        matching = sum(hint.selector is None or hint.selector.matches(card.labels) for card in cards.values())
        found = demand.requests[device_type], matching
    each, count = found
    if count == 0:
        detail = "no device has the labels asked for"
        return unresolvable(
            insufficient(device_type), Nearest(device_type=device_type, wanted=1, fitting=0, detail=detail)
        )
    if hint.function_selector is not None and not any(card.functions for card in cards.values()):
        detail = "no device has virtual functions"
        return unresolvable(
            insufficient_functions(device_type),
            Nearest(device_type=device_type, wanted=count, fitting=0, detail=detail),
        )
    return Wanted(type=device_type, each=each, count=count, hint=hint)


def per_device(device_type: str, demand: Demand) -> tuple[Amounts, int] | None:
    """Return the amounts per device and the number of devices; None when all devices of the node are requested."""
    if device_type == wire.GPU and demand.gpu is not None:
        return demand.gpu.each, demand.gpu.count
    hint = demand.hint(device_type)
    request = demand.requests[device_type]
    ((name, amount),) = request.items()
    if amount > WHOLE and amount % WHOLE == 0:
        return {name: WHOLE}, amount // WHOLE
    if hint.strategy == APPLY_FOR_ALL:
        return None
    if hint.strategy == REQUESTS_AS_COUNT:
        return {name: WHOLE if hint.exclusive_device else 1}, amount
    return request, 1
