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

from koord.api.builtin import NAMESPACES, PODS
from koord.api.colocation import ClusterColocationProfile
from koord.api.custom import CLUSTER_COLOCATION_PROFILES
from koord.api.pod import Pod
from koord.api.right import READ, Right
from koord.kube.cache import Change, Key, key_of
from koord.kube.controller import Controller, Done, Outcome
from koord.kube.recorder import reference
from koord.kube.subscription import Subscription
from koord.kube.workqueue import WorkQueue
from koord.manager.webhooks.exclusion import excluded
from koord.manager.webhooks.pod_mutating.bypass import bypassed
from koord.manager.webhooks.profile.compiled import Book
from koord.manager.world import World
from koord.telemetry.metrics.registry import Reading

REASON = "WebhookBypassed"
_ENDED = ("Succeeded", "Failed")


class BypassController:
    name: ClassVar[str] = "bypass"
    rights: ClassVar[tuple[Right, ...]] = (
        Right("", ("pods", "namespaces"), READ),
        Right("config.koordinator.sh", ("clustercolocationprofiles",), READ),
        Right("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(self, world: World) -> None:
        self._recorder = world.recorder
        self._excluded = excluded(world.settings.namespace)
        self._translates = not world.settings.gate("ColocationProfileSkipMutatingResources")
        self._pods = world.informers.of(PODS)
        self._namespaces = world.informers.of(NAMESPACES)
        self._profiles = world.informers.of(CLUSTER_COLOCATION_PROFILES)
        self._book = Book()
        self._found: dict[str, str] = {}  # uid of each pod that looks bypassed -> its namespace
        self._total = 0
        self._subscriptions: list[Callable[[], None]] = []
        self._queue: WorkQueue[Key] = WorkQueue(world.clock, name=self.name)
        self._controller = Controller(self.name, self._queue, self.reconcile)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        profiles: Subscription[ClusterColocationProfile] = self._profiles.on(self._on_profile)
        pods: Subscription[Pod] = self._pods.on(self._on_pod)
        self._subscriptions = [lambda: self._profiles.off(profiles), lambda: self._pods.off(pods)]
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

    async def reconcile(self, key: Key) -> Outcome:
        pod = self._pods.get(*key)
        if pod is None or pod.metadata.uid in self._found or pod.status.phase in _ENDED:
            return Done()
        why = self._why(pod)
        if why is not None:
            self._found[pod.metadata.uid] = pod.metadata.namespace
            self._total += 1
            message = f"This pod looks as if it was admitted without koord-manager's webhook: {why}"
            self._recorder.record(reference(PODS, pod), "Warning", REASON, message, action="Admit")
        return Done()

    def readings(self) -> Iterable[Reading]:
        counts: dict[tuple[str, ...], float] = {}
        for namespace in self._found.values():
            counts[(namespace,)] = counts.get((namespace,), 0.0) + 1
        yield Reading(
            "koord_manager_webhook_bypassed_pods",
            "Pods there are now that look as if they were admitted without the profile that is for them.",
            "gauge",
            ("namespace",),
            tuple(sorted(counts.items())),
        )
        total = ((), float(self._total))
        yield Reading(
            "koord_manager_webhook_bypassed_pods_total",
            "Pods that were found to be admitted without the profile that is for them.",
            "counter",
            (),
            (total,),
        )

    def _why(self, pod: Pod) -> str | None:
        profiles = self._book.profiles
        if not self._translates:
            profiles = tuple(msgspec.structs.replace(profile, keeps_resources=True) for profile in profiles)
        return bypassed(pod, profiles, self._namespace_labels, self._excluded)

    async def _run(self) -> None:
        for informer in (self._profiles, self._namespaces, self._pods):
            await informer.wait_synced()
        await self._controller.run()

    def _namespace_labels(self, name: str) -> Mapping[str, str] | None:
        found = self._namespaces.get("", name)
        return None if found is None else found.metadata.labels

    def _on_profile(self, change: Change[ClusterColocationProfile]) -> None:
        if change.kind == "deleted":
            self._book.drop(change.object.metadata.name)
        else:
            self._book.put(change.object)

    def _on_pod(self, change: Change[Pod]) -> None:
        """Enqueue new pods only: what counts is how a pod was admitted; later profiles prove nothing about it."""
        if change.kind == "added":
            self._queue.add(key_of(change.object))
        elif change.kind == "deleted":
            self._found.pop(change.object.metadata.uid, None)
