"""Application of one profile to an object: the steps, in upstream's order. Later profiles overwrite earlier
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.koordinator.protocol import L_PRIORITY, L_QOS_CLASS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.api.model import convert
from koord.api.patch.merge_patch import PatchFailed
from koord.api.patch.merge_schema import MergeSchema
from koord.api.patch.strategic_merge import strategic_merge
from koord.manager.webhooks.admission import AdmissionDenied
from koord.manager.webhooks.colocation_profile.compiled import CompiledProfile, KeyValuePairs, is_directive
from koord.manager.webhooks.copy_on_write import PlainObject, readable, writable


class ObjectLayout(msgspec.Struct, frozen=True):
    """ObjectLayout says where on a kind of object the steps write."""

    model: type[Object]
    merge_shape: MergeSchema
    pod_spec: tuple[str, ...]  # the path to what a scheduler reads
    template: tuple[str, ...] = ()  # must be there for pod_spec to be written


def apply_profile(
    obj: PlainObject,
    profile: CompiledProfile,
    layout: ObjectLayout,
    priority_class: Callable[[str], PriorityClass | None],
) -> PlainObject | AdmissionDenied:
    """Apply the profile. `obj` must be writable at its top level; the result is `obj`, or another object after a
    patch.
    """
    if profile.labels:
        writable(obj, "metadata", "labels").update(profile.labels)
    if profile.annotations:
        writable(obj, "metadata", "annotations").update(profile.annotations)
    _map_keys(obj, "labels", profile.label_mapping)
    _map_keys(obj, "annotations", profile.annotation_mapping)
    _append_suffixes(obj, profile.label_suffixes)
    templated = not layout.template or bool(readable(obj, *layout.template))
    if profile.scheduler_name and templated:
        writable(obj, *layout.pod_spec)["schedulerName"] = profile.scheduler_name
    if profile.qos_class:
        writable(obj, "metadata", "labels")[L_QOS_CLASS] = profile.qos_class
    if profile.priority_class_name and templated:
        found = priority_class(profile.priority_class_name)
        if found is None:
            return AdmissionDenied(500, f'PriorityClass.scheduling.k8s.io "{profile.priority_class_name}" not found')
        _set_priority_class(writable(obj, *layout.pod_spec), found)
    if profile.sub_priority is not None:
        writable(obj, "metadata", "labels")[L_PRIORITY] = str(profile.sub_priority)
    return obj if profile.patch is None else _apply_patch(obj, profile.patch, layout, directed=profile.has_directives)


def _map_keys(obj: PlainObject, field: str, mapping: KeyValuePairs) -> None:
    """Map keys; an absent source still writes its destination, with an empty value."""
    if mapping:
        values = writable(obj, "metadata", field)
        for source, destination in mapping:
            values[destination] = values.get(source, "")


def _append_suffixes(obj: PlainObject, suffixes: KeyValuePairs) -> None:
    present = readable(obj, "metadata", "labels")
    for key, suffix in suffixes:
        if key in present:
            writable(obj, "metadata", "labels")[key] = (present[key] or "") + suffix


def _set_priority_class(spec: PlainObject, found: PriorityClass) -> None:
    """Set all three fields: the API server denies a pod whose priority or policy is not that of its class."""
    spec["priorityClassName"] = found.metadata.name
    spec["priority"] = found.value
    if found.preemption_policy is None:
        spec.pop("preemptionPolicy", None)
    else:
        spec["preemptionPolicy"] = found.preemption_policy


def _apply_patch(
    obj: PlainObject, patch: PlainObject, layout: ObjectLayout, *, directed: bool
) -> PlainObject | AdmissionDenied:
    merged = strategic_merge(obj, patch, layout.merge_shape)
    if isinstance(merged, PatchFailed):
        return AdmissionDenied(500, merged.message)
    if directed:
        merged = _drop_directives(merged)
    try:
        convert(merged, layout.model)  # the API server would refuse it with words that name no profile
    except msgspec.ValidationError as error:
        return AdmissionDenied(500, str(error))
    return dict(merged)


def _drop_directives(value: Any) -> Any:
    """Drop the directives that found nothing to work on, since they are no fields."""
    if isinstance(value, dict):
        return {key: _drop_directives(item) for key, item in value.items() if not is_directive(key)}
    return [_drop_directives(item) for item in value] if isinstance(value, list) else value
