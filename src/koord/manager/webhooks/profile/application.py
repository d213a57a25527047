"""Application of one profile to an object: the steps, in upstream's order. Later profiles overwrite earlier
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.merge.outcome import PatchFailed
from koord.api.merge.shape import Shape
from koord.api.merge.strategic import strategic_merge
from koord.api.meta import Object
from koord.api.model import convert
from koord.api.protocol import L_PRIORITY, L_QOS_CLASS
from koord.api.scheduling import PriorityClass
from koord.manager.webhooks.draft import Obj, owned, part
from koord.manager.webhooks.profile.compiled import Pairs, Profile, is_directive
from koord.manager.webhooks.verdict import Denied


class Target(msgspec.Struct, frozen=True):
    """Where on a kind of object the steps write."""

    model: type[Object]
    shape: Shape
    pod_spec: tuple[str, ...]  # the path to what a scheduler reads
    template: tuple[str, ...] = ()  # must be there for pod_spec to be written


def applied(
    obj: Obj, profile: Profile, target: Target, priority_class: Callable[[str], PriorityClass | None]
) -> Obj | Denied:
    """Apply the profile. `obj` must be writable at its top level; the result is `obj`, or another object after a
    patch.
    """
    if profile.labels:
        owned(obj, "metadata", "labels").update(profile.labels)
    if profile.annotations:
        owned(obj, "metadata", "annotations").update(profile.annotations)
    _map(obj, "labels", profile.label_mapping)
    _map(obj, "annotations", profile.annotation_mapping)
    _append(obj, profile.label_suffixes)
    templated = not target.template or bool(part(obj, *target.template))
    if profile.scheduler_name and templated:
        owned(obj, *target.pod_spec)["schedulerName"] = profile.scheduler_name
    if profile.qos_class:
        owned(obj, "metadata", "labels")[L_QOS_CLASS] = profile.qos_class
    if profile.priority_class_name and templated:
        found = priority_class(profile.priority_class_name)
        if found is None:
            return Denied(500, f'PriorityClass.scheduling.k8s.io "{profile.priority_class_name}" not found')
        _prioritise(owned(obj, *target.pod_spec), found)
    if profile.sub_priority is not None:
        owned(obj, "metadata", "labels")[L_PRIORITY] = str(profile.sub_priority)
    return obj if profile.patch is None else _patched(obj, profile.patch, target, directed=profile.directed)


def _map(obj: Obj, field: str, mapping: Pairs) -> None:
    """Map keys; an absent source still writes its destination, with an empty value."""
    if mapping:
        values = owned(obj, "metadata", field)
        for source, destination in mapping:
            values[destination] = values.get(source, "")


def _append(obj: Obj, suffixes: Pairs) -> None:
    present = part(obj, "metadata", "labels")
    for key, suffix in suffixes:
        if key in present:
            owned(obj, "metadata", "labels")[key] = (present[key] or "") + suffix


def _prioritise(spec: Obj, found: PriorityClass) -> None:
    """Set all three fields: the API server denies a pod whose priority or policy is not that of its class."""
    spec["priorityClassName"] = found.metadata.name
    spec["priority"] = found.value
    if found.preemption_policy is None:
        spec.pop("preemptionPolicy", None)
    else:
        spec["preemptionPolicy"] = found.preemption_policy


def _patched(obj: Obj, patch: Obj, target: Target, *, directed: bool) -> Obj | Denied:
    merged = strategic_merge(obj, patch, target.shape)
    if isinstance(merged, PatchFailed):
        return Denied(500, merged.message)
    if directed:
        merged = _undirected(merged)
    try:
        convert(merged, target.model)  # the API server would refuse it with words that name no profile
    except msgspec.ValidationError as error:
        return Denied(500, str(error))
    return dict(merged)


def _undirected(value: Any) -> Any:
    """Drop the directives that found nothing to work on, since they are no fields."""
    if isinstance(value, dict):
        return {key: _undirected(item) for key, item in value.items() if not is_directive(key)}
    return [_undirected(item) for item in value] if isinstance(value, list) else value
