"""Reports pods that no webhook changed though a profile matches: it was down, or failed and was ignored.

Such a pod runs as an ordinary one, on resources that belong to others. Nothing is changed: the requests of a running
pod cannot be. An event on the pod and a metric say that a webhook with the failure policy Ignore did not do its work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import msgspec

from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES
from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.koordinator.protocol import L_PRIORITY, L_QOS_CLASS
from koord.api.koordinator.resource_name import TIER_RESOURCE_NAMES
from koord.api.kubernetes.builtin_kinds import NAMESPACES, PODS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import recorded_qos_class
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.controller.controller import Done, ReconcileResult
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.manager.reconcile_loop import ManagerContext, ReconcileLoop
from koord.manager.webhooks.admission import SYSTEM_NAMESPACES, excluded_namespaces, readable
from koord.manager.webhooks.colocation_profile import ALWAYS_PERCENT, CompiledProfile, ProfileCache, matching_profiles
from koord.policy.qos import priority_class_with_default
from koord.telemetry.metrics import MetricDeclaration, MetricReading

BYPASSED_REASON = "WebhookBypassed"
BYPASSED_PODS = MetricDeclaration(
    "koord_manager_webhook_bypassed_pods",
    "Pods there are now that look as if they were admitted without the profile that is for them.",
    "gauge",
    ("namespace",),
)
BYPASSED_PODS_TOTAL = MetricDeclaration(
    "koord_manager_webhook_bypassed_pods_found_total",
    "Pods that were found to be admitted without the profile that is for them.",
    "counter",
)
WEBHOOK_BYPASS_METRICS = (BYPASSED_PODS, BYPASSED_PODS_TOTAL)
_TERMINAL_PHASES = ("Succeeded", "Failed")


class WebhookBypassController:
    name: ClassVar[str] = "bypass"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("pods", "namespaces"), READ_VERBS),
        RbacRule("config.koordinator.sh", ("clustercolocationprofiles",), READ_VERBS),
        RbacRule("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(self, context: ManagerContext) -> None:
        self._recorder = context.recorder
        self._excluded = excluded_namespaces(context.settings.namespace)
        self._translates = not context.settings.is_gate_enabled("ColocationProfileSkipMutatingResources")
        self._pods = context.informers.for_resource(PODS)
        self._namespaces = context.informers.for_resource(NAMESPACES)
        self._profiles = context.informers.for_resource(CLUSTER_COLOCATION_PROFILES)
        self._profile_cache = ProfileCache()
        self._bypassed: dict[str, str] = {}  # uid of each pod that looks bypassed -> its namespace
        self._total = 0
        self._loop: ReconcileLoop[ObjectKey] = ReconcileLoop(self.name, context.clock, self.reconcile)

    async def start(self) -> None:
        self._loop.start(
            (self._profiles, self._namespaces, self._pods),
            ((self._profiles, self._on_profile), (self._pods, self._on_pod)),
        )

    async def stop(self) -> None:
        await self._loop.stop()

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        pod = self._pods.get(*key)
        if pod is None or pod.metadata.uid in self._bypassed or pod.status.phase in _TERMINAL_PHASES:
            return Done()
        why = self._evidence(pod)
        if why is not None:
            self._bypassed[pod.metadata.uid] = pod.metadata.namespace
            self._total += 1
            message = f"This pod looks as if it was admitted without koord-manager's webhook: {why}"
            self._recorder.record(object_reference(PODS, pod), "Warning", BYPASSED_REASON, message, action="Admit")
        return Done()

    def readings(self) -> Iterable[MetricReading]:
        counts: dict[tuple[str, ...], float] = {}
        for namespace in self._bypassed.values():
            counts[(namespace,)] = counts.get((namespace,), 0.0) + 1
        yield BYPASSED_PODS.reading(tuple(sorted(counts.items())))
        yield BYPASSED_PODS_TOTAL.reading((((), float(self._total)),))

    def _evidence(self, pod: Pod) -> str | None:
        profiles = self._profile_cache.profiles
        if not self._translates:
            profiles = tuple(msgspec.structs.replace(profile, keeps_resources=True) for profile in profiles)
        return bypass_evidence(pod, profiles, self._namespace_labels, self._excluded)

    def _namespace_labels(self, name: str) -> Mapping[str, str] | None:
        found = self._namespaces.get("", name)
        return None if found is None else found.metadata.labels

    def _on_profile(self, change: ObjectChange[ClusterColocationProfile]) -> None:
        if change.kind == "deleted":
            self._profile_cache.drop(change.object.metadata.name)
        else:
            self._profile_cache.put(change.object)

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        """Enqueue new pods only: what counts is how a pod was admitted; later profiles prove nothing about it."""
        if change.kind == "added":
            self._loop.queue.add(object_key(change.object))
        elif change.kind == "deleted":
            self._bypassed.pop(change.object.metadata.uid, None)


def bypass_evidence(
    pod: Pod,
    profiles: Iterable[CompiledProfile],
    namespace_labels: Callable[[str], Mapping[str, str] | None],
    excluded: frozenset[str] = SYSTEM_NAMESPACES,
) -> str | None:
    """Return why the pod looks bypassed, or None. Newer profiles and those with a probability prove nothing.

    Pass current profiles: one that was changed since the pod was created may be blamed wrongly, so report "looks".
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
