"""The node lifecycle controller notices silent nodes, sets their conditions and taints, and marks their
pods not ready.

Evicting pods by NoExecute taints is the work of `taint_eviction`.
"""

from __future__ import annotations

from datetime import datetime

from koord.api.builtin import LEASES, NODES, PODS
from koord.api.coordination import Lease
from koord.api.core import Node, Taint
from koord.api.model import to_dict
from koord.embedded.workloads import pod_state
from koord.embedded.workloads.context import Context
from koord.embedded.workloads.node_health import (
    GRACE_S,
    STARTUP_GRACE_S,
    Zones,
    awaits_eviction,
    decide_taints,
    ready_status,
    silent_conditions,
    zone_of,
    zones,
)
from koord.embedded.workloads.pod_place import index_by_node, on_node
from koord.kube import recorder
from koord.kube.cache import Change
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.workqueue import WorkQueue
from koord.values import instant

LEASE_NAMESPACE = "kube-node-lease"
# How often a zone that may not evict is checked again.
_LATER_S = 5.0


CLUSTER = ""  # the queue's key for the cluster as a whole; no node has this name
# Changes of many nodes within this time are evaluated together.
JUDGE_AFTER_S = 0.2


class Nodes:
    name = "node-lifecycle"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        self._clock = context.clock
        self._nodes = context.informers.of(NODES)
        self._pods = context.pods()
        self._leases = context.informers.of(LEASES, LEASE_NAMESPACE)
        self._queue: WorkQueue[str] = WorkQueue(context.clock, name=self.name)
        self._heard: dict[str, float] = {}  # node -> its last heartbeat, by our own clock
        self._posted: set[str] = set()  # nodes whose kubelet has ever said something
        self._zones_seen: tuple[float, Zones] | None = None
        self._blackout = False
        self._evictions: dict[str, float] = {}  # zone -> when the next node may be evicted
        index_by_node(self._pods)
        self._nodes.on(self._node_changed)
        self._leases.on(self._lease_changed)

    def _node_changed(self, change: Change[Node]) -> None:
        name = change.object.metadata.name
        if change.kind == "deleted":
            self._heard.pop(name, None)
            self._posted.discard(name)
            return
        said = _said(change.object)
        if change.old is None or (said and said != _said(change.old)):
            self._hear(name)
        if said:
            self._posted.add(name)
        if change.old is None or ready_status(change.old) != ready_status(change.object):
            self._queue.add_after(CLUSTER, JUDGE_AFTER_S)
        self._queue.add(name)

    def _judge_cluster(self) -> None:
        """Enqueue every node when the cluster enters or leaves a full outage; leaving it, all get their grace
        period again.
        """
        blackout = self._zones().blackout
        if blackout == self._blackout:
            return
        self._blackout = blackout
        for node in self._nodes.list():
            if not blackout:
                self._hear(node.metadata.name)
            self._queue.add(node.metadata.name)

    def _lease_changed(self, change: Change[Lease]) -> None:
        """Record the heartbeat of a renewed Lease; enqueue the node only when it is its first."""
        name = change.object.metadata.name
        if change.kind == "deleted" or (
            change.old is not None and change.old.spec.renew_time == change.object.spec.renew_time
        ):
            return
        self._hear(name)
        if name not in self._posted:
            self._posted.add(name)
            self._queue.add(name)  # from now on the shorter grace period holds

    def _hear(self, name: str) -> None:
        self._heard[name] = self._clock.monotonic()

    async def run(self) -> None:
        needs = (self._nodes, self._pods, self._leases)
        await self._context.work(self.name, self._queue, self.reconcile, needs)

    async def reconcile(self, name: str) -> Outcome:
        if name == CLUSTER:
            self._judge_cluster()
            return Done()
        node = self._nodes.get("", name)
        if node is None:
            return Done()
        left = self._silence_left_s(name)
        silent = left <= 0
        if silent and ready_status(node) != "Unknown":
            return await self._declare_unknown(node)
        waits = awaits_eviction(node) and not self._blackout  # its end wakes every node
        may_evict, evict_in = self._may_evict(node) if waits else (False, 0.0)
        taints = decide_taints(node, self._context.now(), may_evict=may_evict, blackout=self._blackout)
        if taints is not None:
            refused = await self._write_taints(node, taints)
            if refused is not None:
                return Requeue(refused.message)
            if waits and may_evict:
                rate = self._rate(node)
                self._evictions[zone_of(node)] = self._clock.monotonic() + (1 / rate if rate else _LATER_S)
        if ready_status(node) != "True" and (refused := await self._mark_pods(node)) is not None:
            return Requeue(refused.message)
        if waits and not may_evict:
            return Retry(max(0.1, min(evict_in, left) if not silent else evict_in))
        return Done() if silent else Retry(left)

    def _silence_left_s(self, name: str) -> float:
        """Return the seconds until the node counts as lost if nothing more is heard."""
        heard = self._heard.get(name, self._clock.monotonic())
        grace = GRACE_S if name in self._posted else STARTUP_GRACE_S
        return heard + grace - self._clock.monotonic()

    # -- evictions by zone

    def _zones(self) -> Zones:
        """Return the zone eviction rates, computed over all nodes at most once per ZONE_CHECK_DELAY_S."""
        now = self._clock.monotonic()
        if self._zones_seen is None or now - self._zones_seen[0] >= JUDGE_AFTER_S:
            seen = zones((node, self._silence_left_s(node.metadata.name) <= 0) for node in self._nodes.list())
            self._zones_seen = (now, seen)
        return self._zones_seen[1]

    def _rate(self, node: Node) -> float:
        return self._zones().rates.get(zone_of(node), 0.0)

    def _may_evict(self, node: Node) -> tuple[bool, float]:
        """Return whether the node may be evicted now, and otherwise the seconds until to ask again."""
        if not self._rate(node):
            return False, _LATER_S
        left = self._evictions.get(zone_of(node), 0.0) - self._clock.monotonic()
        return left <= 0, left

    # -- writes

    async def _declare_unknown(self, node: Node) -> Outcome:
        conditions = silent_conditions(node, self._context.now())
        answer = await self._client.patch(
            NODES,
            node.metadata.name,
            {"status": {"conditions": [to_dict(condition) for condition in conditions]}},
            kind="strategic",
            subresource="status",
            uid=node.metadata.uid,
        )
        if isinstance(answer, Refused):
            return Done() if answer.not_found else Requeue(answer.message)
        self._tell(node, "NodeNotReady", f"Node {node.metadata.name} status is now: NodeNotReady")
        return Done()  # the write comes back as a change, and the taints follow

    async def _write_taints(self, node: Node, taints: tuple[Taint, ...]) -> Refused | None:
        """Write the taints over the version that was read, because the list is replaced whole."""
        answer = await self._client.patch(
            NODES,
            node.metadata.name,
            {"spec": {"taints": [to_dict(taint) for taint in taints] or None}},
            kind="merge",
            uid=node.metadata.uid,
            resource_version=node.metadata.resource_version,
        )
        return answer if isinstance(answer, Refused) and not answer.not_found else None

    async def _mark_pods(self, node: Node) -> Refused | None:
        """Set the Ready condition of the pods of a lost node to False."""
        for pod in on_node(self._pods, node.metadata.name):
            found = pod_state.condition(pod, "Ready")
            if found is None or found.status != "True":
                continue
            not_ready = {
                "type": "Ready",
                "status": "False",
                "reason": "NodeNotReady",
                "message": "Node is not ready",
                "lastTransitionTime": instant.text(self._context.now()),
            }
            meta = pod.metadata
            answer = await self._client.patch(
                PODS,
                meta.name,
                {"status": {"conditions": [not_ready]}},
                meta.namespace,
                kind="strategic",
                subresource="status",
                uid=meta.uid,
            )
            if isinstance(answer, Refused):
                if not answer.not_found and not answer.conflict:
                    return answer
                continue
            self._context.recorder.record(recorder.reference(PODS, pod), "Warning", "NodeNotReady", "Node is not ready")
        return None

    def _tell(self, node: Node, reason: str, message: str) -> None:
        self._context.recorder.record(recorder.reference(NODES, node), "Normal", reason, message)


def _said(node: Node) -> tuple[datetime | None, str] | tuple[()]:
    """Return when the kubelet last reported and its Ready status; Unknown is written by this controller and
    does not count.
    """
    for condition in node.status.conditions:
        if condition.type == "Ready" and condition.status != "Unknown":
            return condition.last_heartbeat_time, condition.status
    return ()
