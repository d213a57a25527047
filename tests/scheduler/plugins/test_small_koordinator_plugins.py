"""NodeResourcesFitPlus, ScarceResourceAvoidance and SchedulingHint: worked examples, and both forms of each score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.config.scheduler.koordinator_args import (
    FitPlusResource,
    NodeResourcesFitPlusArgs,
    ScarceResourceAvoidanceArgs,
    SchedulingHintArgs,
    defaulted_scheduling_hint,
)
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cluster_event import UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import AttemptError, ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import SKIP, Fault
from koord.scheduler.plugins.node_filters import NodeName
from koord.scheduler.plugins.node_resources.fit_plus import NodeResourcesFitPlus, nonzero_pod_requests
from koord.scheduler.plugins.node_resources.scarce_resource_avoidance import ScarceResourceAvoidance
from koord.scheduler.plugins.queueing_and_binding import SchedulingHintPlugin
from tests.scheduler.builders import make_info, make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import check_columns_match_definition, profile_of

GPU = "nvidia.com/gpu"
HINT = "internal.scheduling.koordinator.sh/scheduling-hint"
OLD_HINT = "scheduling.koordinator.sh/scheduling-hint"


def scored(plugin: Plugin, state: ClusterState, pod: Pod, node: str = "n0") -> int:
    info, found = state.pod_info(pod), state.node(node)
    assert found is not None
    check_columns_match_definition(plugin, state, info, [])
    cycle = CycleState(state)
    plugin.pre_score(cycle, info, [found])
    return plugin.score(cycle, info, found)


# NodeResourcesFitPlus ----------------------------------------------------------------------------------------------


def plus(**resources: tuple[str, int]) -> NodeResourcesFitPlus:
    given = {name.replace("gpu", GPU): FitPlusResource(type=kind, weight=w) for name, (kind, w) in resources.items()}
    return NodeResourcesFitPlus(NodeResourcesFitPlusArgs(resources=given))


MOST, LEAST = "MostAllocated", "LeastAllocated"


@pytest.mark.parametrize(
    ("plugin", "asks", "score"),
    [
        pytest.param(plus(cpu=(MOST, 1)), {"cpu": "4"}, 50, id="filled-up"),
        pytest.param(plus(cpu=(LEAST, 1)), {"cpu": "2"}, 75, id="kept-free"),
        pytest.param(plus(cpu=(LEAST, 1), memory=(MOST, 3)), {"cpu": "2", "memory": "8Gi"}, 37, id="weighted"),
        pytest.param(plus(cpu=(LEAST, 2), gpu=(MOST, 2)), {"cpu": "2", GPU: "4"}, 87, id="cpus-spread-cards-packed"),
        pytest.param(plus(gpu=(MOST, 2)), {"cpu": "2"}, 100, id="none-of-them-asked-for"),
        pytest.param(plus(cpu=("Sideways", 1)), {"cpu": "2"}, 0, id="a-type-that-is-not-known"),
        pytest.param(plus(), {"cpu": "2"}, 100, id="no-arguments"),
    ],
)
def test_each_resource_has_its_own_strategy(plugin: Plugin, asks: dict[str, str], score: int) -> None:
    state = make_state([make_node(cpu="8", memory="32Gi", more={GPU: "4"})])
    assert scored(plugin, state, make_pod("p", more=asks)) == score


def test_what_runs_there_counts() -> None:
    state = make_state([make_node(cpu="8")], [make_pod("runs", node="n0", cpu="2"), make_pod("unstated", node="n0")])
    assert scored(plus(cpu=(MOST, 1)), state, make_pod("p", cpu="2")) == 51  # the unstated one counts with 100m


def cpus(amount: str, **more: Any) -> dict[str, Any]:
    return {"name": f"c{amount}", "image": "x", "resources": {"requests": {"cpu": amount}}, **more}


@pytest.mark.parametrize(
    ("containers", "init", "cpu"),
    [
        pytest.param(["2", "3"], [], 5000, id="containers-add-up"),
        pytest.param(["2"], [cpus("10")], 10000, id="a-greedy-start"),
        pytest.param(["2"], [cpus("1", restartPolicy="Always")], 3000, id="one-that-stays"),
        pytest.param(["2"], [cpus("1", restartPolicy="Always"), cpus("5")], 5000, id="one-that-stays-and-a-start"),
    ],
)
def test_what_a_pod_adds(containers: list[str], init: list[dict[str, Any]], cpu: int) -> None:
    pod = make_info(name="p", containers=[cpus(amount) for amount in containers], initContainers=init)
    assert nonzero_pod_requests(pod.shape)["cpu"] == cpu


amounts = st.fixed_dictionaries(
    {}, optional={"cpu": st.sampled_from(("0", "1", "3")), GPU: st.sampled_from(("1", "4"))}
)


@given(
    nodes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=8),
    asks=amounts,
    kinds=st.tuples(st.sampled_from((MOST, LEAST, "")), st.sampled_from((MOST, LEAST, ""))),
    scarce=st.sets(st.sampled_from(("cpu", "memory", GPU))),
)
def test_both_forms_agree(
    nodes: list[tuple[int, int]], asks: Mapping[str, str], kinds: tuple[str, str], scarce: set[str]
) -> None:
    state = make_state(make_node(f"n{i}", cpu=str(cpu), more={GPU: str(gpu)}) for i, (cpu, gpu) in enumerate(nodes))
    state.set_pod(make_pod("runs", node="n0", cpu="1", more={GPU: "1"}))
    pod = state.pod_info(make_pod("p", more=asks))
    check_columns_match_definition(plus(cpu=(kinds[0], 2), gpu=(kinds[1], 1)), state, pod, [0, 3, 1])
    check_columns_match_definition(
        ScarceResourceAvoidance(ScarceResourceAvoidanceArgs(resources=tuple(scarce))), state, pod, [2, 0]
    )


# ScarceResourceAvoidance -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scarce", "has", "asks", "score"),
    [
        pytest.param((GPU,), {}, {"cpu": "1", "memory": "1Gi"}, 100, id="nothing-scarce-there"),
        pytest.param((GPU,), {GPU: "8"}, {"cpu": "1", "memory": "1Gi"}, 0, id="only-cards-would-idle"),
        pytest.param((GPU,), {GPU: "8"}, {"cpu": "1"}, 50, id="memory-and-cards-would-idle"),
        pytest.param((GPU,), {GPU: "8"}, {"cpu": "1", GPU: "1"}, 100, id="it-asks-for-cards"),
        pytest.param((GPU,), {GPU: "0"}, {"cpu": "1"}, 100, id="none-left-on-the-node-at-all"),
        pytest.param((), {GPU: "8"}, {"cpu": "1"}, 100, id="nothing-is-scarce"),
    ],
)
def test_scarce_resources_are_left_to_those_who_ask(
    scarce: tuple[str, ...], has: dict[str, str], asks: dict[str, str], score: int
) -> None:
    plugin = ScarceResourceAvoidance(ScarceResourceAvoidanceArgs(resources=scarce))
    assert scored(plugin, make_state([make_node(more=has)]), make_pod("p", more=asks)) == score


# SchedulingHint ----------------------------------------------------------------------------------------------------


def hinted(name: str = "p", key: str = HINT, text: str | None = None, **hint: list[str]) -> Pod:
    return make_pod(name, annotations={key: json.dumps(hint) if text is None else text})


def engine(most: int | None = None) -> SchedulingEngine:
    state = make_state(make_node(f"n{i}") for i in range(6))
    plugin = SchedulingHintPlugin(defaulted_scheduling_hint(SchedulingHintArgs(max_hint_nodes=most)))
    return SchedulingEngine(profile_of([plugin, NodeName()]), state, 0)


def decided(pod: Pod, most: int | None = None) -> Any:
    made = engine(most)
    return made.decide(made._state.pod_info(pod)).decision


def test_only_the_named_nodes_are_looked_at() -> None:
    decision = decided(hinted(nodeNames=["n4", "gone"]))
    assert isinstance(decision, ChosenNode)
    assert (decision.node, decision.feasible) == ("n4", 1)
    told = decided(make_pod("q", nodeName="", annotations={HINT: '{"nodeNames":["gone"]}'}))
    assert isinstance(told, Unschedulable)
    assert "SchedulingHint" in told.message()


@pytest.mark.parametrize(
    ("pod", "node"),
    [
        pytest.param(hinted(preferredNodeNames=["gone", "n3", "n1"]), "n3", id="the-first-that-is-there"),
        pytest.param(hinted(key=OLD_HINT, preferredNodeNames=["n2"]), "n2", id="under-the-old-key"),
        pytest.param(hinted(nodeNames=["n1", "n5"], preferredNodeNames=["n2", "n5"]), "n5", id="among-the-named"),
    ],
)
def test_preferred_nodes_are_tried_first(pod: Pod, node: str) -> None:
    assert decided(pod).node == node


def test_a_preference_that_is_of_no_use_changes_nothing() -> None:
    chosen = decided(hinted(preferredNodeNames=["gone"]))
    assert isinstance(chosen, ChosenNode)
    assert chosen.feasible == 6


def test_only_so_many_preferred_nodes_are_tried() -> None:
    assert decided(hinted(preferredNodeNames=["gone", "n3"]), most=1).feasible == 6
    assert decided(hinted(preferredNodeNames=["gone", "n3"]), most=2).node == "n3"


def test_a_hint_that_cannot_be_read_is_an_error() -> None:
    told = decided(hinted(text="{"))
    assert isinstance(told, AttemptError)
    assert told.plugin == "SchedulingHint"


def test_an_empty_hint_leaves_the_word_to_the_old_key() -> None:
    pod = make_pod("p", annotations={HINT: "", OLD_HINT: '{"preferredNodeNames":["n5"]}'})
    assert decided(pod).node == "n5"


def test_pods_without_a_hint_share_a_class_and_are_skipped() -> None:
    made = engine()
    for n in range(3):
        made.decide(made._state.pod_info(make_pod(f"p{n}", annotations={"other": str(n)})))
    assert len(made._classes) == 1
    plugin = SchedulingHintPlugin(defaulted_scheduling_hint(SchedulingHintArgs()))
    info = made._state.pod_info(make_pod("q"))
    assert plugin.pre_filter(CycleState(made._state), info) is SKIP
    assert plugin.prefer_nodes(CycleState(made._state), info) is SKIP
    assert isinstance(plugin.pre_filter(CycleState(made._state), made._state.pod_info(hinted(text="[]"))), Fault)


def test_only_another_hint_wakes() -> None:
    state = make_state()
    plugin = SchedulingHintPlugin(defaulted_scheduling_hint(SchedulingHintArgs()))
    old, new = state.pod_info(hinted(nodeNames=["a"])), state.pod_info(hinted(nodeNames=["b"]))
    event = ClusterEvent("Pod", UPDATE)
    assert plugin.queueing_hint(new, ObjectEvent(event, old, new))
    assert not plugin.queueing_hint(new, ObjectEvent(event, new, new))
    assert not plugin.queueing_hint(
        new, ObjectEvent(event, old=state.pod_info(make_pod("x")), new=state.pod_info(make_pod("x")))
    )
