"""The admission of nodes: amplified allocatable in their status, and labels that match one strategy per
document.
"""

from __future__ import annotations

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.annotations import amplification
from koord.api.annotations.codec import Malformed
from koord.api.node import Node
from koord.api.part import ResourceList
from koord.api.protocol import A_RAW_ALLOCATABLE, A_RESOURCE_AMPLIFICATION_RATIO
from koord.api.resource_name import CPU, MEMORY
from koord.manager.webhooks.draft import Obj, owned, part, read, verdict
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.values.quantity import ZERO, Quantity, QuantityError

_AMPLIFIED = (CPU, MEMORY)


def admit(request: AdmissionRequest) -> Verdict:
    """Amplify allocatable in the node's status, and keep what the kubelet reported in an annotation."""
    given = request.object
    ours = request.resource.resource == "nodes" and request.sub_resource == "status" and request.operation == "UPDATE"
    if not ours or given is None:
        return Allowed()
    try:
        given, _ = read(given, Node)
        old, _ = read(request.old_object or {}, Node)
        made = _amplified(dict(given), old)
    except (msgspec.ValidationError, QuantityError) as error:
        return Denied(400, str(error))
    return made if isinstance(made, Denied) else verdict(given, made)


def _amplified(node: Obj, old: Obj) -> Obj | Denied:
    annotations = part(node, "metadata", "annotations")
    if not annotations.get(A_RESOURCE_AMPLIFICATION_RATIO):
        if A_RAW_ALLOCATABLE in annotations:
            del owned(node, "metadata", "annotations")[A_RAW_ALLOCATABLE]
        return node
    ratios = amplification.parse_ratios(annotations)
    if isinstance(ratios, Malformed):
        return Denied(500, f"failed to unmarshal node resource amplification ratio: {ratios.reason}")
    raw = _raw(node, old)
    if isinstance(raw, Malformed):
        return Denied(500, f"failed to unmarshal node raw allocatable: {raw.reason}")
    owned(node, "metadata", "annotations")[A_RAW_ALLOCATABLE] = amplification.dump_raw_allocatable(raw)
    for name in _AMPLIFIED:
        ratio = (ratios or {}).get(name, 1.0)
        if ratio > 1 and name in raw:
            amount = Quantity.parse(raw[name])
            milli = int(float(amount.milli_value()) * ratio)
            owned(node, "status", "allocatable")[name] = str(Quantity.from_milli(milli, amount.format))
    return node


def _raw(node: Obj, old: Obj) -> ResourceList | Malformed:
    """Return what the kubelet reports. Unchanged allocatable is amplified already, so the kept amounts count."""
    annotations = part(node, "metadata", "annotations")
    now, before = part(node, "status", "allocatable"), part(old, "status", "allocatable")
    if A_RAW_ALLOCATABLE in annotations and all(_amount(now, name) == _amount(before, name) for name in _AMPLIFIED):
        return amplification.parse_raw_allocatable(annotations) or {}
    return {name: str(Quantity.parse(now[name])) for name in _AMPLIFIED if name in now}


def _amount(listed: Obj, name: str) -> Quantity:
    return Quantity.parse(listed[name]) if name in listed else ZERO
