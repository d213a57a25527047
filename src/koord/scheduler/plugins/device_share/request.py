"""A pod's device demand: requests in any accepted spelling normalized to one form per device type, GPU
shared resource templates, hints, joint rules and partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from koord.api.annotations import device_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.protocol import L_GPU_ISOLATION_PROVIDER
from koord.api.koordinator.resource_name import (
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
from koord.api.kubernetes.meta import label_selector_as_selector
from koord.scheduler.plugins.device_share import refusal
from koord.scheduler.plugins.device_share.device_amounts import Amounts
from koord.scheduler.plugins.device_share.inventory import FULL_CARD_PERCENT
from koord.values import resources as vector
from koord.values.quantity import Quantity, QuantityError
from koord.values.selector import Selector, SelectorError

_GPU_NAMES = frozenset(name for names in GPU_COMBINATIONS for name in names)
_NAMES = {wire.FPGA: frozenset({FPGA}), wire.GPU: _GPU_NAMES, wire.RDMA: frozenset({RDMA})}  # in order of type
_IN_PERCENT_UNITS = frozenset({GPU, FPGA, RDMA})
_ANY_DEVICE = frozenset().union(*_NAMES.values(), DEPRECATED_DEVICES)
_PER_CARD = (GPU_CORE, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY_RATIO)


class GpuRequest(msgspec.Struct, frozen=True):
    """A request for `count` cards, each with the amounts of `each`."""

    each: Amounts
    count: int
    shared: bool  # only a part of each card


def device_requests(requests: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the requests that name devices, sorted by name; empty for most pods."""
    return tuple(sorted((name, amount) for name, amount in requests.items() if amount and name in _ANY_DEVICE))


def normalize_requests(requests: Mapping[str, int]) -> dict[str, Amounts] | refusal.DeviceRefusal:
    """Return what is requested by device type, or a refusal of an invalid combination; empty without devices."""
    asked = {name: amount for name, amount in requests.items() if amount and name in _ANY_DEVICE}
    for old, new in DEPRECATED_DEVICES.items():
        if old in asked and new not in asked:
            asked[new] = asked.pop(old)
    result: dict[str, Amounts] = {}
    for device_type, names in _NAMES.items():
        mine = {name: amount for name, amount in asked.items() if name in names}
        if not mine:
            continue
        checked = _validated(device_type, mine)
        if isinstance(checked, refusal.DeviceRefusal):
            return checked
        result[device_type] = checked
    return result


def gpu_request_of(request: Amounts) -> GpuRequest:
    """Compute how many cards a normalized request means, and what it wants of each."""
    ratio = request.get(GPU_MEMORY_RATIO, 0)
    count = request.get(GPU_SHARED, 0)
    if count <= 0:
        count = ratio // FULL_CARD_PERCENT if ratio > FULL_CARD_PERCENT and ratio % FULL_CARD_PERCENT == 0 else 1
    each = {name: request[name] // count for name in _PER_CARD if name in request}
    if GPU_MEMORY in request and GPU_MEMORY_RATIO not in each:
        each[GPU_MEMORY] = request[GPU_MEMORY] // count
    return GpuRequest(each, count, each.get(GPU_MEMORY_RATIO, 0) < FULL_CARD_PERCENT)


def _validated(device_type: str, asked: dict[str, int]) -> Amounts | refusal.DeviceRefusal:
    for name in sorted(asked):
        amount = asked[name]
        if name in _IN_PERCENT_UNITS and (amount < 0 or not _is_valid_percent(amount)):
            return refusal.unresolvable(f"invalid resource unit {name}: {amount}")
    if device_type != wire.GPU:
        return asked
    names = frozenset(asked)
    if names not in GPU_COMBINATIONS or min(asked.values()) < 0 or not _RULES.get(names, _always_valid)(asked):
        return refusal.unresolvable(f"invalid resource device requests: [{' '.join(sorted(asked))}]")
    for name in WHOLE_CARDS:
        if name in asked:
            return {GPU_CORE: asked[name] * FULL_CARD_PERCENT, GPU_MEMORY_RATIO: asked[name] * FULL_CARD_PERCENT}
    if GPU in asked:
        return {GPU_CORE: asked[GPU], GPU_MEMORY_RATIO: asked[GPU]}
    return asked


def _is_valid_percent(amount: int) -> bool:
    """Return whether the amount is a part of one card or a whole number of cards."""
    return amount <= FULL_CARD_PERCENT or amount % FULL_CARD_PERCENT == 0


def _always_valid(asked: Amounts) -> bool:
    return True


def _in_percents(*names: str) -> Callable[[Amounts], bool]:
    return lambda asked: all(_is_valid_percent(asked[name]) for name in names)


def _evenly_shared(*names: str) -> Callable[[Amounts], bool]:
    """Require equal parts on each of the shared cards, none larger than one card."""

    def rule(asked: Amounts) -> bool:
        count = asked[GPU_SHARED]
        return all(asked[name] % count == 0 and asked[name] // count <= FULL_CARD_PERCENT for name in names)

    return rule


def _one_npu(asked: Amounts) -> bool:
    return asked[GPU_SHARED] <= 1 and asked.get(NPU_DVPP, 0) <= FULL_CARD_PERCENT


_RULES: dict[frozenset[str], Callable[[Amounts], bool]] = {
    frozenset({GPU_MEMORY_RATIO}): _in_percents(GPU_MEMORY_RATIO),
    frozenset({GPU_CORE, GPU_MEMORY}): _in_percents(GPU_CORE),
    frozenset({GPU_CORE, GPU_MEMORY_RATIO}): _in_percents(GPU_CORE, GPU_MEMORY_RATIO),
    frozenset({NPU_CORE, GPU_MEMORY_RATIO}): _in_percents(GPU_MEMORY_RATIO),
    frozenset({GPU_SHARED, GPU_MEMORY_RATIO}): _evenly_shared(GPU_MEMORY_RATIO),
    frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY}): _evenly_shared(GPU_CORE),
    frozenset({GPU_SHARED, GPU_CORE, GPU_MEMORY_RATIO}): _evenly_shared(GPU_CORE, GPU_MEMORY_RATIO),
    frozenset({GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY}): _one_npu,
    frozenset({GPU_SHARED, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY}): _one_npu,
}


TemplateCandidates = Mapping[str, tuple[str, ...]]  # "<vendor>-<model>" -> names of the templates that match


class GpuTemplates(msgspec.Struct, frozen=True):
    """The configured templates. A request that names a resource in `matched` must equal a template exactly."""

    by_model: Mapping[str, Mapping[str, Amounts]] = {}
    matched: frozenset[str] = frozenset()


def parse_templates(document: object, matched: Collection[str]) -> GpuTemplates | str:
    """Parse the decoded `data.yaml` of the ConfigMap; a returned text says what is wrong with it."""
    if document is None:
        return GpuTemplates({}, frozenset(matched))
    try:
        listed = msgspec.convert(document, dict[str, dict[str, dict[str, str | int | float]]])
        by_model = {
            key: {name: vector.to_units(vector.parse(resources)) for name, resources in templates.items()}
            for key, templates in listed.items()
        }
    except (msgspec.ValidationError, QuantityError) as error:
        return f"data.yaml: {error}"
    return GpuTemplates(by_model, frozenset(matched))


def model_key(vendor: str, model: str) -> str:
    return f"{vendor}-{model}"


def matching_templates(templates: GpuTemplates, need: GpuRequest) -> TemplateCandidates | refusal.DeviceRefusal | None:
    """Return the templates that match the request by model, a refusal when none does, None when none apply."""
    if not need.shared or templates.matched.isdisjoint(need.each):
        return None
    found = {
        key: names
        for key, listed in templates.by_model.items()
        if (names := tuple(sorted(name for name, amounts in listed.items() if amounts == need.each)))
    }
    return found or refusal.unresolvable(refusal.NO_TEMPLATE)


class DeviceTypeHint(msgspec.Struct, frozen=True, kw_only=True):
    """DeviceTypeHint is a pod's allocate hint for one device type. No selector is None, an empty one matches all."""

    selector: Selector | None = None
    vf_selector: Selector | None = None
    strategy: str = ""
    scope: str = ""
    exclusive_policy: str = ""

    @property
    def scope_level(self) -> int:
        return device_codecs.DEVICE_TOPOLOGY_SCOPES.get(self.scope, 0)

    @property
    def exclusive_device(self) -> bool:
        return self.exclusive_policy == device_codecs.DEVICE_LEVEL

    @property
    def exclusive_switch(self) -> bool:
        return self.exclusive_policy == device_codecs.PCIE_LEVEL


NO_DEVICE_HINT = DeviceTypeHint()


class GpuPartitionRequest(msgspec.Struct, frozen=True):
    restricted: bool = False
    bandwidth: Quantity | None = None


class DeviceDemand(msgspec.Struct, frozen=True, kw_only=True):
    requests: Mapping[str, Amounts]  # by device type, in order of type
    gpu: GpuRequest | None = None
    hints: Mapping[str, DeviceTypeHint] = {}
    joint_types: tuple[str, ...] = ()  # types to allocate together, the leading one first
    same_pcie: bool = False
    partition: GpuPartitionRequest | None = None
    templates: TemplateCandidates | None = None
    isolation_provider: str = ""

    def hint(self, device_type: str) -> DeviceTypeHint:
        return self.hints.get(device_type, NO_DEVICE_HINT)

    @property
    def trusts_planned_layout(self) -> bool:
        """Return whether network cards of a planned layout need no check before the pod's final allocation."""
        return bool(self.joint_types) and self.gpu is not None and not self.gpu.shared


_NO_TEMPLATES = GpuTemplates()


def parse_demand(
    requests: Mapping[str, int],
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    templates: GpuTemplates = _NO_TEMPLATES,
) -> DeviceDemand | refusal.DeviceRefusal | None:
    """Parse the device demand of a pod; None when the pod requests no device."""
    asked = normalize_requests(requests)
    if isinstance(asked, refusal.DeviceRefusal):
        return asked
    if not asked:
        return None
    hints = _parse_hints(annotations)
    if isinstance(hints, refusal.DeviceRefusal):
        return hints
    joint = device_codecs.parse_device_joint_allocate(annotations)
    if isinstance(joint, MalformedAnnotation):
        return refusal.unresolvable(refusal.JOINT_INVALID + joint.reason)
    spec = device_codecs.parse_gpu_partition_spec(annotations)
    if isinstance(spec, MalformedAnnotation):
        return refusal.unresolvable(refusal.PARTITION_SPEC_INVALID + spec.reason)
    need = gpu_request_of(asked[wire.GPU]) if wire.GPU in asked else None
    matching = matching_templates(templates, need) if need is not None else None
    if isinstance(matching, refusal.DeviceRefusal):
        return matching
    together = joint.device_types if joint is not None else ()
    return DeviceDemand(
        requests=asked,
        gpu=need,
        hints=hints,
        joint_types=tuple(
            t for t in together if t in asked and hints.get(t, NO_DEVICE_HINT).strategy != device_codecs.APPLY_FOR_ALL
        ),
        same_pcie=joint is not None and joint.required_scope == device_codecs.SAME_PCIE,
        partition=None if spec is None else _partition_request(spec),
        templates=matching,
        isolation_provider=labels.get(L_GPU_ISOLATION_PROVIDER, ""),
    )


def _parse_hints(annotations: Mapping[str, str]) -> dict[str, DeviceTypeHint] | refusal.DeviceRefusal:
    parsed = device_codecs.parse_device_hints(annotations)
    if isinstance(parsed, MalformedAnnotation):
        return refusal.unresolvable(refusal.HINT_INVALID + parsed.reason)
    hints: dict[str, DeviceTypeHint] = {}
    for device_type, given in sorted((parsed or {}).items()):
        selectors: list[Selector | None] = []
        for name, labels in (("Selector", given.selector), ("VFSelector", given.vf_selector)):
            try:
                selectors.append(None if labels is None else label_selector_as_selector(labels))
            except SelectorError as error:
                return refusal.unresolvable(f"invalid {name} of DeviceHint, deviceType: {device_type}, err: {error}")
        hints[device_type] = DeviceTypeHint(
            selector=selectors[0],
            vf_selector=selectors[1],
            strategy=given.allocate_strategy,
            scope=given.required_topology_scope,
            exclusive_policy=given.exclusive_policy,
        )
    return hints


def _partition_request(spec: device_codecs.GPUPartitionSpec) -> GpuPartitionRequest:
    bandwidth = None if spec.ring_bus_bandwidth is None else Quantity.parse(spec.ring_bus_bandwidth)
    return GpuPartitionRequest(spec.effective_policy == device_codecs.GPU_PARTITION_RESTRICTED, bandwidth)
