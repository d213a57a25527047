"""The node lifecycle controller: pure functions decide whether a node is alive and what that means for its pods; the
controller sets conditions and taints, and evicts.

The taint eviction controller deletes pods that do not tolerate a NoExecute taint, or not for longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.builtin_kinds import LEASES, NODES, PODS
from koord.api.kubernetes.node import Lease, Node, NodeCondition
from koord.api.kubernetes.pod import Pod
from koord.api.model import to_dict
from koord.embedded.workloads import pod_control
from koord.embedded.workloads.controller_context import ControllerContext, seconds_until
from koord.embedded.workloads.pod_control import add_disruption_target, index_pods_by_node, pods_on_node
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError
from koord.policy.node_match import NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE_TAINT, tolerates
from koord.values import timestamp

MONITOR_GRACE_S = 40.0
STARTUP_GRACE_S = 60.0
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = UNSCHEDULABLE_TAINT.key
# A condition's type and status -> the taint that keeps new pods away.
_TAINT_BY_CONDITION = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
_OWNED_TAINTS = frozenset((*_TAINT_BY_CONDITION.values(), UNSCHEDULABLE))
_KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_ZONE_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")

# Evictions: one node each ten seconds, a tenth of that while most of a large zone is down, none in a small one.
EVICTION_RATE = 0.1
SECONDARY_EVICTION_RATE = 0.01
LARGE_ZONE_NODES = 50
UNHEALTHY_ZONE_SHARE = 0.55

ZoneState = Literal["Normal", "PartialDisruption", "FullDisruption"]


def ready_status(node: Node) -> str:
    for condition in node.status.conditions:
        if condition.type == "Ready":
            return condition.status
    return ""


def unknown_conditions(node: Node, now: datetime) -> tuple[NodeCondition, ...]:
    """Return the conditions of a node whose kubelet stopped reporting; unchanged ones keep their times."""
    known = {condition.type: condition for condition in node.status.conditions}
    made = dict(known)
    for type in _KUBELET_CONDITIONS:
        old = known.get(type)
        if old is None:
            made[type] = NodeCondition(
                type=type,
                status="Unknown",
                reason="NodeStatusNeverUpdated",
                message="Kubelet never posted node status.",
                last_heartbeat_time=node.metadata.creation_timestamp,
                last_transition_time=now,
            )
        elif old.status != "Unknown":
            made[type] = msgspec.structs.replace(
                old,
                status="Unknown",
                reason="NodeStatusUnknown",
                message="Kubelet stopped posting node status.",
                last_transition_time=now,
            )
    return tuple(made.values())


def wanted_schedule_taints(node: Node) -> set[str]:
    keys = {
        key
        for condition in node.status.conditions
        if (key := _TAINT_BY_CONDITION.get((condition.type, condition.status))) is not None
    }
    return keys | ({UNSCHEDULABLE} if node.spec.unschedulable else set())


def wanted_execute_taint(node: Node) -> str:
    """Return the NoExecute taint that the node should have, or an empty string."""
    return {"False": NOT_READY, "Unknown": UNREACHABLE}.get(ready_status(node), "")


def decide_taints(
    node: Node, now: datetime, *, may_evict: bool, all_zones_down: bool = False
) -> tuple[Taint, ...] | None:
    """Return the node's taints with ours corrected; None when they are right.

    `may_evict`: NoExecute may be added now. `all_zones_down`: every node is down, so no pod is evicted.
    """
    schedule, execute = wanted_schedule_taints(node), "" if all_zones_down else wanted_execute_taint(node)
    have_execute = {t.key for t in node.spec.taints if t.effect == NO_EXECUTE}
    # One NoExecute taint may replace the other at once: its pods are being evicted already.
    may_evict = may_evict or bool(have_execute & {NOT_READY, UNREACHABLE})
    kept = []
    for taint in node.spec.taints:
        if taint.effect == NO_SCHEDULE and taint.key in _OWNED_TAINTS and taint.key not in schedule:
            continue
        if taint.effect == NO_EXECUTE and taint.key in (NOT_READY, UNREACHABLE) and taint.key != execute:
            continue
        kept.append(taint)
    have = {(taint.key, taint.effect) for taint in kept}
    added = [
        Taint(key=key, effect=NO_SCHEDULE, time_added=now) for key in sorted(schedule) if (key, NO_SCHEDULE) not in have
    ]
    if execute and may_evict and (execute, NO_EXECUTE) not in have:
        added.append(Taint(key=execute, effect=NO_EXECUTE, time_added=now))
    if not added and len(kept) == len(node.spec.taints):
        return None
    return (*kept, *added)


def awaits_eviction(node: Node) -> bool:
    execute = wanted_execute_taint(node)
    ours = {taint.key for taint in node.spec.taints if taint.effect == NO_EXECUTE}
    return bool(execute) and not ours & {NOT_READY, UNREACHABLE}


def zone_of(node: Node) -> str:
    return ":".join(node.metadata.labels.get(key, "") for key in _ZONE_LABELS)


def zone_state(healthy: int, unhealthy: int) -> ZoneState:
    if unhealthy and not healthy:
        return "FullDisruption"
    if unhealthy > 2 and unhealthy / (healthy + unhealthy) >= UNHEALTHY_ZONE_SHARE:
        return "PartialDisruption"
    return "Normal"


class ZoneEvictionRates(msgspec.Struct, frozen=True):
    rates: dict[str, float]  # nodes per second that may be evicted in each zone
    all_zones_down: bool  # all of the cluster is down: then the fault is likely ours, and nobody is evicted


def zone_eviction_rates(nodes: Iterable[tuple[Node, bool]]) -> ZoneEvictionRates:
    """Compute the eviction rate of each zone. `nodes` come with whether each is silent."""
    counts: dict[str, list[int]] = {}
    for node, silent in nodes:
        status = ready_status(node)
        if status:  # one that never reported is neither
            counts.setdefault(zone_of(node), [0, 0])[silent or status != "True"] += 1
    states = {zone: zone_state(*row) for zone, row in counts.items()}
    if states and all(state == "FullDisruption" for state in states.values()):
        return ZoneEvictionRates(dict.fromkeys(states, 0.0), True)
    rates = {}
    for zone, state in states.items():
        if state == "PartialDisruption":
            rates[zone] = SECONDARY_EVICTION_RATE if sum(counts[zone]) > LARGE_ZONE_NODES else 0.0
        else:
            rates[zone] = EVICTION_RATE
    return ZoneEvictionRates(rates, False)


LEASE_NAMESPACE = "kube-node-lease"
# How often a zone that may not evict is checked again.
_BLOCKED_ZONE_RETRY_S = 5.0


CLUSTER_KEY = ""  # the queue's key for the cluster as a whole; no node has this name
# Changes of many nodes within this time are evaluated together.
ZONE_CHECK_DELAY_S = 0.2


class NodeLifecycleController:
    name = "node-lifecycle"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._clock = context.clock
        self._nodes = context.informers.for_resource(NODES)
        self._pods = context.pods()
        self._leases = context.informers.for_resource(LEASES, LEASE_NAMESPACE)
        self._queue: WorkQueue[str] = WorkQueue(context.clock, name=self.name)
        self._last_heartbeat: dict[str, float] = {}  # node -> its last heartbeat, by our own clock
        self._has_posted: set[str] = set()  # nodes whose kubelet has ever said something
        self._cached_zone_rates: tuple[float, ZoneEvictionRates] | None = None
        self._all_zones_down = False
        self._next_eviction: dict[str, float] = {}  # zone -> when the next node may be evicted
        index_pods_by_node(self._pods)
        self._nodes.add_event_handler(self._node_changed)
        self._leases.add_event_handler(self._lease_changed)

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        name = change.object.metadata.name
        if change.kind == "deleted":
            self._last_heartbeat.pop(name, None)
            self._has_posted.discard(name)
            return
        said = _kubelet_report(change.object)
        if change.old is None or (said and said != _kubelet_report(change.old)):
            self._record_heartbeat(name)
        if said:
            self._has_posted.add(name)
        if change.old is None or ready_status(change.old) != ready_status(change.object):
            self._queue.add_after(CLUSTER_KEY, ZONE_CHECK_DELAY_S)
        self._queue.add(name)

    def _check_all_zones_down(self) -> None:
        """Enqueue every node when a full outage begins or ends; then all get their grace period again."""
        all_zones_down = self._zone_rates().all_zones_down
        if all_zones_down == self._all_zones_down:
            return
        self._all_zones_down = all_zones_down
        for node in self._nodes.list():
            if not all_zones_down:
                self._record_heartbeat(node.metadata.name)
            self._queue.add(node.metadata.name)

    def _lease_changed(self, change: ObjectChange[Lease]) -> None:
        """Record the heartbeat of a renewed Lease; enqueue the node only when it is its first."""
        name = change.object.metadata.name
        if change.kind == "deleted" or (
            change.old is not None and change.old.spec.renew_time == change.object.spec.renew_time
        ):
            return
        self._record_heartbeat(name)
        if name not in self._has_posted:
            self._has_posted.add(name)
            self._queue.add(name)  # from now on the shorter grace period holds

    def _record_heartbeat(self, name: str) -> None:
        self._last_heartbeat[name] = self._clock.monotonic()

    async def run(self) -> None:
        needs = (self._nodes, self._pods, self._leases)
        await self._context.run_controller(self.name, self._queue, self.reconcile, needs)

    async def reconcile(self, name: str) -> ReconcileResult:
        if name == CLUSTER_KEY:
            self._check_all_zones_down()
            return Done()
        node = self._nodes.get("", name)
        if node is None:
            return Done()
        left = self._grace_left_s(name)
        silent = left <= 0
        if silent and ready_status(node) != "Unknown":
            return await self._declare_unknown(node)
        waits = awaits_eviction(node) and not self._all_zones_down  # its end wakes every node
        may_evict, evict_in = self._may_evict(node) if waits else (False, 0.0)
        taints = decide_taints(node, self._context.now(), may_evict=may_evict, all_zones_down=self._all_zones_down)
        if taints is not None:
            refused = await self._write_taints(node, taints)
            if refused is not None:
                return Requeue(refused.message)
            if waits and may_evict:
                rate = self._rate(node)
                self._next_eviction[zone_of(node)] = self._clock.monotonic() + (
                    1 / rate if rate else _BLOCKED_ZONE_RETRY_S
                )
        if ready_status(node) != "True" and (refused := await self._mark_pods_not_ready(node)) is not None:
            return Requeue(refused.message)
        if waits and not may_evict:
            return RequeueAfter(max(0.1, min(evict_in, left) if not silent else evict_in))
        return Done() if silent else RequeueAfter(left)

    def _grace_left_s(self, name: str) -> float:
        """Return the seconds until the node counts as lost if nothing more is heard."""
        heard = self._last_heartbeat.get(name, self._clock.monotonic())
        grace = MONITOR_GRACE_S if name in self._has_posted else STARTUP_GRACE_S
        return heard + grace - self._clock.monotonic()

    # -- evictions by zone

    def _zone_rates(self) -> ZoneEvictionRates:
        """Return the zone eviction rates, computed over all nodes at most once per ZONE_CHECK_DELAY_S."""
        now = self._clock.monotonic()
        if self._cached_zone_rates is None or now - self._cached_zone_rates[0] >= ZONE_CHECK_DELAY_S:
            seen = zone_eviction_rates(
                (node, self._grace_left_s(node.metadata.name) <= 0) for node in self._nodes.list()
            )
            self._cached_zone_rates = (now, seen)
        return self._cached_zone_rates[1]

    def _rate(self, node: Node) -> float:
        return self._zone_rates().rates.get(zone_of(node), 0.0)

    def _may_evict(self, node: Node) -> tuple[bool, float]:
        """Return whether the node may be evicted now, and otherwise the seconds until to ask again."""
        if not self._rate(node):
            return False, _BLOCKED_ZONE_RETRY_S
        left = self._next_eviction.get(zone_of(node), 0.0) - self._clock.monotonic()
        return left <= 0, left

    # -- writes

    async def _declare_unknown(self, node: Node) -> ReconcileResult:
        conditions = unknown_conditions(node, self._context.now())
        patch = {"status": {"conditions": [to_dict(condition) for condition in conditions]}}
        answer = await self._client.patch_object(NODES, node, patch, kind="strategic", subresource="status")
        if isinstance(answer, ApiError):
            return Done() if answer.not_found else Requeue(answer.message)
        message = f"Node {node.metadata.name} status is now: NodeNotReady"
        self._context.recorder.record(recorder.object_reference(NODES, node), "Normal", "NodeNotReady", message)
        return Done()  # the write comes back as a change, and the taints follow

    async def _write_taints(self, node: Node, taints: tuple[Taint, ...]) -> ApiError | None:
        """Write the taints over the version that was read, because the list is replaced whole."""
        patch = {"spec": {"taints": [to_dict(taint) for taint in taints] or None}}
        answer = await self._client.patch_object(NODES, node, patch, kind="merge", exactly=True)
        return answer if isinstance(answer, ApiError) and not answer.not_found else None

    async def _mark_pods_not_ready(self, node: Node) -> ApiError | None:
        """Set the Ready condition of the pods of a lost node to False."""
        for pod in pods_on_node(self._pods, node.metadata.name):
            found = pod_control.pod_condition(pod, "Ready")
            if found is None or found.status != "True":
                continue
            not_ready = {
                "type": "Ready",
                "status": "False",
                "reason": "NodeNotReady",
                "message": "Node is not ready",
                "lastTransitionTime": timestamp.text(self._context.now()),
            }
            answer = await self._client.patch_object(
                PODS, pod, {"status": {"conditions": [not_ready]}}, kind="strategic", subresource="status"
            )
            if isinstance(answer, ApiError):
                if not answer.not_found and not answer.conflict:
                    return answer
                continue
            self._context.recorder.record(
                recorder.object_reference(PODS, pod), "Warning", "NodeNotReady", "Node is not ready"
            )
        return None


def _kubelet_report(node: Node) -> tuple[datetime | None, str] | tuple[()]:
    """Return when the kubelet last reported and its Ready status; Unknown is this controller's and does not count."""
    for condition in node.status.conditions:
        if condition.type == "Ready" and condition.status != "Unknown":
            return condition.last_heartbeat_time, condition.status
    return ()


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
