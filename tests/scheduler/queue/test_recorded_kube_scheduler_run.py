"""A run recorded from kube-scheduler 1.35, replayed with the real engine and plugins: same moves, same messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from koord.api.config.scheduler.in_tree_args import NodeResourcesFitArgs, ResourceWeight, ScoringStrategy
from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.node import Node, NodeSpec, NodeStatus
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, ClusterEvent, ObjectEvent, node_update_events
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.extension_points import PluginMethod
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.plugins.node_filters import NodeUnschedulable, TaintToleration
from koord.scheduler.plugins.node_resources.fit import NodeResourcesFit
from koord.scheduler.plugins.queueing_and_binding import PrioritySort, SchedulingGates
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.queue.fake_plugins import ONE
from tests.scheduler.queue.fake_plugins import pod as made


def node(cpu: str = "1", *, unschedulable: bool = False, taints: tuple[str, ...] = ()) -> Node:
    return Node(
        metadata=ObjectMeta(name="n1"),
        spec=NodeSpec(unschedulable=unschedulable, taints=tuple(Taint(key=k, effect="NoSchedule") for k in taints)),
        status=NodeStatus(allocatable={"cpu": cpu, "memory": "4Gi", "pods": "10"}),
    )


class RecordedScheduler:
    """Run the smallest scheduling loop: publish events, requeue, and try whatever is popped."""

    def __init__(self) -> None:
        self.state = ClusterState()
        fit = NodeResourcesFit(
            NodeResourcesFitArgs(
                scoring_strategy=ScoringStrategy(
                    type="LeastAllocated", resources=(ResourceWeight(name="cpu", weight=1),)
                )
            )
        )
        filters = (NodeUnschedulable(), TaintToleration(), fit)
        points: dict[PluginMethod, Sequence[Plugin]] = {
            Plugin.pre_enqueue: (SchedulingGates(),),
            Plugin.sort_key: (PrioritySort(),),
            Plugin.pre_filter: (fit,),
            Plugin.filter: filters,
        }
        profile = SchedulerProfile(ONE, points)
        self.engine = SchedulingEngine(profile, self.state)
        self.queue = SchedulingQueue([profile])
        self.node: Node | None = None
        self.placed: dict[str, PodInfo] = {}
        self.words: list[str] = []
        self._told: Counter[tuple[str, str]] = Counter()

    def pod(self, name: str, **parts: Any) -> PodInfo:
        return made(name, state=self.state, **parts)

    def show_node(self, new: Node, now: float) -> None:
        old, self.node = self.node, new
        self.state.set_node(new)
        events = (ClusterEvent("Node", ADD),) if old is None else node_update_events(old, new)
        for event in events:
            self.queue.on_event(ObjectEvent(event, old, new), now)
        self.run(now)

    def end(self, name: str, now: float) -> None:
        gone = self.placed.pop(name)
        self.state.forget(gone.uid)
        self.queue.on_event(ObjectEvent(ClusterEvent("Pod", DELETE), gone), now)
        self.run(now)

    def run(self, now: float) -> None:
        while (queued := self.queue.pop(now)) is not None:
            decision = self.engine.decide(queued.pod).decision
            if isinstance(decision, ChosenNode):
                self.placed[queued.pod.name] = self.state.assume(queued.pod, decision.node)
                self.queue.done(queued.uid)
            else:
                assert isinstance(decision, Unschedulable)
                self.words.append(decision.message())
                self.queue.attempt_failed(
                    queued, now, rejected=decision.rejecting_plugins(), message=decision.message()
                )

    def moves(self) -> dict[tuple[str, str], int]:
        """Return the moves since the last call."""
        news = self.queue.counters.incoming - self._told
        self._told = Counter(self.queue.counters.incoming)
        return dict(news)


@pytest.fixture
def scheduler() -> RecordedScheduler:
    return RecordedScheduler()


def test_before_there_are_nodes(scheduler: RecordedScheduler) -> None:
    """An error, not a refusal: nobody is to blame, and a node that comes is only found when the back-off ends."""
    queue = scheduler.queue
    queue.add(scheduler.pod("a"), 46.678)
    scheduler.run(46.678)
    for now in (48.0, 51.0, 56.0):
        assert queue.next_wakeup() == now
        scheduler.run(now)
    assert scheduler.moves() == {
        ("active", "UnschedulablePodAdd"): 1,
        ("backoff", "ScheduleAttemptFailure"): 4,
        ("active", "BackoffComplete"): 3,
    }
    scheduler.show_node(node(), 60.0)
    assert scheduler.moves() == {}
    scheduler.run(65.0)
    assert scheduler.moves() == {("active", "BackoffComplete"): 1}
    assert set(scheduler.placed) == {"a"}


def test_gates(scheduler: RecordedScheduler) -> None:
    scheduler.show_node(node(), 0.0)
    scheduler.queue.add(scheduler.pod("g", gates=("x.io/a", "x.io/b")), 1.0)
    scheduler.run(1.0)
    assert scheduler.moves() == {("unschedulable", "UnschedulablePodAdd"): 1}
    assert scheduler.queue.counters.unschedulable == {("SchedulingGates", ONE): 1}
    scheduler.queue.update(scheduler.pod("g"), 3.0)
    scheduler.run(3.0)
    assert scheduler.moves() == {("active", "UnschedulablePodUpdatePodSchedulingGatesEliminated"): 1}
    assert set(scheduler.placed) == {"g"}


def test_a_pod_too_big(scheduler: RecordedScheduler) -> None:
    queue = scheduler.queue
    scheduler.show_node(node(), 0.0)
    queue.add(scheduler.pod("a"), 0.0)
    scheduler.run(0.0)
    queue.add(scheduler.pod("b", cpu="5"), 1.0)
    scheduler.run(1.0)
    assert scheduler.moves() == {
        ("active", "UnschedulablePodAdd"): 2,
        ("unschedulable", "ScheduleAttemptFailure"): 1,
    }
    for number, cpu in enumerate(("1001m", "1002m", "4900m")):  # it would not fit such a node were it empty
        scheduler.show_node(node(cpu), 3.0 + number)
    queue.update(scheduler.pod("b", cpu="5", labels={"q": "1"}), 9.0)
    queue.update(scheduler.pod("b", cpu="5", labels={"q": "1"}, tolerations=("zz",)), 10.0)
    scheduler.show_node(node("4900m", unschedulable=True), 11.0)
    assert scheduler.moves() == {}

    scheduler.end("a", 12.0)
    assert scheduler.moves() == {("active", "AssignedPodDelete"): 1, ("unschedulable", "ScheduleAttemptFailure"): 1}
    assert queue.counters.unschedulable == {("NodeUnschedulable", ONE): 1}

    early = {
        ("backoff", "NodeUpdateNodeTaint"): 1,
        ("active", "PopFromBackoffQ"): 1,
        ("unschedulable", "ScheduleAttemptFailure"): 1,
    }
    scheduler.show_node(node("4900m"), 14.0)
    assert scheduler.moves() == early
    assert queue.counters.unschedulable == {("NodeResourcesFit", ONE): 1}
    scheduler.show_node(node("4900m", taints=("k",)), 17.0)
    assert scheduler.moves() == early
    assert queue.counters.unschedulable == {("TaintToleration", ONE): 1}

    assert scheduler.words == [
        "0/1 nodes are available: 1 Insufficient cpu.",
        "0/1 nodes are available: 1 node(s) were unschedulable.",
        "0/1 nodes are available: 1 Insufficient cpu.",
        "0/1 nodes are available: 1 node(s) had untolerated taint(s).",
    ]
    queue.delete("uid-b")
    assert queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 0}
