"""The taint eviction controller deletes pods that do not tolerate a NoExecute taint, or not for longer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.embedded.workloads.controller_context import ControllerContext, seconds_until
from koord.embedded.workloads.pod_state import add_disruption_target, index_pods_by_node, pods_on_node
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter
from koord.kube.controller.workqueue import WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError
from koord.policy.node_match import NO_EXECUTE, tolerates


class EvictionDeadline(msgspec.Struct, frozen=True):
    """The time at which the pod must be evicted; in the past means now."""

    at: datetime


def decide_taint_eviction(pod: Pod, taints: tuple[Taint, ...], first_seen: datetime) -> EvictionDeadline | None:
    """Return when the pod must be evicted, or None. `first_seen` is used for taints without a time of their own."""
    moments: list[datetime] = []
    for taint in taints:
        if taint.effect != NO_EXECUTE:
            continue
        toleration = next((t for t in pod.spec.tolerations if tolerates(t, taint)), None)
        if toleration is None:
            return EvictionDeadline(datetime.min.replace(tzinfo=UTC))
        if toleration.toleration_seconds is not None:
            patience = timedelta(seconds=max(0, toleration.toleration_seconds))
            moments.append((taint.time_added or first_seen) + patience)
    return EvictionDeadline(min(moments)) if moments else None


class TaintEvictionController:
    name = "taint-eviction"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._nodes = context.informers.for_resource(NODES)
        self._pods = context.pods()
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._tainted_since: dict[str, datetime] = {}  # node -> since when it has NoExecute taints
        index_pods_by_node(self._pods)
        self._nodes.add_event_handler(self._node_changed)
        self._pods.add_event_handler(self._pod_changed)

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        name = change.object.metadata.name
        now = _no_execute_taints(change.object) if change.kind != "deleted" else ()
        before = _no_execute_taints(change.old) if change.old is not None else ()
        if not now:
            self._tainted_since.pop(name, None)
            return
        self._tainted_since.setdefault(name, self._context.now())
        if now != before:
            for pod in pods_on_node(self._pods, name):
                self._queue.add(object_key(pod))

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if change.kind == "deleted" or pod.spec.node_name not in self._tainted_since:
            return
        if change.old is None or change.old.spec != pod.spec:
            self._queue.add(object_key(pod))

    async def run(self) -> None:
        await self._context.run_controller(self.name, self._queue, self.reconcile, (self._nodes, self._pods))

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        pod = self._pods.get(*key)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return Done()
        node = self._nodes.get("", pod.spec.node_name)
        if node is None:
            return Done()
        now = self._context.now()
        verdict = decide_taint_eviction(pod, node.spec.taints, self._tainted_since.get(pod.spec.node_name, now))
        if verdict is None:
            return Done()
        left = seconds_until(verdict.at, now)
        if left > 0:
            return RequeueAfter(left)
        why = "Taint manager: deleting due to NoExecute taint"
        refused = await add_disruption_target(self._client, pod, "DeletionByTaintManager", why, now)
        if refused is not None:
            return Requeue(refused.message)
        meta = pod.metadata
        message = f"Marking for deletion Pod {meta.namespace}/{meta.name}"
        self._context.recorder.record(recorder.object_reference(PODS, pod), "Normal", "TaintManagerEviction", message)
        answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        if isinstance(answer, ApiError) and not answer.not_found and not answer.conflict:
            return Requeue(answer.message)
        return Done()


def _no_execute_taints(node: Node) -> tuple[Taint, ...]:
    return tuple(taint for taint in node.spec.taints if taint.effect == NO_EXECUTE)
