"""Detection of pods that no webhook changed though a profile matches: the webhook was down, or failed and was
ignored.

Such a pod runs as an ordinary one, on resources that belong to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from koord.api.koordinator.protocol import L_PRIORITY, L_QOS_CLASS
from koord.api.koordinator.resource_name import TIER_RESOURCE_NAMES
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import recorded_qos_class
from koord.manager.webhooks.admission import SYSTEM_NAMESPACES
from koord.manager.webhooks.colocation_profile.compiled import ALWAYS_PERCENT, CompiledProfile, matching_profiles
from koord.manager.webhooks.copy_on_write import readable
from koord.policy.qos import priority_class_with_default


def bypass_evidence(
    pod: Pod,
    profiles: Iterable[CompiledProfile],
    namespace_labels: Callable[[str], Mapping[str, str] | None],
    excluded: frozenset[str] = SYSTEM_NAMESPACES,
) -> str | None:
    """Return why the pod looks bypassed, or None. Newer profiles and those with a probability prove nothing.

    Pass current profiles: one that was changed since the pod was created may be blamed wrongly, so report
    "looks".
    """
    meta = pod.metadata
    if meta.namespace in excluded or namespace_labels(meta.namespace) is None:
        return None
    there = [profile for profile in profiles if _existed_before(profile, pod)]
    written = {key for profile in there for key in _written_label_keys(profile)}
    unsure = [profile for profile in there if profile.warnings or not _certainly_matched(profile, written)]
    due = [
        profile
        for profile in matching_profiles(there, meta.labels, meta.namespace, namespace_labels)
        if profile not in unsure
    ]
    return _missing_qos_class(pod, due, unsure) or _untranslated_resources(pod, due, unsure)


def _existed_before(profile: CompiledProfile, pod: Pod) -> bool:
    born = pod.metadata.creation_timestamp
    return profile.created is None or born is None or profile.created < born


def _certainly_matched(profile: CompiledProfile, written: set[str]) -> bool:
    """Return whether the profile certainly matched: labels that profiles write may have differed at admission."""
    return not any(requirement.key in written for requirement in profile.pod_selector.requirements)


def _written_label_keys(profile: CompiledProfile) -> list[str]:
    keys = [key for key, _ in (*profile.labels, *profile.label_suffixes)]
    keys += [destination for _, destination in profile.label_mapping]
    keys += readable(profile.patch or {}, "metadata", "labels")
    return [*keys, L_QOS_CLASS, L_PRIORITY]


def _missing_qos_class(pod: Pod, due: list[CompiledProfile], unsure: list[CompiledProfile]) -> str | None:
    """Return the missing QoS class. The last profile that states one decides, if nothing else writes it."""
    stated = [profile for profile in due if profile.qos_class]
    if not stated or any(profile.probability_percent != ALWAYS_PERCENT or _may_relabel(profile) for profile in due):
        return None
    if any(profile.qos_class or _may_relabel(profile) for profile in unsure):
        return None
    wanted, has = stated[-1], pod.metadata.labels.get(L_QOS_CLASS, "")
    if has == wanted.qos_class:
        return None
    return f"profile {wanted.name} gives {L_QOS_CLASS}={wanted.qos_class}, the pod has {has or 'none'}"


def _may_relabel(profile: CompiledProfile) -> bool:
    """Return whether the profile writes the QoS class in another way than by stating it."""
    destinations = [destination for _, destination in profile.label_mapping]
    named = [key for key, _ in (*profile.labels, *profile.label_suffixes)]
    return profile.patch is not None or L_QOS_CLASS in (*destinations, *named)


def _untranslated_resources(pod: Pod, due: list[CompiledProfile], unsure: list[CompiledProfile]) -> str | None:
    if not due or any(profile.keeps_resources for profile in (*due, *unsure)):
        return None
    priority_class = priority_class_with_default(pod.metadata.labels, pod.spec.priority, recorded_qos_class(pod))
    names = TIER_RESOURCE_NAMES.get(priority_class)
    if names is None:
        return None
    asked = {
        name
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for name in (*container.resources.requests, *container.resources.limits)
        if name in names
    }
    if not asked:
        return None
    return f"a {priority_class} pod of profile {due[-1].name} asks for {' and '.join(sorted(asked))} of the node itself"
