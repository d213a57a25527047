"""Which waiting pods a profile covers, and what it changes on them. Pure.

The steps are those of admission without scheduler name, priority class and resource translation, which
cannot be
changed on an existing pod. Applying a profile twice has the same result as applying it once.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.api.colocation import ClusterColocationProfile
from koord.api.meta import LabelSelector
from koord.api.pod import Pod
from koord.api.scheduling import PriorityClass
from koord.manager.webhooks.draft import Obj, owned, part
from koord.manager.webhooks.exclusion import SYSTEM
from koord.manager.webhooks.pod_mutating.admission import TARGET
from koord.manager.webhooks.profile.application import applied
from koord.manager.webhooks.profile.compiled import Profile, compiled
from koord.manager.webhooks.profile.match import is_left_out
from koord.manager.webhooks.verdict import Denied
from koord.values.selector import EVERYTHING, NOTHING, Selector, SelectorError


class Coverage(msgspec.Struct, frozen=True):
    """A profile compiled for existing pods. Unlike at admission, a profile without selector covers none."""

    profile: Profile
    pods: Selector
    namespaces: Selector
    spared: frozenset[str]  # namespaces that no profile reaches


def coverage(profile: ClusterColocationProfile, spared: frozenset[str] = SYSTEM) -> Coverage | str:
    """Compile the profile, or return what is wrong with it."""
    made = compiled(profile)
    if made.bad_probability:
        return f"probability: {made.bad_probability}"
    try:
        pods = _selector(profile.spec.selector, absent=NOTHING)
        namespaces = _selector(profile.spec.namespace_selector, absent=EVERYTHING)
    except SelectorError as error:
        return f"selector: {error}"
    movable = msgspec.structs.replace(made, scheduler_name="", priority_class_name="")
    return Coverage(movable, pods, namespaces, spared)


def covers(coverage: Coverage, pod: Pod, namespace_labels: Mapping[str, str] | None) -> bool:
    meta = pod.metadata
    if pod.spec.node_name or pod.status.phase not in ("", "Pending") or meta.deletion_timestamp is not None:
        return False
    if meta.namespace in coverage.spared or not coverage.pods.matches(meta.labels):
        return False
    if not coverage.namespaces.is_everything() and (
        namespace_labels is None or not coverage.namespaces.matches(namespace_labels)
    ):
        return False
    return not is_left_out(coverage.profile, lambda: draw(coverage.profile.name, meta.uid))


def draw(profile: str, uid: str) -> int:
    """Return 0 to 99, always the same for a pod: with a new draw each round half the pods would end as all of
    them.
    """
    return zlib.crc32(f"{profile}/{uid}".encode()) % 100


def overlaid(pod: Obj, profile: Profile) -> Obj | Denied:
    """Return the pod with the profile applied; the given pod is not changed."""
    made = dict(pod)
    for key, suffix in profile.label_suffixes:
        value = part(made, "metadata", "labels").get(key) or ""
        if suffix and value.endswith(suffix):  # it was appended before; the steps below append it again
            owned(made, "metadata", "labels")[key] = value.removesuffix(suffix)
    return applied(made, profile, TARGET, _no_class)


def merge_patch(old: Obj, new: Obj) -> Obj:
    """Return the JSON merge patch (RFC 7386) from one object to the other; empty when they are equal."""
    patch: Obj = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif isinstance(value, dict) and isinstance(old[key], dict):
            if inner := merge_patch(old[key], value):
                patch[key] = inner
        elif not _same(old[key], value):
            patch[key] = value
    return patch


def _same(old: Any, new: Any) -> bool:
    """Return whether two values are equal on the wire, where true is not 1."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    return type(old) is type(new) and bool(old == new)


def _selector(given: LabelSelector | None, *, absent: Selector) -> Selector:
    if given is None:
        return absent
    return Selector.of(given.match_labels, [(one.key, one.operator, one.values) for one in given.match_expressions])


def _no_class(name: str) -> PriorityClass | None:
    raise AssertionError(f"priority class {name}: profiles for existing pods have none")
