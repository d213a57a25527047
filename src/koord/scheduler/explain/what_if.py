"""Decide some pods as the scheduler would, on a snapshot; nothing outside of it is changed.

The queue, the engines and the plugins are those of the program. In place of binding a pod stays assumed; in place of
evicting victims they are taken out of the snapshot, and the pod that needs their resources is tried again.

Hold a cluster of one moment as plain objects, read live or from a file, for a what-if to decide on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod, PodTransform
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.feature_gates import CROSS_SCHEDULER_NOMINATION
from koord.scheduler.explain.report import LastAttemptReport, report_attempt
from koord.scheduler.extender import extenders_for
from koord.scheduler.framework import binding_runtime, runtime
from koord.scheduler.framework.attempt import SchedulingAttempt, failure_of_decision, failure_of_rejection
from koord.scheduler.framework.cluster_event import ObjectEvent
from koord.scheduler.framework.decision import ChosenNode, Decision, PreemptionPlan, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions, SingleObjectResource
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import StatusWrite
from koord.scheduler.queue.backoff import QueueSettings
from koord.scheduler.queue.nominations import is_nominated_by_others
from koord.scheduler.queue.queued_pod import QueuedPod
from koord.scheduler.queue.scheduling_queue import SchedulingQueue

O = TypeVar("O", bound=Object)  # noqa: E741 - an object

PlainObject = dict[str, Any]
KindKey = tuple[str, str]  # apiVersion and kind


class SnapshotLister(Generic[O]):
    """List objects that change only where a what-if says so."""

    def __init__(self, objects: Iterable[O]) -> None:
        self.version = 0
        self._objects = {(o.metadata.namespace, o.metadata.name): o for o in objects}
        self._callbacks: list[Callable[[O | None, O | None], None]] = []

    def get(self, namespace: str, name: str) -> O | None:
        return self._objects.get((namespace, name))

    def list(self, namespace: str | None = None) -> Sequence[O]:
        return [o for (space, _), o in self._objects.items() if namespace is None or space == namespace]

    def on_change(self, callback: Callable[[O | None, O | None], None]) -> None:
        """Deliver what is there at once, as any lister does."""
        self._callbacks.append(callback)
        for known in self._objects.values():
            callback(None, known)

    def put(self, new: O) -> None:
        key = (new.metadata.namespace, new.metadata.name)
        old, self._objects[key] = self._objects.get(key), new
        self._notify(old, new)

    def remove(self, namespace: str, name: str) -> None:
        old = self._objects.pop((namespace, name), None)
        if old is not None:
            self._notify(old, None)

    def _notify(self, old: O | None, new: O | None) -> None:
        self.version += 1
        for callback in self._callbacks:
            callback(old, new)


class ApiSnapshot:
    """Hold objects by apiVersion and kind, as the API shows them. Pods are read as `pod_transform` makes them."""

    def __init__(self, objects: Iterable[PlainObject], pod_transform: PodTransform | None = None) -> None:
        self._pod_transform = pod_transform
        self._objects: dict[KindKey, list[PlainObject]] = {}
        for each in objects:
            self._objects.setdefault((each.get("apiVersion", ""), each.get("kind", "")), []).append(each)

    def typed(self, resource: Resource[O]) -> list[O]:
        found = self._objects.get((resource.api_version, resource.kind), ())
        made: list[Any] = [convert(each, resource.model) for each in found]
        if resource.model is Pod:
            made = [self.transform_pod(each) for each in made]
        return made

    def transform_pod(self, pod: Pod) -> Pod:
        """Return the pod as the scheduler's informer would deliver it."""
        return pod if self._pod_transform is None else self._pod_transform(pod)

    def with_pod_transform(self, pod_transform: PodTransform | None) -> ApiSnapshot:
        """Return the same objects with pods as another transform makes them."""
        return ApiSnapshot(self.objects(), pod_transform)

    def with_objects(self, others: Iterable[PlainObject]) -> ApiSnapshot:
        """Return a snapshot with these objects too; one of the same kind and name is replaced."""
        objects = {_identity(each): each for each in (*self.objects(), *others)}
        return ApiSnapshot(objects.values(), self._pod_transform)

    def objects(self) -> list[PlainObject]:
        return [each for group in self._objects.values() for each in group]

    def state(self) -> ClusterState:
        """Build a cluster state of the nodes and the pods that are on them."""
        state = ClusterState()
        for node in self.typed(NODES):
            state.set_node(node)
        for pod in self.typed(PODS):
            state.set_pod(pod)
        return state


def _identity(each: PlainObject) -> tuple[str, str, str, str]:
    meta = each.get("metadata") or {}
    return each.get("apiVersion", ""), each.get("kind", ""), meta.get("namespace", ""), meta.get("name", "")


class SnapshotHandle:
    """Give plugins a snapshot to read; `requested_kinds` records what they wanted to list."""

    def __init__(self, snapshot: ApiSnapshot, state: ClusterState, now_s: float) -> None:
        self._snapshot = snapshot
        self._now_s = now_s
        self.state = state
        self.actions = SchedulerActions()
        self.requested_kinds: dict[KindKey, Resource[Any]] = {}
        self._listers: dict[tuple[KindKey, type[Object], str, str], SnapshotLister[Any]] = {}

    def lister(self, resource: Resource[O]) -> SnapshotLister[O]:
        key = (resource.api_version, resource.kind)
        self.requested_kinds[key] = resource
        only = (resource.only_namespace, resource.only_name) if isinstance(resource, SingleObjectResource) else ("", "")
        known = self._listers.get((key, resource.model, *only))
        if known is None:
            objects = self._snapshot.typed(resource)
            if only[1]:
                objects = [o for o in objects if (o.metadata.namespace, o.metadata.name) == only]
            known = self._listers[key, resource.model, *only] = SnapshotLister(objects)
        return known

    def now(self) -> float:
        return self._now_s


def objects_of_documents(documents: Iterable[Any]) -> list[PlainObject] | str:
    """Return the objects of some documents, with Lists opened; or an error that names what is no object."""
    found: list[PlainObject] = []
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        if not isinstance(document, Mapping) or "kind" not in document:
            return f"document {number} is no Kubernetes object: it has no kind"
        if isinstance(document.get("items"), list):
            kind = str(document["kind"]).removesuffix("List")
            version = document.get("apiVersion", "v1")
            found += [{"apiVersion": version, "kind": kind, **item} for item in document["items"]]
        else:
            found.append(dict(document))
    return found


RUNNERS_UP = 4


class WhatIfOutcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report what would become of one pod."""

    pod: str
    scheduler: str
    node: str = ""  # where it would go now
    after_eviction_on: str = ""  # or where, once the victims are gone
    waiting_on: str = ""  # or where it would wait at Permit
    gated_by: str = ""
    message: str = ""  # why nowhere, as its condition would tell, or what it waits for
    attempt: LastAttemptReport | None = None
    extenders_not_asked: tuple[str, ...] = ()  # addresses of those that the scheduler would ask before this


class _WaitingPod(msgspec.Struct):
    attempt: SchedulingAttempt
    plugins: set[str]
    report: LastAttemptReport


class WhatIf:
    """Decide each pod as the real scheduler would; its placement counts for the next."""

    def __init__(self, completed_config: CompletedConfig, snapshot: ApiSnapshot, now_s: float, seed: int = 0) -> None:
        self._extenders = completed_config.config.extenders
        self._snapshot = snapshot = snapshot.with_pod_transform(completed_config.pod_transform)
        self._state = snapshot.state()
        self._handle = SnapshotHandle(snapshot, self._state, now_s)
        profiles = completed_config.make_profiles(self._handle)
        self._pods = self._handle.lister(PODS)
        self._queue = SchedulingQueue(profiles, QueueSettings(pop_from_backoff=False))
        self._engines = {
            p.scheduler_name: SchedulingEngine(p, self._state, seed, self._queue.nominations) for p in profiles
        }
        if completed_config.gates[CROSS_SCHEDULER_NOMINATION]:
            served = frozenset(self._engines)
            for pod in self._pods.list():
                if is_nominated_by_others(pod, served):
                    self._queue.nominations.set_by_others(self._state.pod_info(pod))
        self._next_pod_plugin = next((plugin for p in profiles for plugin in p.plugins_at(Plugin.next_pod)), None)
        self._now_s = now_s
        self._waiting: dict[str, _WaitingPod] = {}
        self._answered: list[tuple[_WaitingPod, str | None]] = []  # with why it was rejected
        self._outcomes: dict[str, WhatIfOutcome] = {}
        self._preempted_for: dict[str, LastAttemptReport] = {}  # by UID of the preemptor
        self._nominated: set[str] = set()  # members of a gang for which another member preempts
        self._rejected: list[PodInfo] = []  # from Permit, since the last attempt began
        self._preemptor = ""  # the UID of the pod to try next, now that its victims are gone
        self._handle.actions.backend = self

    def decide(self, pods: Sequence[Pod]) -> list[WhatIfOutcome]:
        pods = [self._snapshot.transform_pod(pod) for pod in pods]
        infos = [self._state.pod_info(pod) for pod in pods]
        for pod in pods:  # all are known before the first is tried, as members of a gang must be
            self._pods.put(pod)
        for number, info in enumerate(infos):
            if info.scheduler in self._engines:
                self._queue.add(info, 1e-6 * (number - len(infos)))  # equal pods are tried in their order
            else:
                served = ", ".join(sorted(self._engines))
                asked = info.scheduler or "nobody"
                self._conclude(info, message=f"it asks for scheduler {asked}; this configuration serves {served}")
        while (queued := self._next_pod()) is not None:
            self._attempt(queued)
        for uid, waiting in self._waiting.items():
            plugins = ", ".join(sorted(waiting.plugins))
            if uid not in self._outcomes:
                self._conclude(
                    waiting.attempt.pod,
                    waiting_on=waiting.attempt.node_name,
                    message=f"waiting for {plugins} to allow it",
                    attempt=waiting.report,
                )
        return [self._outcomes.get(info.uid) or self._gated(info) for info in infos]

    def _next_pod(self) -> QueuedPod | None:
        preemptor, self._preemptor = self._preemptor, ""
        if preemptor:
            return self._queue.take(preemptor, 0.0)
        before = ""
        while self._next_pod_plugin is not None and (uid := self._next_pod_plugin.next_pod()) not in (None, before):
            assert uid is not None
            before = uid
            chosen = self._queue.take(uid, 0.0)
            if chosen is not None:
                return chosen
        return self._queue.pop(0.0)

    def _attempt(self, queued: QueuedPod) -> None:
        pod, engine = queued.pod, self._engines[queued.pod.scheduler]
        self._rejected = []
        attempt = engine.decide(pod, RUNNERS_UP)
        decision: Decision = attempt.decision
        if isinstance(decision, Unschedulable):
            decision = engine.post_filter(attempt)
            self._settle_waiting_pods()
        report = report_attempt(1, self._now_s, 0.0, "simulated", "", decision)
        plan = decision.preempt if isinstance(decision, Unschedulable) else None
        if isinstance(decision, ChosenNode):
            self._assume_reserve_permit(attempt, report)
        elif plan is not None and pod.uid not in self._preempted_for:
            self._preempt(pod, plan, report)
        else:
            self._fail(pod, failure_of_decision(decision).message, report)
        self._settle_waiting_pods()

    def _settle_waiting_pods(self) -> None:
        """Place the pods that plugins allowed meanwhile, and release those that they rejected."""
        while self._answered:
            waiting, message = self._answered.pop(0)
            if message is None:
                self._place(waiting.attempt, waiting.report)
            else:
                self._release(waiting.attempt)
                self._rejected.append(waiting.attempt.pod)
                self._fail(waiting.attempt.pod, message, waiting.report)

    def _assume_reserve_permit(self, attempt: SchedulingAttempt, report: LastAttemptReport) -> None:
        rejection = runtime.run_nominate_reservation(attempt)
        if rejection is not None:
            self._fail(attempt.pod, failure_of_rejection(rejection).message, report)
            return
        self._state.assume(attempt.pod, attempt.node_name)
        rejection = runtime.run_reserve(attempt)
        waits = runtime.run_permit(attempt) if rejection is None else {}
        if isinstance(waits, runtime.PluginRejection):
            rejection, waits = waits, {}
        if rejection is not None:
            self._release(attempt)
            self._fail(attempt.pod, failure_of_rejection(rejection).message, report)
            return
        self._queue.nominate(attempt.pod.uid, "")
        if waits:
            self._waiting[attempt.pod.uid] = _WaitingPod(attempt, set(waits), report)
        else:
            self._place(attempt, report)

    def _place(self, attempt: SchedulingAttempt, report: LastAttemptReport) -> None:
        pod, node = attempt.pod, attempt.node_name
        self._queue.done(pod.uid)
        binding_runtime.run_post_bind(attempt, _raise)
        earlier = self._preempted_for.get(pod.uid)
        if earlier is not None or pod.uid in self._nominated:
            self._conclude(pod, after_eviction_on=node, message=earlier.message if earlier else "", attempt=earlier)
        else:
            self._conclude(pod, node=node, attempt=report)

    def _preempt(self, pod: PodInfo, plan: PreemptionPlan, report: LastAttemptReport) -> None:
        """Take the victims out, and try the pod again with those that were rejected together with it."""
        self._preempted_for[pod.uid] = report
        for uid in plan.clear_nominations:
            self._queue.nominate(uid, "")
        for victim in plan.victims:
            if self.reject(victim.uid, plan.plugin, "preempted", quiet=False):
                continue
            self._pods.remove(victim.namespace, victim.name)
            self._state.drop_pod(victim.uid)
            if victim.uid in self._outcomes:
                self._conclude(victim, message=f"it would be placed on {plan.node} and evicted for {pod.key}")
        self._settle_waiting_pods()
        self._requeue(pod, plan.node)
        self._preemptor = pod.uid
        for other in self._rejected:
            self._outcomes.pop(other.uid, None)
            self._nominated.add(other.uid)
            self._requeue(other, "")

    def _requeue(self, pod: PodInfo, node: str) -> None:
        self._queue.done(pod.uid)
        self._queue.add(pod, 0.0)
        if node:
            self._queue.nominate(pod.uid, node)

    def _fail(self, pod: PodInfo, message: str, report: LastAttemptReport) -> None:
        self._queue.done(pod.uid)
        self._conclude(pod, message=message, attempt=report)

    def _release(self, attempt: SchedulingAttempt) -> None:
        try:
            runtime.run_unreserve(attempt)
        finally:
            self._state.forget(attempt.pod.uid)

    def _gated(self, pod: PodInfo) -> WhatIfOutcome:
        status = self._queue.status_of(pod.uid, 0.0)
        return WhatIfOutcome(
            pod=pod.key,
            scheduler=pod.scheduler,
            gated_by=status.gated_by if status is not None else "",
            message=status.gate_reason if status is not None else "it was not tried",
        )

    def _conclude(
        self,
        pod: PodInfo,
        *,
        node: str = "",
        after_eviction_on: str = "",
        waiting_on: str = "",
        message: str = "",
        attempt: LastAttemptReport | None = None,
    ) -> None:
        self._outcomes[pod.uid] = WhatIfOutcome(
            pod=pod.key,
            scheduler=pod.scheduler,
            node=node,
            after_eviction_on=after_eviction_on,
            waiting_on=waiting_on,
            message=message,
            attempt=attempt,
            extenders_not_asked=extenders_for(pod, self._extenders) if attempt is not None else (),
        )

    # Actions of plugins ------------------------------------------------------------------------------------------

    def waiting_pods(self) -> Iterable[tuple[PodInfo, str]]:
        return [(waiting.attempt.pod, waiting.attempt.node_name) for waiting in self._waiting.values()]

    def allow(self, uid: str, plugin: str) -> bool:
        waiting = self._waiting.get(uid)
        if waiting is None:
            return False
        waiting.plugins.discard(plugin)
        if not waiting.plugins:
            self._answered.append((self._waiting.pop(uid), None))
        return True

    def reject(self, uid: str, plugin: str, message: str, *, quiet: bool) -> bool:
        waiting = self._waiting.pop(uid, None)
        if waiting is None:
            return False
        self._answered.append((waiting, message))
        return True

    def report_unschedulable(self, key: str, uid: str, message: str) -> None:
        pod = next((queued.pod for queued in self._queue.pods() if queued.uid == uid), None)
        if pod is not None:
            self._conclude(pod, message=message)

    def nominate(self, key: str, uid: str, node: str) -> None:
        self._queue.nominate(uid, node)
        if node:
            self._nominated.add(uid)

    def activate(self, uids: Iterable[str]) -> None:
        self._queue.activate(uids, 0.0)

    def publish_event(self, object_event: ObjectEvent) -> None:
        """Wake nobody: each pod is tried once."""

    def write_status(self, write: StatusWrite) -> None:
        """Write nothing: a what-if changes no object."""


def _raise(plugin: str) -> None:
    raise RuntimeError(f"PostBind of {plugin} failed")


def kinds_read(completed_config: CompletedConfig) -> list[tuple[str, str]]:
    """Return the kinds, by apiVersion and kind, that a configuration's plugins list besides nodes and pods."""
    snapshot = ApiSnapshot(())
    handle = SnapshotHandle(snapshot, snapshot.state(), 0.0)
    completed_config.make_profiles(handle)
    return sorted(handle.requested_kinds)
