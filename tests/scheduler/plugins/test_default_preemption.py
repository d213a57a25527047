"""DefaultPreemption: who may preempt, what is said when it does not help, and what is to be carried out."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import NearestNode, Unschedulable
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, PreFilterResult, Reject, reject, unresolvable
from koord.scheduler.preemption.evaluator import PreemptionsInProgress
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.preemption.cluster_fixture import PreemptionCluster, running


def full(*nodes: str, **words: Any) -> PreemptionCluster:
    """Nodes of 4 cpu, each with a pod of priority 1 on all of it."""
    words = {"cpu": "4", "priority": 1, **words}
    pods = [running(f"on-{name}", name, **words) for name in nodes]
    return PreemptionCluster(make_state([make_node(name, cpu="4") for name in nodes], pods))


# Who may ---------------------------------------------------------------------------------------------------------


def test_one_that_never_preempts_says_so() -> None:
    told = full("n0").unschedulable(make_pod("new", cpu="4", priority=10, preemptionPolicy="Never"))
    assert told.message() == (
        "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."
    )
    assert (told.preempt, told.nominate) == (None, None)


@pytest.mark.parametrize(
    ("words", "waits"),
    [
        pytest.param({"preempted": True}, True, id="made-room-and-it-is-being-freed"),
        pytest.param({"preempted": True, "priority": 10}, False, id="a-pod-that-is-not-below-it"),
        pytest.param({"leaving": True}, False, id="leaving-for-another-reason"),
        pytest.param({}, False, id="nobody-leaves"),
    ],
)
@pytest.mark.parametrize("by_status", [True, False])
def test_it_waits_for_the_room_that_is_being_made(words: dict[str, Any], waits: bool, by_status: bool) -> None:
    scene = full("n0")
    scene.state.set_node(make_node("n1", cpu="4"))
    scene.state.set_pod(running("victim", "n1", cpu="4", **{"priority": 1, **words}))
    pod = make_pod("new", cpu="4", priority=10, nominated="n1" if by_status else "")
    if not by_status:
        scene.nominate(pod, "n1")
    told = scene.unschedulable(pod)
    if waits:
        assert told.post_filter == "preemption: not eligible due to a terminating pod on the nominated node."
        assert told.nominate is None
    else:
        assert told.preempt is not None


def test_it_looks_elsewhere_when_its_node_has_become_useless() -> None:
    scene = full("n0", "n1")
    scene.state.set_node(make_node("n1", cpu="4", unschedulable=True))
    scene.state.set_pod(running("on-n1", "n1", cpu="4", priority=1, preempted=True))
    assert scene.victims(make_pod("new", cpu="4", priority=10, nominated="n1")) == ("n0", ["on-n0"])


def test_it_looks_elsewhere_when_its_node_is_gone() -> None:
    assert full("n0").victims(make_pod("new", cpu="4", priority=10, nominated="gone")) == ("n0", ["on-n0"])


# What is said ----------------------------------------------------------------------------------------------------


def test_every_node_is_accounted_for() -> None:
    scene = full("n0", "n1", "n2")
    scene.state.set_node(make_node("n3", cpu="2"))
    scene.state.set_node(make_node("n4", cpu="4", unschedulable=True))
    scene.state.set_pod(running("big", "n0", memory="31Gi", priority=20))
    scene.state.set_pod(running("on-n1", "n1", cpu="4", priority=20))
    scene.state.set_pod(running("on-n2", "n2", cpu="4", priority=20))
    told = scene.unschedulable(make_pod("new", cpu="4", memory="2Gi", priority=10))
    assert told.message() == (
        "0/5 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable, 4 Insufficient cpu. "
        "preemption: 0/5 nodes are available: 1 Insufficient memory, 2 No preemption victims found for incoming pod, "
        "2 Preemption is not helpful for scheduling."
    )
    assert told.nominate == ""
    (search,) = told.searches
    assert (search.nodes, search.candidates) == (3, 0)
    assert search.nearest == NearestNode("n0", ("Insufficient memory",), {"memory": 1 << 30})


def test_the_nearest_miss_lacks_least() -> None:
    scene = full("n0", "n1")
    scene.state.set_pod(running("rest0", "n0", cpu="2", priority=20))
    scene.state.set_pod(running("rest1", "n1", cpu="1", priority=20))
    told = scene.unschedulable(make_pod("new", cpu="4", priority=10))
    assert told.searches[0].without == {"Insufficient cpu": 2}
    assert told.searches[0].nearest == NearestNode("n1", ("Insufficient cpu",), {"cpu": 1000})


class Early(Plugin):
    """Refuses before any node is looked at, as long as some pod is anywhere; and narrows if told to."""

    name = "Early"
    scope = ROW

    def __init__(self, answer: Reject | PreFilterResult) -> None:
        self._answer = answer

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Any:
        return self._answer

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return reject("crowded") if node.pods else None


def early(answer: Reject | PreFilterResult, *nodes: str) -> PreemptionCluster:
    pods = [running(f"on-{name}", name, priority=1) for name in nodes]
    return PreemptionCluster(make_state([make_node(name) for name in nodes], pods), more=[Early(answer)])


def test_a_refusal_before_any_node_can_be_final() -> None:
    told = early(unresolvable("no such claim"), "n0", "n1").unschedulable(make_pod("new", priority=10))
    assert told.message() == (
        "0/2 nodes are available: no such claim. "
        "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )


def test_a_refusal_before_any_node_can_be_lifted() -> None:
    scene = early(reject("taken"), "n0")
    assert scene.victims(make_pod("new", priority=10)) == ("n0", ["on-n0"])
    scene.state.set_pod(running("on-n0", "n0", priority=10))
    assert scene.unschedulable(make_pod("new", priority=10)).message() == (
        "0/1 nodes are available: taken. "
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_nodes_that_were_left_out_stay_out() -> None:
    scene = early(PreFilterResult(frozenset({"n1"})), "n0", "n1", "n2")
    assert scene.victims(make_pod("new", priority=10)) == ("n1", ["on-n1"])


class Fickle(Plugin):
    """Refuses the live node and no copy of it: what must not happen, but does with plugins that are wrong."""

    name = "Fickle"
    scope = ROW

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return reject("no") if cycle.state.node(node.name) is node else None


def test_a_node_that_takes_the_pod_after_all_is_an_error() -> None:
    scene = PreemptionCluster(make_state([make_node("n0")], [running("a", "n0", priority=1)]), more=[Fickle()])
    told = scene.unschedulable(make_pod("new", priority=10))
    assert told.post_filter == 'preemption: expected at least one victim pod on node "n0"'
    assert (told.preempt, told.nominate) == (None, None)


# What is to be done ----------------------------------------------------------------------------------------------


def test_lesser_pods_give_their_promised_room_back() -> None:
    scene = full("n0")
    for name, priority in (("low", 2), ("equal", 10), ("high", 11)):
        scene.nominate(make_pod(name, priority=priority), "n0")
    preempt = scene.unschedulable(make_pod("new", cpu="4", priority=10)).preempt
    assert preempt is not None
    assert preempt.clear_nominations == ("uid-default-low",)
    assert preempt.node in preempt.why
    assert preempt.plugin == "DefaultPreemption"


def test_room_promised_to_others_is_not_counted_on() -> None:
    scene = full("n0")
    scene.nominate(make_pod("first", cpu="3", priority=10), "n0")
    told = scene.unschedulable(make_pod("second", cpu="3", priority=10))
    assert told.preempt is None
    assert told.post_filter == "preemption: 0/1 nodes are available: 1 Insufficient cpu."
    assert scene.victims(make_pod("third", cpu="1", priority=10)) == ("n0", ["on-n0"])


def test_two_preemptors_in_a_row_choose_two_nodes() -> None:
    scene = full("n0", "n1")
    node, _ = scene.victims(make_pod("first", cpu="4", priority=10))
    scene.nominate(make_pod("first", cpu="4", priority=10), node)
    other, gone = scene.victims(make_pod("second", cpu="4", priority=10))
    assert {node, other} == {"n0", "n1"}
    assert gone == [f"on-{other}"]


def test_when_all_victims_are_leaving_nobody_loses_a_promise() -> None:
    scene = full("n0", leaving=True)
    scene.nominate(make_pod("low", priority=2), "n0")
    preempt = scene.unschedulable(make_pod("new", cpu="4", priority=10)).preempt
    assert preempt is not None
    assert preempt.clear_nominations == ()


def test_the_search_stops_when_there_are_enough_to_choose_from() -> None:
    names = [f"n{i:02}" for i in range(20)]
    pods = [running(f"on-{name}", name, cpu="4", priority=1) for name in names]
    scene = PreemptionCluster(make_state([make_node(name, cpu="4") for name in names], pods), percent=10, at_least=3)
    told = scene.unschedulable(make_pod("new", cpu="4", priority=10))
    assert told.preempt is not None
    assert told.preempt.search is not None
    assert (told.preempt.search.nodes, told.preempt.search.candidates) == (20, 3)


def test_seeds_start_at_different_nodes() -> None:
    names = [f"n{i:02}" for i in range(20)]
    pods = [running(f"on-{name}", name, cpu="4", priority=1) for name in names]

    def chosen(seed: int) -> str:
        state = make_state([make_node(name, cpu="4") for name in names], pods)
        return PreemptionCluster(state, seed=seed, percent=1, at_least=1).victims(
            make_pod("new", cpu="4", priority=10)
        )[0]

    assert len({chosen(seed) for seed in range(8)}) > 2
    assert chosen(3) == chosen(3)


# While it is being done ------------------------------------------------------------------------------------------


def test_a_pod_waits_while_its_victims_are_being_evicted() -> None:
    scene = full("n0")
    pod = scene.info(make_pod("new", cpu="4", priority=10))
    under_way = scene.state.derived(PreemptionsInProgress)
    assert scene.preemption.pre_enqueue(pod) is None
    under_way.begin(pod.uid)
    held = scene.preemption.pre_enqueue(pod)
    assert held == unresolvable("waiting for the preemption for this pod to be finished")
    under_way.begin_last_victim(pod.uid, "uid-default-on-n0")
    assert scene.preemption.pre_enqueue(pod) == held
    scene.state.set_pod(running("on-n0", "n0", cpu="4", priority=1, leaving=True))
    assert scene.preemption.pre_enqueue(pod) is None  # the last one is on its way: its deletion must find the pod free
    scene.state.drop_pod("uid-default-on-n0")
    assert scene.preemption.pre_enqueue(pod) is None
    under_way.end(pod.uid)
    under_way.end(pod.uid)
    under_way.begin_last_victim(pod.uid, "uid-default-on-n0")
    assert len(under_way) == 0


def test_victims_are_named_only_with_a_node_that_takes_the_pod() -> None:
    """Nobody is evicted for a pod that then fails: what is asked for is always enough for it to be placed."""
    scene = full("n0", "n1")
    scene.state.set_pod(running("rest", "n0", cpu="1", priority=20))
    pod = scene.info(make_pod("new", cpu="4", priority=10))
    preempt = scene.unschedulable(pod).preempt
    assert preempt is not None
    for victim in preempt.victims:
        scene.state.drop_pod(victim.uid)
    scene.nominate(pod, preempt.node)
    placed = scene.engine.decide(pod).decision
    assert not isinstance(placed, Unschedulable)
    assert getattr(placed, "node", "") == preempt.node == "n1"
