"""Build pods, nodes and small real plugins for the queue's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from koord.api.kubernetes.affinity import Taint, Toleration
from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.node import Node, NodeCondition, NodeSpec, NodeStatus
from koord.api.kubernetes.pod import PodResourceClaimStatus, PodSchedulingGate, ResourceRequirements
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod, SchedulerContainer, SchedulerPodSpec, SchedulerPodStatus
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.verdict import CLUSTER, ROW, Reject, unresolvable

STATE = ClusterState()  # only its table of shapes is used
ONE, TWO = "one", "two"


def pod(
    name: str,
    *,
    priority: int = 0,
    cpu: str = "100m",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    gates: Sequence[str] = (),
    tolerations: Sequence[str] = (),
    claims: Sequence[str] = (),
    node: str = "",
    nominated: str = "",
    scheduler: str = ONE,
    revision: str = "",
    deleting: bool = False,
    state: ClusterState = STATE,
) -> PodInfo:
    wire = Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=f"uid-{name}",
            resource_version=revision,
            labels=dict(labels or {}),
            annotations=dict(annotations or {}),
            deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC) if deleting else None,
        ),
        spec=SchedulerPodSpec(
            node_name=node,
            scheduler_name=scheduler,
            priority=priority,
            containers=(SchedulerContainer(name="main", resources=ResourceRequirements(requests={"cpu": cpu})),),
            scheduling_gates=tuple(PodSchedulingGate(name=gate) for gate in gates),
            tolerations=tuple(Toleration(key=key, operator="Exists") for key in tolerations),
        ),
        status=SchedulerPodStatus(
            nominated_node_name=nominated,
            resource_claim_statuses=tuple(PodResourceClaimStatus(name=c, resource_claim_name=c) for c in claims),
        ),
    )
    return state.pod_info(wire)


def node(
    name: str = "n1",
    *,
    cpu: str = "1",
    taints: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    unschedulable: bool = False,
    ready: str = "True",
    heartbeat: datetime | None = None,
) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels=dict(labels or {}), annotations=dict(annotations or {})),
        spec=NodeSpec(unschedulable=unschedulable, taints=tuple(Taint(key=key, effect="NoSchedule") for key in taints)),
        status=NodeStatus(
            allocatable={"cpu": cpu},
            conditions=(NodeCondition(type="Ready", status=ready, last_heartbeat_time=heartbeat),),
        ),
    )


class SortPlugin(Plugin):
    name = "Sort"

    def sort_key(self, pod: PodInfo, queued_at: float) -> Any:
        return (-pod.priority, queued_at)


class GatesPlugin(Plugin):
    name = "Gates"
    wakes_on = (ClusterEvent("Pod", UPDATE, "gates"),)

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return unresolvable(f"waiting for scheduling gates: {list(pod.gates)}") if pod.gates else None

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        return bool(object_event.new.uid == pod.uid)


class GangPlugin(Plugin):
    """Gate pods until it is opened from outside, without any cluster event, as a gang does."""

    name = "Gang"

    def __init__(self) -> None:
        self.open = True

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return None if self.open or "gang" not in pod.labels else unresolvable("not all there")


class ClaimsPlugin(Plugin):
    """Gate pods until an event opens the gate."""

    name = "Claims"
    scope = ROW
    wakes_on = (ClusterEvent("ResourceClaim", ADD),)

    def __init__(self) -> None:
        self.made: set[str] = set()

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        missing = [claim.name for claim in pod.claims if claim.name not in self.made]
        return unresolvable(f"waiting for {missing}") if missing else None

    def signature(self, pod: PodInfo) -> tuple[str, ...]:
        return tuple(claim.name for claim in pod.claims)

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        return any(claim.name == object_event.new for claim in pod.claims)


class FitPlugin(Plugin):
    name = "Fit"
    scope = ROW
    wakes_on = (
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "allocatable"),
        ClusterEvent("Pod", DELETE),
        ClusterEvent("Pod", UPDATE, "scale-down"),
    )

    def __init__(self) -> None:
        self.asked = 0

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        self.asked += 1
        if object_event.event.kind == "Node":
            return resource_amounts(object_event.new.status.allocatable)["cpu"] >= pod.requests["cpu"]
        return True


class TaintsPlugin(Plugin):
    name = "Taints"
    scope = ROW
    wakes_on = (
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "taints"),
        ClusterEvent("Pod", UPDATE, "tolerations"),
    )

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        if object_event.event.kind == "Pod":
            return bool(object_event.new.uid == pod.uid)
        tolerated = {toleration.key for toleration in pod.shape.spec.tolerations}
        return all(taint.key in tolerated for taint in object_event.new.spec.taints)


class SpreadPlugin(Plugin):
    name = "Spread"
    scope = CLUSTER
    wakes_on = (ClusterEvent("Pod", ADD), ClusterEvent("Pod", UPDATE), ClusterEvent("Pod", DELETE))

    def signature(self, pod: PodInfo) -> str:
        return pod.labels.get("app", "")

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        seen = object_event.new or object_event.old
        return bool(seen.labels.get("app", "") == pod.labels.get("app", ""))


class AffinityPlugin(Plugin):
    """Read what it does not declare, so that it must be asked about each pod."""

    name = "Wishes"
    wakes_on = (ClusterEvent("Wish", ADD),)

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        return bool(pod.annotations.get("wish") == object_event.new)


class NoEventsPlugin(Plugin):
    name = "Deaf"


class QueuePlugins:
    """Hold the plugins of two profiles in one process, and the profiles."""

    def __init__(self) -> None:
        self.sort, self.gates, self.gang, self.claims = SortPlugin(), GatesPlugin(), GangPlugin(), ClaimsPlugin()
        self.fit, self.taints, self.spread, self.wishes, self.deaf = (
            FitPlugin(),
            TaintsPlugin(),
            SpreadPlugin(),
            AffinityPlugin(),
            NoEventsPlugin(),
        )
        self.profiles = (
            SchedulerProfile(
                ONE,
                {
                    Plugin.pre_enqueue: (self.gates, self.gang, self.claims),
                    Plugin.sort_key: (self.sort,),
                    Plugin.filter: (self.fit, self.taints, self.spread, self.wishes, self.deaf),
                },
            ),
            SchedulerProfile(
                TWO, {Plugin.pre_enqueue: (self.gates,), Plugin.sort_key: (self.sort,), Plugin.filter: (self.fit,)}
            ),
        )

    def filters(self, scheduler: str) -> tuple[Plugin, ...]:
        return next(p.plugins_at(Plugin.filter) for p in self.profiles if p.scheduler_name == scheduler)


def node_added(**parts: Any) -> ObjectEvent:
    return ObjectEvent(ClusterEvent("Node", ADD), None, node(**parts))


def pod_gone(name: str = "other", **parts: Any) -> ObjectEvent:
    return ObjectEvent(ClusterEvent("Pod", DELETE), pod(name, node="n1", **parts), None)
