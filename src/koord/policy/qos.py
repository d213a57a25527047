"""Resolve a pod's QoS class and priority class from its labels, its priority and Kubernetes' own QoS.

Raw values are what the user stated; values with default fill in what Kubernetes implies. spec.priorityClassName is
never consulted: only numbers and labels count.

Labels and annotations also ask for changes to the pod as programs see it, of which nothing is written back. Each is
behind a feature gate of the program that applies it, in the order ReplaceResourcesTransformer, PriorityTransformer,
PreemptionPolicyTransformer. A pod's spec may be any model with the fields of a PodSpec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from koord.api.annotations.pod_codecs import ERASED, parse_replace_resources, pod_preemption_policy
from koord.api.koordinator.protocol import (
    BATCH,
    BE,
    BEST_EFFORT,
    BURSTABLE,
    FREE,
    GUARANTEED,
    L_PRIORITY_CLASS,
    L_QOS_CLASS,
    LS,
    LSE,
    LSR,
    MID,
    NONE,
    PRIORITY_BANDS,
    PRIORITY_CLASSES,
    PROD,
    QOS_CLASSES,
    SYSTEM,
)
from koord.api.koordinator.resource_name import CPU
from koord.api.kubernetes.meta import Object
from koord.api.model import QuantityText, ResourceList
from koord.values.quantity import Quantity

_BY_KUBE_QOS = {GUARANTEED: LSR, BURSTABLE: LS, BEST_EFFORT: BE}
_PRIORITY_BY_QOS = {SYSTEM: PROD, LSE: PROD, LSR: PROD, LS: PROD, BE: BATCH}
# Upstream's documents advise LSE with prod only; its webhook allows more, and so do we.
_FORBIDDEN = frozenset({(LSR, MID), (LSR, BATCH), (LSR, FREE), (LSR, NONE), (BE, PROD), (BE, NONE)})


def qos_raw(labels: Mapping[str, str]) -> str:
    """Return the class that the label states; an unknown or misspelled one is none."""
    stated = labels.get(L_QOS_CLASS, NONE)
    return stated if stated in QOS_CLASSES else NONE


def qos_with_default(labels: Mapping[str, str], kube_qos: str) -> str:
    """Return the stated class, or what Kubernetes' own QoS implies. `kube_qos` is in the status or computed."""
    return qos_raw(labels) or _BY_KUBE_QOS.get(kube_qos, NONE)


def priority_class_of_value(priority: int | None) -> str:
    """Return the class whose band contains the priority; the gaps between bands belong to no class."""
    if priority is None:
        return NONE
    return next((name for name, band in PRIORITY_BANDS.items() if band.low <= priority <= band.high), NONE)


def priority_class_raw(labels: Mapping[str, str], priority: int | None) -> str:
    """Return the class of the label, even when its value is unknown; without a label that of spec.priority."""
    stated = labels.get(L_PRIORITY_CLASS)
    if stated is not None:
        return stated if stated in PRIORITY_CLASSES else NONE
    return priority_class_of_value(priority)


def priority_class_with_default(labels: Mapping[str, str], priority: int | None, kube_qos: str) -> str:
    """Return the raw class, or the one that the pod's QoS implies."""
    return priority_class_raw(labels, priority) or _PRIORITY_BY_QOS.get(qos_with_default(labels, kube_qos), NONE)


def priority_value_with_default(labels: Mapping[str, str], priority: int | None, kube_qos: str) -> int:
    """Return the pod's own priority unless absent or 0, then the default of its class, or 0 for a pod without."""
    if priority:
        return priority
    band = PRIORITY_BANDS.get(priority_class_with_default(labels, priority, kube_qos))
    return band.default if band else 0


def is_legal(qos: str, priority_class: str) -> bool:
    """Return whether the pod webhook admits this pair of raw classes."""
    return (qos, priority_class) not in _FORBIDDEN


def illegal_combination(qos: str, priority_class: str) -> str:
    """Return the text of the webhook's refusal."""
    return f"{L_QOS_CLASS}={qos} and priorityClass={priority_class} cannot be used in combination"


P = TypeVar("P", bound=Object)


def replace_resources(pod: P) -> P:
    """Rename and erase requests, limits and overhead as the annotation replace-resources says. Raise QuantityError."""
    names = parse_replace_resources(pod.metadata.annotations)
    if not names:
        return pod
    spec: Any = pod.spec  # type: ignore[attr-defined]
    changed = {
        "containers": tuple(_replace_in_container(one, names) for one in spec.containers),
        "init_containers": tuple(_replace_in_container(one, names) for one in spec.init_containers),
        "overhead": None if spec.overhead is None else replace_in_list(spec.overhead, names),
    }
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(spec, **changed))


def replace_in_list(listed: Mapping[str, QuantityText], names: Mapping[str, str]) -> ResourceList:
    """Return the list with its resources renamed, one name after the other.

    Where the new name is there already both amounts stay as they are. CPU becomes a whole number of milli-cores under
    its new name, which is how extended resources count it.
    """
    made = dict(listed)
    for source, target in names.items():
        if source not in made or target in made:
            continue
        amount = made.pop(source)
        if target != ERASED:
            made[target] = str(Quantity.from_value(Quantity.parse(amount).milli_value())) if source == CPU else amount
    return made


def apply_default_priority(pod: P, kube_qos: str) -> P:
    """Give a pod without a priority, or with 0, the default value of its priority class."""
    spec: Any = pod.spec  # type: ignore[attr-defined]
    value = priority_value_with_default(pod.metadata.labels, spec.priority, kube_qos)
    if not value or value == spec.priority:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(spec, priority=value))


def apply_preemption_policy(pod: P) -> P:
    """Let the label decide whether the pod may preempt. Without a label, or with an unknown value, it may not."""
    spec: Any = pod.spec  # type: ignore[attr-defined]
    policy = pod_preemption_policy(pod.metadata.labels)
    if spec.preemption_policy == policy:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(spec, preemption_policy=policy))


def _replace_in_container(container: Any, names: Mapping[str, str]) -> Any:
    resources = container.resources
    if names.keys().isdisjoint(resources.requests) and names.keys().isdisjoint(resources.limits):
        return container
    changed = {field: replace_in_list(getattr(resources, field), names) for field in ("requests", "limits")}
    return msgspec.structs.replace(container, resources=msgspec.structs.replace(resources, **changed))
