"""The taint eviction controller deletes pods that do not tolerate a NoExecute taint of their node, others
when their tolerationSeconds end.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from koord.api.builtin import NODES, PODS
from koord.api.core import Node, Pod, Taint
from koord.embedded.workloads.context import Context, seconds_until
from koord.embedded.workloads.disruption import mark_disrupted
from koord.embedded.workloads.pod_place import index_by_node, on_node
from koord.kube import recorder
from koord.kube.cache import Change, Key, key_of
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.workqueue import WorkQueue
from koord.policy.node_suitability import NO_EXECUTE, tolerates


class Leave(msgspec.Struct, frozen=True):
    """The time at which the pod must be evicted; in the past means now."""

    at: datetime


def decide(pod: Pod, taints: tuple[Taint, ...], first_seen: datetime) -> Leave | None:
    """Return when the pod must be evicted, or None. `first_seen` is used for taints without a time of their
    own.
    """
    moments: list[datetime] = []
    for taint in taints:
        if taint.effect != NO_EXECUTE:
            continue
        toleration = next((t for t in pod.spec.tolerations if tolerates(t, taint)), None)
        if toleration is None:
            return Leave(datetime.min.replace(tzinfo=UTC))
        if toleration.toleration_seconds is not None:
            patience = timedelta(seconds=max(0, toleration.toleration_seconds))
            moments.append((taint.time_added or first_seen) + patience)
    return Leave(min(moments)) if moments else None


class TaintEvictions:
    name = "taint-eviction"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        self._nodes = context.informers.of(NODES)
        self._pods = context.pods()
        self._queue: WorkQueue[Key] = WorkQueue(context.clock, name=self.name)
        self._met: dict[str, datetime] = {}  # node -> since when it has NoExecute taints
        index_by_node(self._pods)
        self._nodes.on(self._node_changed)
        self._pods.on(self._pod_changed)

    def _node_changed(self, change: Change[Node]) -> None:
        name = change.object.metadata.name
        now = _no_execute(change.object) if change.kind != "deleted" else ()
        before = _no_execute(change.old) if change.old is not None else ()
        if not now:
            self._met.pop(name, None)
            return
        self._met.setdefault(name, self._context.now())
        if now != before:
            for pod in on_node(self._pods, name):
                self._queue.add(key_of(pod))

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.object
        if change.kind == "deleted" or pod.spec.node_name not in self._met:
            return
        if change.old is None or change.old.spec != pod.spec:
            self._queue.add(key_of(pod))

    async def run(self) -> None:
        await self._context.work(self.name, self._queue, self.reconcile, (self._nodes, self._pods))

    async def reconcile(self, key: Key) -> Outcome:
        pod = self._pods.get(*key)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return Done()
        node = self._nodes.get("", pod.spec.node_name)
        if node is None:
            return Done()
        now = self._context.now()
        verdict = decide(pod, node.spec.taints, self._met.get(pod.spec.node_name, now))
        if verdict is None:
            return Done()
        left = seconds_until(verdict.at, now)
        if left > 0:
            return Retry(left)
        why = "Taint manager: deleting due to NoExecute taint"
        refused = await mark_disrupted(self._client, pod, "DeletionByTaintManager", why, now)
        if refused is not None:
            return Requeue(refused.message)
        meta = pod.metadata
        message = f"Marking for deletion Pod {meta.namespace}/{meta.name}"
        self._context.recorder.record(recorder.reference(PODS, pod), "Normal", "TaintManagerEviction", message)
        answer = await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        if isinstance(answer, Refused) and not answer.not_found and not answer.conflict:
            return Requeue(answer.message)
        return Done()


def _no_execute(node: Node) -> tuple[Taint, ...]:
    return tuple(taint for taint in node.spec.taints if taint.effect == NO_EXECUTE)
