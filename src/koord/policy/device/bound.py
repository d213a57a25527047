"""A quick "cannot fit" from a few numbers of a node, fit for columns. It never refuses what the allocator would give.

It knows nothing of reservations and victims: a pod that may use either must be asked about by the allocator.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api import device as wire
from koord.api.annotations.device_hint import REQUESTS_AS_COUNT
from koord.api.resource_name import (
    FPGA,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    RDMA,
)
from koord.policy.device.demand import Demand
from koord.policy.device.holding import Amounts
from koord.policy.device.inventory import KNOWN_TYPES, WHOLE
from koord.policy.device.ledger import DeviceLedger

_MEASURE = {wire.GPU: GPU_MEMORY_RATIO, wire.RDMA: RDMA, wire.FPGA: FPGA}
_RESOURCES = (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, NPU_CORE, NPU_CPU, NPU_DVPP, RDMA, FPGA)


def open_column(device_type: str) -> str:
    """How many devices have anything left."""
    return f"{device_type}/open"


def whole_column(device_type: str) -> str:
    """How many devices have all their hundred percents left."""
    return f"{device_type}/whole"


# A resource's own name is the column of the most that any one device has left of it.
COLUMNS = (*(column(kind) for kind in KNOWN_TYPES for column in (open_column, whole_column)), *_RESOURCES)


class Threshold(msgspec.Struct, frozen=True):
    """The pod fits only where the column is at least `minimum`, or, if `planned`, where network cards are planned."""

    column: str
    minimum: int
    planned: bool = False


def bound_of(ledger: DeviceLedger) -> dict[str, int]:
    """The node's numbers, all columns."""
    row = dict.fromkeys(COLUMNS, 0)
    for device_type in ledger.inventory.cards:
        if device_type not in _MEASURE:
            continue
        measure = _MEASURE[device_type]
        for left in ledger.free_of(device_type).values():
            row[open_column(device_type)] += any(left.values())
            row[whole_column(device_type)] += left.get(measure, 0) >= WHOLE
            for name, amount in left.items():
                if amount > row.get(name, amount):
                    row[name] = amount
    return row


def thresholds(demand: Demand) -> tuple[Threshold, ...]:
    """What the numbers of a node must reach for the pod, worked out once per pod."""
    result: list[Threshold] = []
    for device_type in demand.requests:
        planned = demand.trusts_plan and device_type != demand.joint[0]
        each, count = _least(device_type, demand)
        result.append(Threshold(open_column(device_type), count, planned))
        result += [Threshold(name, amount, planned) for name, amount in each.items()]
        if each.get(_MEASURE[device_type], 0) >= WHOLE:
            result.append(Threshold(whole_column(device_type), count, planned))
    return tuple(result)


def could_fit(row: Mapping[str, int], demanded: tuple[Threshold, ...], *, well_planned: bool = False) -> bool:
    return all(row[t.column] >= t.minimum or (t.planned and well_planned) for t in demanded)


def _least(device_type: str, demand: Demand) -> tuple[Amounts, int]:
    if device_type == wire.GPU and demand.gpu is not None:
        return demand.gpu.each, demand.gpu.count
    ((name, amount),) = demand.requests[device_type].items()
    hint = demand.hint(device_type)
    if amount > WHOLE:
        return {name: WHOLE}, amount // WHOLE
    if hint.strategy == REQUESTS_AS_COUNT:
        return {name: WHOLE if hint.exclusive_device else 1}, amount
    return {name: amount}, 1  # applied to all, it is at least one
