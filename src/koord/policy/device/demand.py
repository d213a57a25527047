"""Everything about one pod that decides which devices it may get: requests, hints, joint rules and partitions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api import device as wire
from koord.api.annotations import device_hint, device_joint, gpu_partition
from koord.api.annotations.codec import Malformed
from koord.api.annotations.device_hint import APPLY_FOR_ALL, DEVICE_LEVEL, PCIE_LEVEL, SCOPES
from koord.api.annotations.device_joint import SAME_PCIE
from koord.api.annotations.gpu_partition import RESTRICTED
from koord.api.meta import LabelSelector
from koord.api.protocol import L_GPU_ISOLATION_PROVIDER
from koord.policy.device.holding import Amounts
from koord.policy.device.refusal import HINT_INVALID, JOINT_INVALID, PARTITION_SPEC_INVALID, Refusal, unresolvable
from koord.policy.device.request import GpuNeed, gpu_need, normalised
from koord.policy.device.template import Candidates, Templates, candidates
from koord.values.quantity import Quantity
from koord.values.selector import Selector, SelectorError


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod's allocate hint says about one device type. An absent selector is None, an empty one matches all
    devices.
    """

    selector: Selector | None = None
    function_selector: Selector | None = None
    strategy: str = ""
    scope: str = ""
    exclusive: str = ""

    @property
    def scope_level(self) -> int:
        return SCOPES.get(self.scope, 0)

    @property
    def exclusive_device(self) -> bool:
        return self.exclusive == DEVICE_LEVEL

    @property
    def exclusive_switch(self) -> bool:
        return self.exclusive == PCIE_LEVEL


NO_HINT = Hint()


class PartitionWish(msgspec.Struct, frozen=True):
    restricted: bool = False
    bandwidth: Quantity | None = None


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    requests: Mapping[str, Amounts]  # by device type, in order of type
    gpu: GpuNeed | None = None
    hints: Mapping[str, Hint] = {}
    joint: tuple[str, ...] = ()  # types to allocate together, the leading one first
    same_pcie: bool = False
    partition: PartitionWish | None = None
    templates: Candidates | None = None
    isolation_provider: str = ""

    def hint(self, device_type: str) -> Hint:
        return self.hints.get(device_type, NO_HINT)

    @property
    def trusts_plan(self) -> bool:
        """Return whether network cards of a planned layout need no check before the pod's final allocation."""
        return bool(self.joint) and self.gpu is not None and not self.gpu.shared


_NO_TEMPLATES = Templates()


def demand_of(
    requests: Mapping[str, int],
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    templates: Templates = _NO_TEMPLATES,
) -> Demand | Refusal | None:
    """Parse the device demand of a pod; None when the pod requests no device."""
    asked = normalised(requests)
    if isinstance(asked, Refusal):
        return asked
    if not asked:
        return None
    hints = _hints(annotations)
    if isinstance(hints, Refusal):
        return hints
    joint = device_joint.parse(annotations)
    if isinstance(joint, Malformed):
        return unresolvable(JOINT_INVALID + joint.reason)
    spec = gpu_partition.parse_spec(annotations)
    if isinstance(spec, Malformed):
        return unresolvable(PARTITION_SPEC_INVALID + spec.reason)
    need = gpu_need(asked[wire.GPU]) if wire.GPU in asked else None
    matching = candidates(templates, need) if need is not None else None
    if isinstance(matching, Refusal):
        return matching
    together = joint.device_types if joint is not None else ()
    return Demand(
        requests=asked,
        gpu=need,
        hints=hints,
        joint=tuple(t for t in together if t in asked and hints.get(t, NO_HINT).strategy != APPLY_FOR_ALL),
        same_pcie=joint is not None and joint.required_scope == SAME_PCIE,
        partition=None if spec is None else _wish(spec),
        templates=matching,
        isolation_provider=labels.get(L_GPU_ISOLATION_PROVIDER, ""),
    )


def _hints(annotations: Mapping[str, str]) -> dict[str, Hint] | Refusal:
    parsed = device_hint.parse(annotations)
    if isinstance(parsed, Malformed):
        return unresolvable(HINT_INVALID + parsed.reason)
    hints: dict[str, Hint] = {}
    for device_type, given in sorted((parsed or {}).items()):
        selectors: list[Selector | None] = []
        for name, labels in (("Selector", given.selector), ("VFSelector", given.vf_selector)):
            try:
                selectors.append(None if labels is None else _selector(labels))
            except SelectorError as error:
                return unresolvable(f"invalid {name} of DeviceHint, deviceType: {device_type}, err: {error}")
        hints[device_type] = Hint(
            selector=selectors[0],
            function_selector=selectors[1],
            strategy=given.allocate_strategy,
            scope=given.required_topology_scope,
            exclusive=given.exclusive_policy,
        )
    return hints


def _selector(given: LabelSelector) -> Selector:
    return Selector.of(given.match_labels, [(e.key, e.operator, e.values) for e in given.match_expressions])


def _wish(spec: gpu_partition.GPUPartitionSpec) -> PartitionWish:
    bandwidth = None if spec.ring_bus_bandwidth is None else Quantity.parse(spec.ring_bus_bandwidth)
    return PartitionWish(spec.effective_policy == RESTRICTED, bandwidth)
