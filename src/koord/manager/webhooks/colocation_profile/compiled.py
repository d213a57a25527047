"""ClusterColocationProfiles compiled for matching, once per version, and which of them match an object.

A selector that cannot be read matches everything, as upstream has it: a typing error then shows on the
first pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.koordinator.protocol import A_SKIP_UPDATE_RESOURCES
from koord.api.kubernetes.meta import LabelSelector, label_selector_as_selector
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
        keeps_resources=A_SKIP_UPDATE_RESOURCES in profile.metadata.annotations,
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
    """Return the matching profiles in order. An unknown namespace counts as a match: it may be newer than the
    cache.
    """
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
    """Return whether the probability skips the object. A draw that equals the percentage applies, so 50 means 51
    of 100.
    """
    if profile.probability_percent == 0:
        return True
    return profile.probability_percent != ALWAYS_PERCENT and draw() > profile.probability_percent
