"""ClusterColocationProfiles at admission: compiled once per version, matched, and applied in upstream's order of steps.

A selector that cannot be read matches everything, as upstream has it: a typing error then shows on the first pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from koord.api.annotations.pod_codecs import skips_resource_update
from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.koordinator.protocol import L_PRIORITY, L_QOS_CLASS
from koord.api.kubernetes.meta import LabelSelector, Object, label_selector_as_selector
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.api.model import convert
from koord.api.patch.merge_patch import PatchFailed
from koord.api.patch.strategic_merge import MergeSchema, strategic_merge
from koord.manager.webhooks.admission import AdmissionDenied, PlainObject, readable, writable
from koord.values.int_or_string import IntOrStringError, scaled_value
from koord.values.selector import EVERYTHING, Selector, SelectorError

ALWAYS_PERCENT = 100

KeyValuePairs = tuple[tuple[str, str], ...]


class CompiledProfile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    created: datetime | None = None
    namespace_selector: Selector = EVERYTHING
    pod_selector: Selector = EVERYTHING
    probability_percent: int = ALWAYS_PERCENT
    bad_probability: str = ""  # then the profile fails whatever it matches
    keeps_resources: bool = False  # skip-update-resources
    labels: KeyValuePairs = ()
    annotations: KeyValuePairs = ()
    label_mapping: KeyValuePairs = ()  # source, destination
    annotation_mapping: KeyValuePairs = ()
    label_suffixes: KeyValuePairs = ()
    scheduler_name: str = ""
    qos_class: str = ""
    priority_class_name: str = ""
    sub_priority: int | None = None
    patch: dict[str, Any] | None = None
    has_directives: bool = False  # the patch holds directives, which may be left over after a merge
    warnings: tuple[str, ...] = ()  # what an operator should hear about


def compile_profile(profile: ClusterColocationProfile) -> CompiledProfile:
    spec = profile.spec
    complaints: list[str] = []
    percent, wrong = _parse_probability(spec.probability)
    if wrong:
        complaints.append(f"probability: {wrong}")
    return CompiledProfile(
        name=profile.metadata.name,
        created=profile.metadata.creation_timestamp,
        namespace_selector=_build_selector("namespaceSelector", spec.namespace_selector, complaints),
        pod_selector=_build_selector("selector", spec.selector, complaints),
        probability_percent=percent,
        bad_probability=wrong,
        keeps_resources=skips_resource_update(profile.metadata.annotations),
        labels=_sorted_pairs(spec.labels),
        annotations=_sorted_pairs(spec.annotations),
        label_mapping=_sorted_pairs(spec.label_keys_mapping),
        annotation_mapping=_sorted_pairs(spec.annotation_keys_mapping),
        label_suffixes=_sorted_pairs(spec.label_suffixes),
        scheduler_name=spec.scheduler_name,
        qos_class=spec.qos_class,
        priority_class_name=spec.priority_class_name,
        sub_priority=spec.koordinator_priority,
        patch=spec.patch,
        has_directives=_has_directives(spec.patch),
        warnings=tuple(complaints),
    )


def _sorted_pairs(mapping: dict[str, str]) -> KeyValuePairs:
    """Sort the pairs so that chains of mappings are deterministic; upstream takes them in any order."""
    return tuple(sorted(mapping.items()))


def is_directive(key: str) -> bool:
    """Return whether a key of a strategic merge patch is a directive rather than a field."""
    return key.startswith(("$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/"))


def _has_directives(patch: Any) -> bool:
    if isinstance(patch, dict):
        return any(is_directive(key) or _has_directives(value) for key, value in patch.items())
    return isinstance(patch, list) and any(map(_has_directives, patch))


def _parse_probability(probability: int | str | None) -> tuple[int, str]:
    if probability is None:
        return ALWAYS_PERCENT, ""
    try:
        return scaled_value(probability, ALWAYS_PERCENT, round_up=False), ""
    except IntOrStringError as error:
        return 0, str(error)


def _build_selector(field: str, selector: LabelSelector | None, complaints: list[str]) -> Selector:
    try:
        return label_selector_as_selector(selector, absent=EVERYTHING)
    except SelectorError as error:
        complaints.append(f"{field}: {error}; it matches everything")
        return EVERYTHING


class ProfileCache:
    """The compiled profiles. `put` and `drop` follow the informer; `profiles` is what admission reads."""

    def __init__(self, profiles: Iterable[ClusterColocationProfile] = ()) -> None:
        self._by_name: dict[str, CompiledProfile] = {}
        self._profiles: tuple[CompiledProfile, ...] = ()
        for profile in profiles:
            self.put(profile)

    @property
    def profiles(self) -> tuple[CompiledProfile, ...]:
        return self._profiles

    def put(self, profile: ClusterColocationProfile) -> CompiledProfile:
        made = self._by_name[profile.metadata.name] = compile_profile(profile)
        self._sort()
        return made

    def drop(self, name: str) -> None:
        self._by_name.pop(name, None)
        self._sort()

    def _sort(self) -> None:
        self._profiles = tuple(self._by_name[name] for name in sorted(self._by_name))


Labels = Mapping[str, str]


def matching_profiles(
    profiles: Iterable[CompiledProfile],
    labels: Labels,
    namespace: str,
    namespace_labels: Callable[[str], Labels | None],
) -> list[CompiledProfile]:
    """Return the matching profiles in order. An unknown namespace counts as a match: it may be newer than the cache."""
    found: list[CompiledProfile] = []
    around: Labels | None = None
    asked = False
    for profile in profiles:
        if not profile.pod_selector.matches(labels):
            continue
        if not profile.namespace_selector.is_everything():
            if not asked:
                around, asked = namespace_labels(namespace), True
            if around is not None and not profile.namespace_selector.matches(around):
                continue
        found.append(profile)
    return found


def is_skipped_by_probability(profile: CompiledProfile, draw: Callable[[], int]) -> bool:
    """Return whether the probability skips the object. A draw that equals the percentage applies: 50 is 51 of 100."""
    if profile.probability_percent == 0:
        return True
    return profile.probability_percent != ALWAYS_PERCENT and draw() > profile.probability_percent


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
    """Apply the profile. `obj` must be writable at its top level; after a patch another object is returned."""
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
