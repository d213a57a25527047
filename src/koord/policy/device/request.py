"""A pod's device demand: requests in any accepted spelling normalized to one form per device type, GPU
shared resource templates, hints, joint rules and partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from koord.api import device as wire
from koord.api.resource_name import (
    DEPRECATED_DEVICES,
    FPGA,
    GPU,
    GPU_COMBINATIONS,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    RDMA,
    WHOLE_CARDS,
)
from koord.policy.device.holding import Amounts
from koord.policy.device.inventory import WHOLE
from koord.policy.device.refusal import Refusal, unresolvable

_GPU_NAMES = frozenset(name for names in GPU_COMBINATIONS for name in names)
_NAMES = {wire.FPGA: frozenset({FPGA}), wire.GPU: _GPU_NAMES, wire.RDMA: frozenset({RDMA})}  # in order of type
_IN_PERCENT_UNITS = frozenset({GPU, FPGA, RDMA})
_ANY_DEVICE = frozenset().union(*_NAMES.values(), DEPRECATED_DEVICES)
_PER_CARD = (GPU_CORE, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY_RATIO)


class GpuNeed(msgspec.Struct, frozen=True):
    """A request for `count` cards, each with the amounts of `each`."""

    each: Amounts
    count: int
    shared: bool  # only a part of each card


def asks_for_devices(requests: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the requests that name devices, sorted by name; empty for most pods."""
    return tuple(sorted((name, amount) for name, amount in requests.items() if amount and name in _ANY_DEVICE))


def normalised(requests: Mapping[str, int]) -> dict[str, Amounts] | Refusal:
    """Return what is requested by device type, or a refusal for an invalid combination; empty when no device is
    requested.
    """
    asked = {name: amount for name, amount in requests.items() if amount and name in _ANY_DEVICE}
    for old, new in DEPRECATED_DEVICES.items():
        if old in asked and new not in asked:
            asked[new] = asked.pop(old)
    result: dict[str, Amounts] = {}
    for device_type, names in _NAMES.items():
        mine = {name: amount for name, amount in asked.items() if name in names}
        if not mine:
            continue
        checked = _checked(device_type, mine)
        if isinstance(checked, Refusal):
            return checked
        result[device_type] = checked
    return result


def gpu_need(request: Amounts) -> GpuNeed:
    """Compute how many cards a normalized request means, and what it wants of each."""
    ratio = request.get(GPU_MEMORY_RATIO, 0)
    count = request.get(GPU_SHARED, 0)
    if count <= 0:
        count = ratio // WHOLE if ratio > WHOLE and ratio % WHOLE == 0 else 1
    each = {name: request[name] // count for name in _PER_CARD if name in request}
    if GPU_MEMORY in request and GPU_MEMORY_RATIO not in each:
        each[GPU_MEMORY] = request[GPU_MEMORY] // count
    return GpuNeed(each, count, each.get(GPU_MEMORY_RATIO, 0) < WHOLE)


def _checked(device_type: str, asked: dict[str, int]) -> Amounts | Refusal:
    for name in sorted(asked):
        amount = asked[name]
        if name in _IN_PERCENT_UNITS and (amount < 0 or not _percents(amount)):
            return unresolvable(f"invalid resource unit {name}: {amount}")
    if device_type != wire.GPU:
        return asked
    names = frozenset(asked)
    if names not in GPU_COMBINATIONS or min(asked.values()) < 0 or not _RULES.get(names, _anything)(asked):
        return unresolvable(f"invalid resource device requests: [{' '.join(sorted(asked))}]")
    for name in WHOLE_CARDS:
        if name in asked:
            return {GPU_CORE: asked[name] * WHOLE, GPU_MEMORY_RATIO: asked[name] * WHOLE}
    if GPU in asked:
        return {GPU_CORE: asked[GPU], GPU_MEMORY_RATIO: asked[GPU]}
    return asked


def _percents(amount: int) -> bool:
    """Return whether the amount is a part of one card or a whole number of cards."""
    return amount <= WHOLE or amount % WHOLE == 0


def _anything(asked: Amounts) -> bool:
    return True


def _in_percents(*names: str) -> Callable[[Amounts], bool]:
    return lambda asked: all(_percents(asked[name]) for name in names)


def _divided(*names: str) -> Callable[[Amounts], bool]:
    """Require equal parts on each of the shared cards, none larger than one card."""

    def rule(asked: Amounts) -> bool:
        count = asked[GPU_SHARED]
        return all(asked[name] % count == 0 and asked[name] // count <= WHOLE for name in names)

    return rule


def _one_npu(asked: Amounts) -> bool:
    return asked[GPU_SHARED] <= 1 and asked.get(NPU_DVPP, 0) <= WHOLE


_RULES: dict[frozenset[str], Callable[[Amounts], bool]] = {
    frozenset({GPU_MEMORY_RATIO}): _in_percents(GPU_MEMORY_RATIO),
    frozenset({GPU_CORE, GPU_MEMORY}): _in_percents(GPU_CORE),
    frozenset({GPU_CORE, GPU_MEMORY_RATIO}): _in_percents(GPU_CORE, GPU_MEMORY_RATIO),
    frozenset({NPU_CORE, GPU_MEMORY_RATIO}): _in_percents(GPU_MEMORY_RATIO),
    frozenset({GPU_SHARED, GPU_MEMORY_RATIO}): _divided(GPU_MEMORY_RATIO),
    frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY}): _divided(GPU_CORE),
    frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY_RATIO}): _divided(GPU_CORE, GPU_MEMORY_RATIO),
    frozenset({GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY}): _one_npu,
    frozenset({GPU_SHARED, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY}): _one_npu,
}
