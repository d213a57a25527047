"""Resources for a nominated pod are not taken by pods of no higher priority."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from tests.scheduler.builders import HOSTNAME, ZONE, make_node, make_pod, make_state
from tests.scheduler.preemption.cluster_fixture import PreemptionCluster, running

WEB = {"app": "web"}
ZONES = {f"n{i}": "b" if i == 2 else "a" for i in range(9)}


def near(kind: str, key: str = HOSTNAME) -> Any:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": WEB}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def scene(*nodes: str, filters_without_nominated: bool = True) -> PreemptionCluster:
    return PreemptionCluster(
        make_state([make_node(name, cpu="4", labels={HOSTNAME: name, ZONE: ZONES[name]}) for name in nodes]),
        filters_without_nominated=filters_without_nominated,
    )


def placed(made: PreemptionCluster, pod: Pod) -> str:
    decision = made.engine.decide(made.state.pod_info(pod)).decision
    assert isinstance(decision, ChosenNode | Unschedulable)
    return decision.node if isinstance(decision, ChosenNode) else decision.message()


@pytest.mark.parametrize(
    ("priority", "node"),
    [
        pytest.param(5, "n1", id="a-lesser-one-goes-elsewhere"),
        pytest.param(10, "n1", id="an-equal-one-goes-elsewhere"),
        pytest.param(11, "n0", id="a-greater-one-takes-the-room"),
    ],
)
def test_whose_promise_counts(priority: int, node: str) -> None:
    made = scene("n0", "n1")
    made.state.set_pod(running("old", "n1", cpu="500m"))  # n0 is the emptier one
    made.nominate(make_pod("soon", cpu="4", priority=10), "n0")
    assert placed(made, make_pod("new", cpu="1", priority=priority)) == node


def test_ones_own_promise_counts_for_nothing_but_leads_there() -> None:
    made = scene("n0", "n1")
    made.state.set_pod(running("old", "n0", cpu="500m"))
    pod = make_pod("new", cpu="3", priority=5)
    assert placed(made, pod) == "n1"
    made.nominate(pod, "n0")
    assert placed(made, pod) == "n0"
    assert placed(made, make_pod("twin", cpu="3", priority=5)) == "n1"


def test_status_alone_leads_there_too() -> None:
    made = scene("n0", "n1")
    made.state.set_pod(running("old", "n0", cpu="500m"))
    assert placed(made, make_pod("new", cpu="3", nominated="n0")) == "n0"


@pytest.mark.parametrize("node", ["n0", "gone"])
def test_a_promise_that_is_of_no_use_is_passed_over(node: str) -> None:
    made = scene("n0", "n1")
    made.state.set_pod(running("old", "n0", cpu="2"))
    pod = make_pod("new", cpu="3")
    made.nominate(pod, node)
    assert placed(made, pod) == "n1"


def test_refusals_are_told_as_they_are_with_the_promises() -> None:
    made = scene("n0", "n1")
    made.state.set_pod(running("a", "n0", cpu="3"))
    made.state.set_pod(running("b", "n1", cpu="3"))
    made.nominate(make_pod("soon", memory="32Gi", priority=10), "n0")
    pod = make_pod("new", cpu="2", memory="1Gi")
    assert placed(made, pod) == "0/2 nodes are available: 1 Insufficient memory, 2 Insufficient cpu."
    made.nominations.remove("uid-default-soon")
    assert placed(made, pod) == "0/2 nodes are available: 2 Insufficient cpu."


def test_a_promise_is_no_company_yet() -> None:
    """A pod that wants company is refused without the promised pod, one that wants none is refused with it."""
    made = scene("n0")
    made.nominate(make_pod("soon", labels=WEB, priority=10), "n0")
    assert "didn't match pod affinity rules" in placed(made, make_pod("fond", affinity=near("podAffinity")))
    assert "didn't match pod anti-affinity" in placed(made, make_pod("shy", affinity=near("podAntiAffinity")))


def test_without_the_second_pass_a_promise_is_company() -> None:
    made = scene("n0", "n1", filters_without_nominated=False)
    soon = make_pod("soon", labels=WEB, priority=10, cpu="2")
    fond = make_pod("fond", cpu="1", affinity=near("podAffinity"))
    assert "2 node(s) didn't match pod affinity rules" in placed(made, fond)
    made.nominate(soon, "n0")
    assert placed(made, fond) == "n0"
    made.nominate(soon, "n1")
    assert placed(made, fond) == "n1"
    made.nominate(soon, "n0")
    assert placed(made, fond) == "n0"
    assert placed(made, make_pod("shy", affinity=near("podAntiAffinity"))) == "n1"
    assert placed(made, make_pod("big", cpu="3", affinity=near("podAffinity"))) == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod affinity rules."
    )
    made.nominations.remove(soon.metadata.uid)
    assert "2 node(s) didn't match pod affinity rules" in placed(made, fond)


def test_without_the_second_pass_preemption_counts_promises_too() -> None:
    victim = running("old", "n0", cpu="3", priority=0)
    preemptor = make_pod("new", cpu="2", priority=5, affinity=near("podAffinity"))
    for twice in (True, False):
        made = scene("n0", filters_without_nominated=twice)
        made.state.set_pod(victim)
        made.nominate(make_pod("soon", labels=WEB, priority=10, cpu="1"), "n0")
        plan = made.unschedulable(preemptor).preempt
        assert (None if plan is None else plan.node) == (None if twice else "n0")


def test_scores_are_of_the_nodes_that_are_left() -> None:
    """Scores are compared among feasible nodes, so a blocked one must have no part in them."""
    made = scene("n0", "n1", "n2")
    made.state.set_pod(running("old", "n1", cpu="1"))
    pod = make_pod("new", cpu="1")
    promise = make_pod("soon", cpu="4", priority=10)
    made.nominate(promise, "n0")
    with_promise = made.engine.decide(made.state.pod_info(pod)).decision
    other = scene("n1", "n2")
    other.state.set_pod(running("old", "n1", cpu="1"))
    alone = other.engine.decide(other.state.pod_info(pod)).decision
    assert isinstance(with_promise, ChosenNode)
    assert isinstance(alone, ChosenNode)
    assert (with_promise.node, with_promise.scores, with_promise.feasible) == (alone.node, alone.scores, 2)


def test_a_promise_is_weighed_again_when_others_come_elsewhere() -> None:
    """A spread counts whole zones: with the promised pod the limit is met, and passed by one that comes beside it."""
    made = scene("n0", "n1", "n2")
    made.nominate(make_pod("soon", labels=WEB, priority=10), "n0")
    spread = {
        "maxSkew": 2,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": WEB},
    }
    for node in ("n1", "n2"):
        made.state.set_pod(running(f"on-{node}", node, cpu="2"))
    pod = make_pod("new", cpu="3", labels=WEB, topologySpreadConstraints=[spread])
    assert placed(made, pod) == "n0"
    made.state.set_pod(running("old", "n1", labels=WEB))
    assert "didn't match pod topology spread constraints" in placed(made, pod)


def test_promises_on_many_nodes_do_not_outlive_a_look() -> None:
    made = scene(*(f"n{i}" for i in range(9)))
    for i in range(9):
        made.nominate(make_pod(f"soon{i}", cpu="4", priority=10), f"n{i}")
    pod = make_pod("new", cpu="1")
    assert placed(made, pod).startswith("0/9")
    for i in range(8):
        made.nominations.remove(f"uid-default-soon{i}")
    assert placed(made, pod) != "n8"
    made.nominations.remove("uid-default-soon8")
    found = made.engine.decide(made.state.pod_info(pod)).decision
    assert isinstance(found, ChosenNode)
    assert found.feasible == 9


# Kept and made anew ----------------------------------------------------------------------------------------------

NAMES = ("n0", "n1", "n2")
STEPS = st.one_of(
    st.tuples(st.just("promise"), st.sampled_from(("s0", "s1")), st.sampled_from((*NAMES, ""))),
    st.tuples(st.just("place"), st.sampled_from(("p0", "p1", "p2", "p3")), st.sampled_from(NAMES)),
    st.tuples(st.just("drop"), st.sampled_from(("p0", "p1", "p2")), st.just("")),
    st.tuples(st.just("node"), st.sampled_from(NAMES), st.sampled_from(("2", "4"))),
)


@st.composite
def judged(draw: st.DrawFn, name: str) -> Pod:
    affinity = draw(
        st.sampled_from(
            (
                None,
                near("podAffinity"),
                near("podAffinity", ZONE),
                near("podAntiAffinity"),
                near("podAntiAffinity", ZONE),
            )
        )
    )
    constraint = {
        "maxSkew": draw(st.sampled_from((1, 2, 3))),
        "topologyKey": draw(st.sampled_from((ZONE, HOSTNAME))),
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": WEB},
    }
    return make_pod(
        name,
        cpu=draw(st.sampled_from(("1", "2", "4"))),
        priority=draw(st.sampled_from((0, 5))),
        labels=draw(st.sampled_from(({}, WEB))),
        affinity=affinity,
        topologySpreadConstraints=[constraint] if draw(st.booleans()) else [],
    )


@given(
    st.lists(STEPS, min_size=1, max_size=12),
    st.tuples(*(judged(f"s{i}") for i in range(2))),
    judged("new"),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_what_is_kept_is_what_would_be_said_anew(
    steps: list[tuple[str, str, str]], soon: tuple[Pod, ...], pod: Pod, twice: bool
) -> None:
    made = scene(*NAMES, filters_without_nominated=twice)
    pods = {p.metadata.name: p for p in soon}
    for what, name, where in steps:
        if what == "promise":
            made.nominations.nominate(made.state.pod_info(pods[name]), where)
        elif what == "place":
            made.state.set_pod(running(name, where, cpu="100m", labels=WEB))
        elif what == "drop":
            made.state.drop_pod(f"uid-default-{name}")
        else:
            made.state.set_node(make_node(name, cpu=where, labels={HOSTNAME: name, ZONE: ZONES[name]}))
        for judge in (pod, *soon):
            fresh = SchedulingEngine(made.engine.profile, made.state, 0, made.nominations)
            assert view(made.engine, made.state, judge) == view(fresh, made.state, judge), (what, name, where)


def view(engine: SchedulingEngine, state: ClusterState, pod: Pod) -> Any:
    info = state.pod_info(pod)
    attempt = engine.decide(info)
    if isinstance(attempt.decision, Unschedulable):
        return attempt.decision.message()
    found = attempt.evaluation
    assert found is not None
    return {
        node.name: found.filter_results.verdict(node.row)
        or (int(found.score_results.total[node.row]), found.score_results.breakdown(node.row))
        for node in state.nodes()
    }
