"""How many devices of each type a pod's request means on one node, and what it wants of each."""

from __future__ import annotations

from koord.api import device as wire
from koord.api.annotations.device_hint import APPLY_FOR_ALL, REQUESTS_AS_COUNT
from koord.policy.device.choice import Wanted
from koord.policy.device.demand import Demand, Hint
from koord.policy.device.holding import Amounts
from koord.policy.device.inventory import WHOLE, DeviceInventory
from koord.policy.device.refusal import Nearest, Refusal, insufficient, insufficient_functions, unresolvable


def types_to_place(demand: Demand, inventory: DeviceInventory, *, final: bool) -> tuple[str, ...]:
    """Where network cards are planned to match the GPUs they are only looked at in the `final` choice."""
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
    if device_type == wire.GPU and demand.gpu is not None:
        each, count = demand.gpu.each, demand.gpu.count
    else:
        each, count = _instances(demand.requests[device_type], hint, device_type, inventory)
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


def _instances(request: Amounts, hint: Hint, device_type: str, inventory: DeviceInventory) -> tuple[Amounts, int]:
    ((name, amount),) = request.items()
    if amount > WHOLE and amount % WHOLE == 0:
        return {name: WHOLE}, amount // WHOLE
    if hint.strategy == APPLY_FOR_ALL:
        cards = inventory.of(device_type).values()
        return request, sum(hint.selector is None or hint.selector.matches(card.labels) for card in cards)
    if hint.strategy == REQUESTS_AS_COUNT:
        return {name: WHOLE if hint.exclusive_device else 1}, amount
    return request, 1
