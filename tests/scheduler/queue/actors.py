"""Build pods, nodes and small real plugins for the queue's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from koord.api.affinity import Taint, Toleration
from koord.api.container import ResourceRequirements
from koord.api.meta import ObjectMeta
from koord.api.node import Node, NodeCondition, NodeSpec, NodeStatus
from koord.api.pod import PodResourceClaimStatus, PodSchedulingGate
from koord.api.pod_resources import amounts
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.verdict import CLUSTER, ROW, Reject, unresolvable
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import Container, Pod, PodSpec, PodStatus

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
        spec=PodSpec(
            node_name=node,
            scheduler_name=scheduler,
            priority=priority,
            containers=(Container(name="main", resources=ResourceRequirements(requests={"cpu": cpu})),),
            scheduling_gates=tuple(PodSchedulingGate(name=gate) for gate in gates),
            tolerations=tuple(Toleration(key=key, operator="Exists") for key in tolerations),
        ),
        status=PodStatus(
            nominated_node_name=nominated,
            resource_claim_statuses=tuple(PodResourceClaimStatus(name=c, resource_claim_name=c) for c in claims),
        ),
    )
    return state.info(wire)


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


class Sort(Plugin):
    name = "Sort"

    def sort_key(self, pod: PodInfo, queued_at: float) -> Any:
        return (-pod.priority, queued_at)


class Gates(Plugin):
    name = "Gates"
    wakes_on = (Event("Pod", UPDATE, "gates"),)

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return unresolvable(f"waiting for scheduling gates: {list(pod.gates)}") if pod.gates else None

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        return bool(happened.new.uid == pod.uid)


class Gang(Plugin):
    """Gate pods until it is opened from outside, without any cluster event, as a gang does."""

    name = "Gang"

    def __init__(self) -> None:
        self.open = True

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return None if self.open or "gang" not in pod.labels else unresolvable("not all there")


class Claims(Plugin):
    """Gate pods until an event opens the gate."""

    name = "Claims"
    scope = ROW
    wakes_on = (Event("ResourceClaim", ADD),)

    def __init__(self) -> None:
        self.made: set[str] = set()

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        missing = [claim.name for claim in pod.claims if claim.name not in self.made]
        return unresolvable(f"waiting for {missing}") if missing else None

    def signature(self, pod: PodInfo) -> tuple[str, ...]:
        return tuple(claim.name for claim in pod.claims)

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        return any(claim.name == happened.new for claim in pod.claims)


class Fit(Plugin):
    name = "Fit"
    scope = ROW
    wakes_on = (
        Event("Node", ADD),
        Event("Node", UPDATE, "allocatable"),
        Event("Pod", DELETE),
        Event("Pod", UPDATE, "scale-down"),
    )

    def __init__(self) -> None:
        self.asked = 0

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        self.asked += 1
        if happened.event.kind == "Node":
            return amounts(happened.new.status.allocatable)["cpu"] >= pod.requests["cpu"]
        return True


class Taints(Plugin):
    name = "Taints"
    scope = ROW
    wakes_on = (Event("Node", ADD), Event("Node", UPDATE, "taints"), Event("Pod", UPDATE, "tolerations"))

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        if happened.event.kind == "Pod":
            return bool(happened.new.uid == pod.uid)
        tolerated = {toleration.key for toleration in pod.shape.spec.tolerations}
        return all(taint.key in tolerated for taint in happened.new.spec.taints)


class Spread(Plugin):
    name = "Spread"
    scope = CLUSTER
    wakes_on = (Event("Pod", ADD), Event("Pod", UPDATE), Event("Pod", DELETE))

    def signature(self, pod: PodInfo) -> str:
        return pod.labels.get("app", "")

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        seen = happened.new or happened.old
        return bool(seen.labels.get("app", "") == pod.labels.get("app", ""))


class Wishes(Plugin):
    """Read what it does not declare, so that it must be asked about each pod."""

    name = "Wishes"
    wakes_on = (Event("Wish", ADD),)

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        return bool(pod.annotations.get("wish") == happened.new)


class Deaf(Plugin):
    name = "Deaf"


class Cast:
    """Hold the plugins of two profiles in one process, and the profiles."""

    def __init__(self) -> None:
        self.sort, self.gates, self.gang, self.claims = Sort(), Gates(), Gang(), Claims()
        self.fit, self.taints, self.spread, self.wishes, self.deaf = Fit(), Taints(), Spread(), Wishes(), Deaf()
        self.profiles = (
            Profile(
                ONE,
                {
                    "pre_enqueue": (self.gates, self.gang, self.claims),
                    "sort_key": (self.sort,),
                    "filter": (self.fit, self.taints, self.spread, self.wishes, self.deaf),
                },
            ),
            Profile(TWO, {"pre_enqueue": (self.gates,), "sort_key": (self.sort,), "filter": (self.fit,)}),
        )

    def filters(self, scheduler: str) -> tuple[Plugin, ...]:
        return next(p.at("filter") for p in self.profiles if p.scheduler_name == scheduler)


def node_added(**parts: Any) -> Happened:
    return Happened(Event("Node", ADD), None, node(**parts))


def pod_gone(name: str = "other", **parts: Any) -> Happened:
    return Happened(Event("Pod", DELETE), pod(name, node="n1", **parts), None)
