"""ClusterColocationProfiles compiled for matching, once per version, and which of them match an object.

A selector that cannot be read matches everything, as upstream has it: a typing error then shows on the
first pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from koord.api.colocation import ClusterColocationProfile
from koord.api.meta import LabelSelector
from koord.api.protocol import A_SKIP_UPDATE_RESOURCES
from koord.values.int_or_string import IntOrStringError, scaled
from koord.values.selector import EVERYTHING, Selector, SelectorError

ALWAYS = 100

Pairs = tuple[tuple[str, str], ...]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    created: datetime | None = None
    namespaces: Selector = EVERYTHING
    pods: Selector = EVERYTHING
    percent: int = ALWAYS
    bad_probability: str = ""  # then the profile fails whatever it matches
    keeps_resources: bool = False  # skip-update-resources
    labels: Pairs = ()
    annotations: Pairs = ()
    label_mapping: Pairs = ()  # source, destination
    annotation_mapping: Pairs = ()
    label_suffixes: Pairs = ()
    scheduler_name: str = ""
    qos_class: str = ""
    priority_class_name: str = ""
    sub_priority: int | None = None
    patch: dict[str, Any] | None = None
    directed: bool = False  # the patch holds directives, which may be left over after a merge
    complaints: tuple[str, ...] = ()  # what an operator should hear about


def compiled(profile: ClusterColocationProfile) -> Profile:
    spec = profile.spec
    complaints: list[str] = []
    percent, wrong = _percent(spec.probability)
    if wrong:
        complaints.append(f"probability: {wrong}")
    return Profile(
        name=profile.metadata.name,
        created=profile.metadata.creation_timestamp,
        namespaces=_selector("namespaceSelector", spec.namespace_selector, complaints),
        pods=_selector("selector", spec.selector, complaints),
        percent=percent,
        bad_probability=wrong,
        keeps_resources=A_SKIP_UPDATE_RESOURCES in profile.metadata.annotations,
        labels=_pairs(spec.labels),
        annotations=_pairs(spec.annotations),
        label_mapping=_pairs(spec.label_keys_mapping),
        annotation_mapping=_pairs(spec.annotation_keys_mapping),
        label_suffixes=_pairs(spec.label_suffixes),
        scheduler_name=spec.scheduler_name,
        qos_class=spec.qos_class,
        priority_class_name=spec.priority_class_name,
        sub_priority=spec.koordinator_priority,
        patch=spec.patch,
        directed=_directed(spec.patch),
        complaints=tuple(complaints),
    )


def _pairs(mapping: dict[str, str]) -> Pairs:
    """Sort the pairs so that chains of mappings are deterministic; upstream takes them in any order."""
    return tuple(sorted(mapping.items()))


def is_directive(key: str) -> bool:
    """Return whether a key of a strategic merge patch is a directive rather than a field."""
    return key.startswith(("$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/"))


def _directed(patch: Any) -> bool:
    if isinstance(patch, dict):
        return any(is_directive(key) or _directed(value) for key, value in patch.items())
    return isinstance(patch, list) and any(map(_directed, patch))


def _percent(probability: int | str | None) -> tuple[int, str]:
    if probability is None:
        return ALWAYS, ""
    try:
        return scaled(probability, ALWAYS, round_up=False), ""
    except IntOrStringError as error:
        return 0, str(error)


def _selector(field: str, selector: LabelSelector | None, complaints: list[str]) -> Selector:
    if selector is None:
        return EVERYTHING
    try:
        return Selector.of(selector.match_labels, [(e.key, e.operator, e.values) for e in selector.match_expressions])
    except SelectorError as error:
        complaints.append(f"{field}: {error}; it matches everything")
        return EVERYTHING


class Book:
    """The compiled profiles. `put` and `drop` follow the informer; `profiles` is what admission reads."""

    def __init__(self, profiles: Iterable[ClusterColocationProfile] = ()) -> None:
        self._by_name: dict[str, Profile] = {}
        self._profiles: tuple[Profile, ...] = ()
        for profile in profiles:
            self.put(profile)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        return self._profiles

    def put(self, profile: ClusterColocationProfile) -> Profile:
        made = self._by_name[profile.metadata.name] = compiled(profile)
        self._sort()
        return made

    def drop(self, name: str) -> None:
        self._by_name.pop(name, None)
        self._sort()

    def _sort(self) -> None:
        self._profiles = tuple(self._by_name[name] for name in sorted(self._by_name))
