"""Changes that a pod's labels and annotations ask for to the pod as programs see it. Nothing of it is written back.

Each is behind a feature gate of the program that applies it, in the order ReplaceResourcesTransformer,
PriorityTransformer, PreemptionPolicyTransformer. A pod's spec may be any model with the fields of a PodSpec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from koord.api.annotations.pod_codecs import ERASED, parse_replace_resources, pod_preemption_policy
from koord.api.koordinator.resource_name import CPU
from koord.api.kubernetes.meta import Object
from koord.api.model import QuantityText, ResourceList
from koord.policy.qos import priority_value_with_default
from koord.values.quantity import Quantity

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
