"""A quick "cannot fit" from a few sums of a node, for columns. It never refuses what the allocator would give.

It knows nothing of reservations and victims: a pod that may use either must be asked about by the allocator.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api import device as wire
from koord.api.annotations.device_hint import APPLY_FOR_ALL, REQUESTS_AS_COUNT
from koord.api.resource_name import GPU_MEMORY_RATIO
from koord.policy.device.demand import Demand
from koord.policy.device.inventory import WHOLE
from koord.policy.device.ledger import DeviceLedger

_MEASURE = {wire.GPU: GPU_MEMORY_RATIO, wire.RDMA: "koordinator.sh/rdma", wire.FPGA: "koordinator.sh/fpga"}


class TypeBound(msgspec.Struct, frozen=True):
    listed: int  # devices, healthy or not
    open: int  # with anything left
    whole: int  # with all hundred percents left
    most_left: Mapping[str, int]  # resource -> the most that any one device has left


class NodeBound(msgspec.Struct, frozen=True):
    types: Mapping[str, TypeBound]
    well_planned: bool


_NONE = TypeBound(0, 0, 0, {})


def bound_of(ledger: DeviceLedger) -> NodeBound:
    types = {}
    for device_type in ledger.inventory.cards:
        open_count = whole = 0
        most_left: dict[str, int] = {}
        measure = _MEASURE.get(device_type, "")
        free = ledger.free_of(device_type)
        for left in free.values():
            open_count += any(left.values())
            whole += left.get(measure, 0) >= WHOLE
            for name, amount in left.items():
                if amount > most_left.get(name, 0):
                    most_left[name] = amount
        types[device_type] = TypeBound(len(free), open_count, whole, most_left)
    return NodeBound(types, ledger.inventory.well_planned)


def could_fit(bound: NodeBound, demand: Demand) -> bool:
    """False only when no allocation exists before the pod is placed for good."""
    needed = (demand.joint[0],) if demand.trusts_plan and bound.well_planned else tuple(demand.requests)
    return all(_could_fit(bound.types.get(device_type, _NONE), device_type, demand) for device_type in needed)


def _could_fit(bound: TypeBound, device_type: str, demand: Demand) -> bool:
    if device_type == wire.GPU and demand.gpu is not None:
        each, count = demand.gpu.each, demand.gpu.count
    else:
        ((name, amount),) = demand.requests[device_type].items()
        hint = demand.hint(device_type)
        each, count = {name: amount}, 1
        if amount > WHOLE:
            each, count = {name: WHOLE}, amount // WHOLE
        elif hint.strategy == REQUESTS_AS_COUNT:
            each, count = {name: WHOLE if hint.exclusive_device else 1}, amount
        elif hint.strategy == APPLY_FOR_ALL and hint.selector is None:
            count = max(bound.listed, 1)
    if bound.open < count or any(bound.most_left.get(name, 0) < amount for name, amount in each.items()):
        return False
    return each.get(_MEASURE.get(device_type, ""), 0) < WHOLE or bound.whole >= count
