"""This module decides which waiting pods a profile covers, and what it changes on them. Pure.

The steps are those of admission without scheduler name, priority class and resource translation, which
cannot be
changed on an existing pod. Applying a profile twice has the same result as applying it once.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import msgspec

from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.kubernetes.meta import label_selector_as_selector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.manager.webhooks.admission import SYSTEM_NAMESPACES, AdmissionDenied
from koord.manager.webhooks.colocation_profile.application import apply_profile
from koord.manager.webhooks.colocation_profile.compiled import (
    CompiledProfile,
    compile_profile,
    is_skipped_by_probability,
)
from koord.manager.webhooks.copy_on_write import PlainObject, readable, writable
from koord.manager.webhooks.pod_mutating.admission import POD_LAYOUT
from koord.values.selector import EVERYTHING, Selector, SelectorError


class ProfileCoverage(msgspec.Struct, frozen=True):
    """A profile compiled for existing pods. Unlike at admission, a profile without selector covers none."""

    profile: CompiledProfile
    pod_selector: Selector
    namespace_selector: Selector
    excluded_namespaces: frozenset[str]  # namespaces that no profile reaches


def compile_coverage(
    profile: ClusterColocationProfile, excluded_namespaces: frozenset[str] = SYSTEM_NAMESPACES
) -> ProfileCoverage | str:
    """Compile the profile, or return what is wrong with it."""
    made = compile_profile(profile)
    if made.bad_probability:
        return f"probability: {made.bad_probability}"
    try:
        pods = label_selector_as_selector(profile.spec.selector)
        namespaces = label_selector_as_selector(profile.spec.namespace_selector, absent=EVERYTHING)
    except SelectorError as error:
        return f"selector: {error}"
    movable = msgspec.structs.replace(made, scheduler_name="", priority_class_name="")
    return ProfileCoverage(movable, pods, namespaces, excluded_namespaces)


def is_covered(coverage: ProfileCoverage, pod: Pod, namespace_labels: Mapping[str, str] | None) -> bool:
    meta = pod.metadata
    if pod.spec.node_name or pod.status.phase not in ("", "Pending") or meta.deletion_timestamp is not None:
        return False
    if meta.namespace in coverage.excluded_namespaces or not coverage.pod_selector.matches(meta.labels):
        return False
    if not coverage.namespace_selector.is_everything() and (
        namespace_labels is None or not coverage.namespace_selector.matches(namespace_labels)
    ):
        return False
    return not is_skipped_by_probability(coverage.profile, lambda: stable_draw(coverage.profile.name, meta.uid))


def stable_draw(profile: str, uid: str) -> int:
    """Return 0 to 99, always the same for a pod: with a new draw each round half the pods would end as all of
    them.
    """
    return zlib.crc32(f"{profile}/{uid}".encode()) % 100


def overlay_profile(pod: PlainObject, profile: CompiledProfile) -> PlainObject | AdmissionDenied:
    """Return the pod with the profile applied; the given pod is not changed."""
    made = dict(pod)
    for key, suffix in profile.label_suffixes:
        value = readable(made, "metadata", "labels").get(key) or ""
        if suffix and value.endswith(suffix):  # it was appended before; the steps below append it again
            writable(made, "metadata", "labels")[key] = value.removesuffix(suffix)
    return apply_profile(made, profile, POD_LAYOUT, _no_priority_class)


def _no_priority_class(name: str) -> PriorityClass | None:
    raise AssertionError(f"priority class {name}: profiles for existing pods have none")
