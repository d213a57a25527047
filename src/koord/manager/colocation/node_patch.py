"""Compute the patch that makes a node show what was decided, and whether it is worth a write yet."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.koordinator import protocol
from koord.api.koordinator.protocol import BATCH
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord.api.model import QuantityText
from koord.manager.colocation import models
from koord.manager.colocation.decision import ColocationDecision
from koord.manager.colocation.device_resources import GPU_NAMES, RDMA_NAMES, DeviceResources
from koord.manager.colocation.normalization import normalization_differs
from koord.manager.colocation.overcommitment import BatchDecision, MidDecision
from koord.values.quantity import ZERO, Format, Quantity

# By name, what the node shall show; None: the name shall go. A name that is not here is left alone.
DesiredResources = dict[str, Quantity | None]


class NodePatch(msgspec.Struct, frozen=True, kw_only=True):
    """One patch of a node; None removes an entry. `reasons` say why it is due now."""

    annotations: dict[str, str | None] = {}
    labels: dict[str, str] = {}
    capacity: dict[str, str | None] = {}
    allocatable: dict[str, str | None] = {}
    status_due: bool = False  # the resources were up for a write, so that they are as decided after it
    reasons: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.annotations or self.labels or self.capacity or self.allocatable)

    def patch(self) -> dict[str, object]:
        """Return the merge patch with nothing in it but what is written here."""
        metadata = {k: v for k, v in (("annotations", self.annotations), ("labels", self.labels)) if v}
        status = {k: v for k, v in (("capacity", self.capacity), ("allocatable", self.allocatable)) if v}
        return {k: v for k, v in (("metadata", metadata), ("status", status)) if v}


NO_PATCH = NodePatch()


def decide_node_patch(
    node: models.ColocationNode, decision: ColocationDecision, since_sync_s: float | None
) -> NodePatch:
    """Decide the patch. `since_sync_s` is how long ago the node's resources were last written, None when not yet."""
    status = node.status
    if not status.capacity or not status.allocatable:
        return NO_PATCH
    target, origin = _desired_resources(node, decision)
    rules = decision.rules
    status_reasons = []
    if since_sync_s is None:
        status_reasons.append("first look at the node")
    elif since_sync_s > rules.update_seconds:
        status_reasons.append(f"last written {since_sync_s:.0f} s ago")
    status_reasons += [
        f"{name} differs by more than {rules.diff_threshold:g}"
        for name, amount in target.items()
        if models.differs_by_more_than(_quantity(status.allocatable, name), amount, rules.diff_threshold)
    ]
    annotations, meta_reasons = _annotations(node, decision, origin)
    labels = _labels(node, decision.gpu)
    if labels:
        meta_reasons.append("labels of the Device")
    if not status_reasons and not meta_reasons:
        return NO_PATCH
    due = bool(status_reasons)
    return NodePatch(
        annotations=annotations,
        labels=labels,
        capacity=_changed(status.capacity, target) if due else {},
        allocatable=_changed(status.allocatable, target) if due else {},
        status_due=due,
        reasons=(*status_reasons, *meta_reasons),
    )


def desired_resources(node: models.ColocationNode, decision: ColocationDecision) -> DesiredResources:
    """Return what the node shall show, whether or not that is worth a write."""
    return _desired_resources(node, decision)[0]


def _desired_resources(
    node: models.ColocationNode, decision: ColocationDecision
) -> tuple[DesiredResources, dict[str, Quantity] | None]:
    """Return the desired resources, and those of batch before third-party orchestrators took their part."""
    target: DesiredResources = {}
    origin = None
    if decision.mid is not None:
        target |= _mid(decision.mid)
    if decision.batch is not None:
        ratio = None if decision.normalization is None else decision.normalization.ratio
        lent = _batch(decision.batch, ratio)
        origin = {name: amount or ZERO for name, amount in lent.items()}
        target |= _after_third_parties(lent, node.metadata.annotations)
    if decision.gpu is not None:
        target |= _devices(decision.gpu, GPU_NAMES)
    if decision.rdma is not None:
        target |= _devices(decision.rdma, RDMA_NAMES)
    target |= decision.of_plugins
    return target, origin


def _mid(mid: MidDecision) -> DesiredResources:
    if mid.cpu is None or mid.memory is None:
        return {MID_CPU: None, MID_MEMORY: None}
    return {
        MID_CPU: Quantity.from_value(mid.cpu.result),
        MID_MEMORY: Quantity.from_value(mid.memory.result, Format.BINARY_SI),
    }


def _batch(batch: BatchDecision, ratio: float | None) -> DesiredResources:
    if batch.cpu_milli is None or batch.memory is None:
        return {BATCH_CPU: None, BATCH_MEMORY: None}
    return {
        BATCH_CPU: models.amplify_cpu(Quantity.from_value(batch.cpu_milli), ratio),
        BATCH_MEMORY: models.round_up_to_integer(batch.memory),
    }


def _after_third_parties(lent: DesiredResources, annotations: Mapping[str, str]) -> DesiredResources:
    if any(amount is None for amount in lent.values()):
        return lent
    taken = node_codecs.parse_third_party_allocations(annotations)
    if taken is None or isinstance(taken, MalformedAnnotation):
        return lent
    left: DesiredResources = dict(lent)
    for allocation in taken.allocations:
        if allocation.priority != BATCH:
            continue
        for name, amount in left.items():
            took = allocation.resources.get(name)
            if amount is not None and took is not None:
                left[name] = amount - Quantity.parse(took)
    return {name: amount and models.round_up_to_integer(models.floor_zero(amount)) for name, amount in left.items()}


def third_party_holders(annotations: Mapping[str, str], resource: str) -> list[str]:
    """Return the names of the orchestrators that hold some of a batch resource, such as hadoop-yarn."""
    taken = node_codecs.parse_third_party_allocations(annotations)
    if taken is None or isinstance(taken, MalformedAnnotation):
        return []
    return [
        one.name or "unnamed"
        for one in taken.allocations
        if one.priority == BATCH and not Quantity.parse(one.resources.get(resource, "0")).is_zero()
    ]


def _devices(devices: DeviceResources, names: tuple[str, ...]) -> DesiredResources:
    if devices.reset:
        return dict.fromkeys(names)
    return {name: models.round_up_to_integer(amount) for name, amount in devices.amounts.items()}


def _annotations(
    node: models.ColocationNode, decision: ColocationDecision, origin: dict[str, Quantity] | None
) -> tuple[dict[str, str | None], list[str]]:
    """Return all annotations that differ, and which of them are worth a write by themselves."""
    now = node.metadata.annotations
    changed: dict[str, str | None] = {}
    reasons = []
    ratio = None if decision.normalization is None else decision.normalization.text
    if ratio is not None:
        if normalization_differs(now.get(protocol.A_CPU_NORMALIZATION_RATIO), ratio):
            reasons.append(protocol.A_CPU_NORMALIZATION_RATIO)
        if now.get(protocol.A_CPU_NORMALIZATION_RATIO) != ratio:
            changed[protocol.A_CPU_NORMALIZATION_RATIO] = ratio
    if decision.amplification is not None:
        text = decision.amplification.text
        if now.get(protocol.A_RESOURCE_AMPLIFICATION_RATIO) != text:
            changed[protocol.A_RESOURCE_AMPLIFICATION_RATIO] = text
            reasons.append(protocol.A_RESOURCE_AMPLIFICATION_RATIO)
    # On a node without any annotation upstream loses this one, unless another was written before it.
    if origin is not None and (now or any(value is not None for value in changed.values())):
        text = _origin(now, origin)
        if now.get(protocol.A_ORIGIN_EXTENDED_ALLOCATABLE) != text:
            changed[protocol.A_ORIGIN_EXTENDED_ALLOCATABLE] = text
    return changed, reasons


def _origin(annotations: Mapping[str, str], origin: dict[str, Quantity]) -> str:
    """Return the origin annotation; keys that others stored there are kept."""
    before = node_codecs.parse_origin_allocatable(annotations)
    kept = {} if before is None or isinstance(before, MalformedAnnotation) else before.resources
    stated = {**kept, **{name: str(amount) for name, amount in origin.items()}}
    return dump_json(node_codecs.OriginAllocatable(resources=stated))


def _labels(node: models.ColocationNode, gpu: DeviceResources | None) -> dict[str, str]:
    if gpu is None:
        return {}
    return {key: value for key, value in gpu.labels.items() if node.metadata.labels.get(key) != value}


def _changed(now: Mapping[str, QuantityText], wanted: DesiredResources) -> dict[str, str | None]:
    return {
        name: None if amount is None else str(amount)
        for name, amount in wanted.items()
        if _quantity(now, name) != amount
    }


def _quantity(listed: Mapping[str, QuantityText], name: str) -> Quantity | None:
    text = listed.get(name)
    return None if text is None else Quantity.parse(text)
