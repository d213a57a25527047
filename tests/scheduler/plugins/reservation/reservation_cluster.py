"""A cluster with reservations for tests: it takes live objects and returns decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koord.api.config.scheduler import koordinator_args as config
from koord.api.config.scheduler.in_tree_args import InterPodAffinityArgs, NodeResourcesFitArgs, defaulted_fit
from koord.api.config.scheduler.koordinator_args import ReservationArgs
from koord.api.koordinator.protocol import A_RESERVATION_AFFINITY, A_RESERVATION_ALLOCATED, A_RESERVATION_NAME
from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod, reserve_pod_of
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import ChosenNode, Decision, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.reservation import reservations_of
from koord.scheduler.framework.runtime import run_nominate_reservation, run_reserve
from koord.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from koord.scheduler.plugins.node_filters import NodePorts
from koord.scheduler.plugins.node_resources.fit import NodeResourcesFit
from koord.scheduler.plugins.reservation.cache import ReservationCache
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin
from tests.scheduler.builders import make_pod
from tests.scheduler.fake_handles import FakeLister
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.affinity_clusters import namespace_index

OWNER = {"app": "owner"}


class FakeObjects:
    """The live objects, as handles list them."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self.listed: dict[str, FakeLister] = {}

    def lister(self, resource: Resource[Any]) -> Any:
        return self.listed.setdefault(resource.kind, FakeLister())

    def now(self) -> float:
        return 1_000_000.0


class ReservationCluster:
    """The view of one scheduler; `args` are the plugin's, `others` run beside it."""

    def __init__(self, *nodes: Node, others: Sequence[Plugin] = (), **args: Any) -> None:
        self.state = ClusterState()
        self.handle = FakeObjects(self.state)
        made = config.defaulted_reservation(ReservationArgs(**args))
        self.plugin = ReservationPlugin(made, self.handle)
        self.profile: SchedulerProfile = profile_of(
            (NodePorts(), _fit(), _apart(self.state), self.plugin, *others), {"Reservation": 5000}
        )
        self.engine = SchedulingEngine(self.profile, self.state, seed=1)
        self.cycle = CycleState(self.state)  # of the last promise
        for node in nodes:
            self.state.set_node(node)

    @property
    def book(self) -> ReservationCache:
        return self.plugin.cache

    # Live objects ------------------------------------------------------------------------------------------------

    def put(self, reservation: Reservation) -> Reservation:
        self.handle.listed["Reservation"].put(reservation)
        return reservation

    def drop(self, name: str) -> None:
        self.handle.listed["Reservation"].drop(name)

    def bind(self, pod: Pod) -> None:
        """Show a pod on a node, as the watch does."""
        self.handle.listed["Pod"].put(pod)
        self.state.set_pod(pod)

    def unbind(self, pod: Pod) -> None:
        self.handle.listed["Pod"].drop(pod.metadata.name, pod.metadata.namespace)
        self.state.drop_pod(pod.metadata.uid)

    # Decisions ---------------------------------------------------------------------------------------------------

    def decide(self, pod: Pod | PodInfo) -> Decision:
        info = pod if isinstance(pod, PodInfo) else self.state.pod_info(pod)
        attempt = self.engine.decide(info)
        return self.engine.post_filter(attempt) if isinstance(attempt.decision, Unschedulable) else attempt.decision

    def node_for(self, pod: Pod) -> str:
        decision = self.decide(pod)
        return decision.node if isinstance(decision, ChosenNode) else ""

    def message(self, pod: Pod) -> str:
        decision = self.decide(pod)
        assert not isinstance(decision, ChosenNode), decision
        return decision.message() if isinstance(decision, Unschedulable) else decision.message

    def promise(self, pod: Pod) -> tuple[str, str]:
        """Decide, assume and reserve; return the node and the reservation that is taken there, "" where there
        is none.
        """
        info = self.state.pod_info(pod)
        attempt = self.engine.decide(info)
        if not isinstance(attempt.decision, ChosenNode):
            return "", ""
        assert run_nominate_reservation(attempt) is None
        self.state.assume(info, attempt.node_name)
        taken = reservations_of(attempt.cycle).nominated.get(info.uid)
        assert run_reserve(attempt) is None
        self.cycle = attempt.cycle
        return attempt.node_name, taken.name if taken is not None else ""

    def undo(self, pod: Pod) -> None:
        self.plugin.unreserve(self.cycle, self.state.pod_info(pod), "")
        self.state.forget(pod.metadata.uid)

    def bound_as_promised(self, pod: Pod) -> Pod:
        """Return the pod as the watch shows it once its binding succeeded."""
        uid = pod.metadata.uid
        placed = self.state.placed_pod(uid)
        assert placed is not None
        part = self.book.register.owner_pod(uid)
        holding = self.book.register.info(part.reservation) if part is not None else None
        return bound(pod, placed.node_name, (holding.name, holding.uid) if holding is not None else None)

    # What is true ------------------------------------------------------------------------------------------------

    def free(self, node: str, resource: str = "cpu") -> int:
        info = self.state.table.index[node]
        return info.allocatable.get(resource, 0) - info.requested.get(resource, 0)

    def sums(self) -> dict[str, Any]:
        return {
            n.name: (n.requested, n.nonzero_cpu, n.nonzero_memory, n.ports, set(n.pods))
            for n in self.state.table.index.values()
            if n.node is not None or n.pods
        }

    def said(self, pod: Pod) -> dict[str, Any] | str:
        """Return every node's verdict and score for a pod, or why nodes were not evaluated."""
        attempt = self.engine.decide(self.state.pod_info(pod))
        evaluation = attempt.evaluation
        if evaluation is None:
            return repr(attempt.decision)
        return {
            node.name: (evaluation.filter_results.verdict(node.row), int(evaluation.score_results.total[node.row]))
            for node in self.state.nodes()
        }


def _fit() -> NodeResourcesFit:
    return NodeResourcesFit(defaulted_fit(NodeResourcesFitArgs()))


def _apart(state: ClusterState) -> InterPodAffinity:
    return InterPodAffinity(InterPodAffinityArgs(hard_pod_affinity_weight=1), state, namespace_index())


def reservation(
    name: str,
    node: str = "",
    *,
    phase: str = "",
    cpu: str = "4",
    memory: str = "",
    more: Mapping[str, str] | None = None,
    owners: Sequence[Any] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    template: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Reservation:
    room = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v} | dict(more or {})
    container = {"name": "c", "image": "app", "resources": {"requests": {k: v for k, v in room.items() if k != "pods"}}}
    pod_template = {"spec": {"containers": [container], "schedulerName": "test"}}
    for part, value in (template or {}).items():
        pod_template.setdefault(part, {}).update(value)
    status = {"phase": phase or "Available", "nodeName": node, "allocatable": room} if node else {"phase": phase}
    return convert(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": dict(labels or {}),
                "annotations": dict(annotations or {}),
            },
            "spec": {
                "template": pod_template,
                "owners": list(owners) if owners is not None else [{"labelSelector": {"matchLabels": OWNER}}],
                "ttl": "24h",
                "allocateOnce": False,
                **spec,
            },
            "status": status,
        },
        Reservation,
    )


def owner(name: str = "o", *, affinity: Any = None, **words: Any) -> Pod:
    """A pod that reservations here are for, unless they say otherwise."""
    annotations = dict(words.pop("annotations", {}))
    if affinity is not None:
        annotations[A_RESERVATION_AFFINITY] = json.dumps(affinity)
    labels = {**OWNER, **words.pop("labels", {})}
    return make_pod(name, labels=labels, annotations=annotations, schedulerName="test", **words)


def stranger(name: str = "s", **words: Any) -> Pod:
    return make_pod(name, schedulerName="test", **words)


def bound(pod: Pod, node: str, taken: tuple[str, str] | None = None) -> Pod:
    meta = pod.metadata
    if taken is not None:
        told = {**meta.annotations, A_RESERVATION_ALLOCATED: json.dumps({"name": taken[0], "uid": taken[1]})}
        meta = msgspec.structs.replace(meta, annotations=told)
    return msgspec.structs.replace(
        pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, node_name=node), shape=None
    )


def reserve_pod(reservation: Reservation) -> Pod:
    pod = reserve_pod_of(reservation)
    assert pod.metadata.annotations[A_RESERVATION_NAME] == reservation.metadata.name
    return pod
