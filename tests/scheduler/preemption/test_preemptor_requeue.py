"""A preemptor without a server: rejected, victims named, held back while they go, woken by the last, bound."""

from __future__ import annotations

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import DELETE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.plugins.queueing_and_binding import PrioritySort
from koord.scheduler.preemption.evaluator import PreemptionsInProgress
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.preemption.cluster_fixture import PreemptionCluster, running


class PreemptionLoop:
    """Run a scheduler step by step over two nodes of 4 cpu, both full of pods of 2 cpu."""

    def __init__(self) -> None:
        placed = [running(f"{node}-{i}", node, cpu="2", priority=i) for node in ("n0", "n1") for i in range(2)]
        self.state = make_state([make_node("n0", cpu="4"), make_node("n1", cpu="4")], placed)
        made = PreemptionCluster(self.state, filters=("NodeResourcesFit",)).engine.profile
        methods = (Plugin.pre_filter, Plugin.filter, Plugin.post_filter, Plugin.pre_enqueue, Plugin.score)
        points = {method: made.plugins_at(method) for method in methods}
        self.queue = SchedulingQueue([SchedulerProfile("", {**points, Plugin.sort_key: [PrioritySort()]})])
        self.engine = SchedulingEngine(made, self.state, 0, self.queue.nominations)
        self.under_way = self.state.derived(PreemptionsInProgress)
        self.now = 0.0

    def attempt(self, *, later: float = 0.0) -> ChosenNode | Unschedulable | None:
        """Try the next pod; return None when no pod is ready."""
        self.now += later
        queued = self.queue.pop(self.now)
        if queued is None:
            return None
        attempt = self.engine.decide(queued.pod)
        decision = attempt.decision
        assert isinstance(decision, ChosenNode | Unschedulable)
        if isinstance(decision, ChosenNode):
            self.state.assume(queued.pod, decision.node)
            self.queue.done(queued.uid)
            return decision
        told = self.engine.post_filter(attempt)
        if told.nominate is not None:
            self.queue.nominate(queued.uid, told.nominate)
        if told.preempt is not None:
            self.under_way.begin(queued.uid)
        self.queue.attempt_failed(queued, self.now, rejected=told.rejecting_plugins(), message=told.message())
        return told

    def leaves(self, victim: PodInfo) -> None:
        self.state.set_pod(running(victim.name, victim.node_name, cpu="2", priority=victim.priority, preempted=True))

    def gone(self, victim: PodInfo) -> None:
        self.state.drop_pod(victim.uid)
        self.queue.on_event(ObjectEvent(ClusterEvent("Pod", DELETE), old=victim), self.now)


def test_a_preemptor_waits_for_its_victims_and_moves_in() -> None:
    loop = PreemptionLoop()
    pod = loop.state.pod_info(make_pod("new", cpu="4", priority=10))
    loop.queue.add(pod, 0.0)
    told = loop.attempt()
    assert isinstance(told, Unschedulable)
    assert told.preempt is not None
    first, last = told.preempt.victims
    node = told.preempt.node

    loop.leaves(first)
    loop.gone(first)
    assert loop.attempt(later=100.0) is None  # held back: the other victim has not been asked to go yet
    standing = loop.queue.status_of(pod.uid, loop.now)
    assert standing is not None
    assert standing.gated_by == "DefaultPreemption"
    assert standing.gate_reason == "waiting for the preemption for this pod to be finished"

    loop.under_way.begin_last_victim(pod.uid, last.uid)
    loop.leaves(last)
    loop.gone(last)
    loop.under_way.end(pod.uid)
    chosen = loop.attempt(later=100.0)
    assert isinstance(chosen, ChosenNode)
    assert chosen.node == node
    assert len(loop.queue.nominations) == 0


def test_nobody_else_takes_the_room_meanwhile() -> None:
    loop = PreemptionLoop()
    loop.queue.add(loop.state.pod_info(make_pod("new", cpu="4", priority=10)), 0.0)
    told = loop.attempt()
    assert isinstance(told, Unschedulable)
    assert told.preempt is not None
    for victim in told.preempt.victims:
        loop.state.drop_pod(victim.uid)
    loop.queue.add(loop.state.pod_info(make_pod("small", cpu="1", priority=5)), loop.now)
    refused = loop.attempt()
    assert isinstance(refused, Unschedulable)
    assert refused.message().startswith("0/2 nodes are available: 2 Insufficient cpu.")
