"""Finding pods that no webhook changed though a profile is for them: it was away, or it failed and was let through.

Such a pod runs as an ordinary one, on resources that belong to others. Whoever finds one reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from koord.api.pod import Pod
from koord.api.pod_qos import pod_qos
from koord.api.protocol import L_QOS_CLASS
from koord.api.resource_name import TIERS
from koord.manager.webhooks.exclusion import is_excluded
from koord.manager.webhooks.profile.compiled import ALWAYS, Profile
from koord.manager.webhooks.profile.match import matching
from koord.policy.qos.classes import priority_class_with_default


def bypassed(
    pod: Pod, profiles: Iterable[Profile], namespace_labels: Callable[[str], Mapping[str, str] | None]
) -> str | None:
    """Why the pod looks untouched, or None. Profiles that came after the pod, or are left to chance, prove nothing.

    Give it profiles as they are: one that was changed since the pod came may be blamed wrongly, so say "looks".
    """
    meta = pod.metadata
    if is_excluded(meta.namespace, meta.labels) or namespace_labels(meta.namespace) is None:
        return None
    due = [
        profile
        for profile in matching(profiles, meta.labels, meta.namespace, namespace_labels)
        if not profile.complaints and _was_there(profile, pod)
    ]
    return _unlabelled(pod, due) or _untranslated(pod, due)


def _was_there(profile: Profile, pod: Pod) -> bool:
    born = pod.metadata.creation_timestamp
    return profile.created is None or born is None or profile.created < born


def _unlabelled(pod: Pod, due: list[Profile]) -> str | None:
    """The last profile to state a class is the one whose class the pod should have, unless a patch took it away."""
    stated = [p for p in due if p.qos_class]
    if not stated or any(p.percent != ALWAYS or p.patch is not None for p in due):
        return None
    wanted, has = stated[-1], pod.metadata.labels.get(L_QOS_CLASS, "")
    if has == wanted.qos_class:
        return None
    return f"profile {wanted.name} gives {L_QOS_CLASS}={wanted.qos_class}, the pod has {has or 'none'}"


def _untranslated(pod: Pod, due: list[Profile]) -> str | None:
    if not due or any(profile.keeps_resources for profile in due):
        return None
    priority_class = priority_class_with_default(pod.metadata.labels, pod.spec.priority, pod_qos(pod))
    names = TIERS.get(priority_class)
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
