"""The admission of nodes (amplified allocatable, labels that match one strategy per document) and of NodeSLOs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.config.slo.slo_validation import strategy_errors
from koord.api.koordinator.protocol import A_RAW_ALLOCATABLE, A_RESOURCE_AMPLIFICATION_RATIO
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.slo import NodeSLO
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.node import Node
from koord.api.model import ResourceList, convert
from koord.manager.webhooks.admission import (
    AdmissionAllowed,
    AdmissionDecision,
    AdmissionDenied,
    PlainObject,
    allow_with_changes,
    decode_object,
    readable,
    writable,
)
from koord.manager.webhooks.configmap import conflict_text, node_strategy_groups
from koord.values.go_format import in_json
from koord.values.quantity import ZERO, Quantity, QuantityError

_AMPLIFIED_RESOURCES = (CPU, MEMORY)


def mutate_node_status(request: AdmissionRequest) -> AdmissionDecision:
    """Amplify allocatable in the node's status, and keep what the kubelet reported in an annotation."""
    given = request.object
    ours = request.resource.resource == "nodes" and request.sub_resource == "status" and request.operation == "UPDATE"
    if not ours or given is None:
        return AdmissionAllowed()
    try:
        given, _ = decode_object(given, Node)
        old, _ = decode_object(request.old_object or {}, Node)
        made = _amplify(dict(given), old)
    except (msgspec.ValidationError, QuantityError) as error:
        return AdmissionDenied(400, str(error))
    return made if isinstance(made, AdmissionDenied) else allow_with_changes(given, made)


def _amplify(node: PlainObject, old: PlainObject) -> PlainObject | AdmissionDenied:
    annotations = readable(node, "metadata", "annotations")
    if not annotations.get(A_RESOURCE_AMPLIFICATION_RATIO):
        if A_RAW_ALLOCATABLE in annotations:
            del writable(node, "metadata", "annotations")[A_RAW_ALLOCATABLE]
        return node
    ratios = node_codecs.parse_amplification_ratios(annotations)
    if isinstance(ratios, MalformedAnnotation):
        return AdmissionDenied(500, f"failed to unmarshal node resource amplification ratio: {ratios.reason}")
    raw = _raw_allocatable(node, old)
    if isinstance(raw, MalformedAnnotation):
        return AdmissionDenied(500, f"failed to unmarshal node raw allocatable: {raw.reason}")
    writable(node, "metadata", "annotations")[A_RAW_ALLOCATABLE] = dump_json(raw)
    for name in _AMPLIFIED_RESOURCES:
        ratio = (ratios or {}).get(name, 1.0)
        if ratio > 1 and name in raw:
            amount = Quantity.parse(raw[name])
            milli = int(float(amount.milli_value()) * ratio)
            writable(node, "status", "allocatable")[name] = str(Quantity.from_milli(milli, amount.format))
    return node


def _raw_allocatable(node: PlainObject, old: PlainObject) -> ResourceList | MalformedAnnotation:
    """Return what the kubelet reports. Unchanged allocatable is amplified already, so the kept amounts count."""
    annotations = readable(node, "metadata", "annotations")
    now, before = readable(node, "status", "allocatable"), readable(old, "status", "allocatable")
    if A_RAW_ALLOCATABLE in annotations and all(
        _amount(now, name) == _amount(before, name) for name in _AMPLIFIED_RESOURCES
    ):
        return node_codecs.parse_raw_allocatable(annotations) or {}
    return {name: str(Quantity.parse(now[name])) for name in _AMPLIFIED_RESOURCES if name in now}


def _amount(listed: PlainObject, name: str) -> Quantity:
    return Quantity.parse(listed[name]) if name in listed else ZERO


def validate_node(request: AdmissionRequest, config: Mapping[str, str] | None) -> AdmissionDecision:
    """Deny labels that match two strategies of one document. `config` is the data of slo-controller-config, or None.

    A node that is created is allowed as it is.
    """
    if request.resource.resource != "nodes" or request.sub_resource or request.operation != "UPDATE" or not config:
        return AdmissionAllowed()
    try:
        node = convert(request.object or {}, Node)
        before = convert(request.old_object or {}, Node).metadata.labels
    except msgspec.ValidationError as error:
        return AdmissionDenied(400, str(error))
    labels = node.metadata.labels
    if labels == before:
        return AdmissionAllowed()
    for group in node_strategy_groups(config):
        names = group.strategies_matching(labels)
        if len(names) > 1:
            return AdmissionDenied(400, conflict_text(group.key, names, node.metadata.name))
    return AdmissionAllowed()


def validate_node_slo(request: AdmissionRequest) -> AdmissionDecision:
    """Deny values that no koordlet can use. Those that the object had before are let pass: others may write it."""
    if request.resource.resource != "nodeslos" or request.sub_resource or request.operation not in ("CREATE", "UPDATE"):
        return AdmissionAllowed()
    try:
        wrong = strategy_errors(convert(request.object or {}, NodeSLO).spec, "spec")
        before = strategy_errors(convert(request.old_object or {}, NodeSLO).spec, "spec")
    except msgspec.ValidationError as error:
        return AdmissionDenied(400, str(error))
    told = [f"{error.field} is {in_json(error.value)}, {error.rule}" for error in wrong if error not in before]
    return AdmissionDenied(400, "; ".join(told)) if told else AdmissionAllowed()
