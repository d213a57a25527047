"""Reports pods that were admitted without the profile that matches them: the webhook was down, or failed and
was ignored.

It changes nothing: the requests of a running pod cannot be changed. An event on the pod and a metric say
that a
webhook with the failure policy Ignore did not do its work, which nothing else would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import msgspec

from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES
from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.kubernetes.builtin_kinds import NAMESPACES, PODS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.controller.controller import Controller, Done, ReconcileResult
from koord.kube.controller.workqueue import WorkQueue
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.informer.informer import HandlerRegistration
from koord.manager.context import ManagerContext
from koord.manager.webhooks.admission import excluded_namespaces
from koord.manager.webhooks.colocation_profile.compiled import ProfileCache
from koord.manager.webhooks.pod_mutating.bypass_detection import bypass_evidence
from koord.telemetry.metrics import MetricReading

BYPASSED_REASON = "WebhookBypassed"
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
        self._subscriptions: list[Callable[[], None]] = []
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._controller = Controller(self.name, self._queue, self.reconcile)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        profiles: HandlerRegistration[ClusterColocationProfile] = self._profiles.add_event_handler(self._on_profile)
        pods: HandlerRegistration[Pod] = self._pods.add_event_handler(self._on_pod)
        self._subscriptions = [
            lambda: self._profiles.remove_event_handler(profiles),
            lambda: self._pods.remove_event_handler(pods),
        ]
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        for end in self._subscriptions:
            end()
        self._subscriptions = []
        self._queue.shutdown(drain=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

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
        yield MetricReading(
            "koord_manager_webhook_bypassed_pods",
            "Pods there are now that look as if they were admitted without the profile that is for them.",
            "gauge",
            ("namespace",),
            tuple(sorted(counts.items())),
        )
        total = ((), float(self._total))
        yield MetricReading(
            "koord_manager_webhook_bypassed_pods_total",
            "Pods that were found to be admitted without the profile that is for them.",
            "counter",
            (),
            (total,),
        )

    def _evidence(self, pod: Pod) -> str | None:
        profiles = self._profile_cache.profiles
        if not self._translates:
            profiles = tuple(msgspec.structs.replace(profile, keeps_resources=True) for profile in profiles)
        return bypass_evidence(pod, profiles, self._namespace_labels, self._excluded)

    async def _run(self) -> None:
        for informer in (self._profiles, self._namespaces, self._pods):
            await informer.wait_for_sync()
        await self._controller.run()

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
            self._queue.add(object_key(change.object))
        elif change.kind == "deleted":
            self._bypassed.pop(change.object.metadata.uid, None)
