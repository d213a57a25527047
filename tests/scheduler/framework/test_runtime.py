"""Hooks around PreFilter and before Score run in order, and reject, plan or prefer nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import (
    AttemptError,
    ChosenNode,
    Decision,
    PostFilterRejection,
    PreemptionPlan,
    Unschedulable,
)
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, PreFilterResult, Reject, reject, unresolvable
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import profile_of

CALLS = (
    "before_pre_filter",
    "pre_filter",
    "after_pre_filter",
    "before_filter",
    "filter",
    "before_score",
    "pre_score",
    "score",
)


class RecordingPlugin(Plugin):
    """Record what it is asked, and about which pod."""

    name = "Noting"
    scope = ROW

    def __init__(self, **answers: Any) -> None:
        self.heard: list[tuple[str, str]] = []
        self._answers = answers

    def _note(self, what: str, pod: PodInfo) -> Any:
        if (what, pod.name) not in self.heard:
            self.heard.append((what, pod.name))
        return self._answers.get(what)

    def before_pre_filter(self, cycle: CycleState, pod: PodInfo) -> Any:
        return self._note("before_pre_filter", pod)

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Any:
        return self._note("pre_filter", pod)

    def after_pre_filter(self, cycle: CycleState, pod: PodInfo) -> Any:
        return self._note("after_pre_filter", pod)

    def before_filter(self, cycle: CycleState, pod: PodInfo) -> Any:
        return self._note("before_filter", pod)

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Any:
        return self._note("filter", pod)

    def before_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Any:
        return self._note("before_score", pod)

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Any:
        return self._note("pre_score", pod)

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        self._note("score", pod)
        return 0


class FindOneNodePlugin(Plugin):
    name = "Planning"
    scope = ROW

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def find_one_node(self, cycle: CycleState, pod: PodInfo) -> Any:
        return self.answer


class PreferNodesPlugin(FindOneNodePlugin):
    name = "Preferring"

    def find_one_node(self, cycle: CycleState, pod: PodInfo) -> Any:
        return SKIP

    def prefer_nodes(self, cycle: CycleState, pod: PodInfo) -> Any:
        return self.answer


class FilteringPlugin(Plugin):
    """Accept only nodes of this zone, and score n0 best."""

    name = "Keeping"
    scope = ROW

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return None if node.labels.get("zone") == "a" else reject("node(s) were elsewhere")

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 100 if node.name == "n0" else 0


class RestrictingPlugin(Plugin):
    name = "Narrowing"
    scope = ROW

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> PreFilterResult:
        return PreFilterResult(frozenset(("n0", "n1")))


def cluster() -> ClusterState:
    zones = {"n0": "a", "n1": "a", "n2": "a", "n3": "b"}
    return make_state([make_node(name, labels={"zone": zone}) for name, zone in zones.items()])


def decide(*plugins: Plugin) -> Decision:
    state = cluster()
    return SchedulingEngine(profile_of(plugins), state).decide(state.pod_info(make_pod("p"))).decision


def test_the_order() -> None:
    noting = RecordingPlugin()
    assert isinstance(decide(noting), ChosenNode)
    assert noting.heard == [(call, "p") for call in CALLS]


def test_a_pod_that_is_replaced_is_what_all_others_see() -> None:
    state = cluster()
    noting = RecordingPlugin(before_pre_filter=state.pod_info(make_pod("other")))
    assert isinstance(
        SchedulingEngine(profile_of([noting]), state).decide(state.pod_info(make_pod("p"))).decision, ChosenNode
    )
    assert noting.heard == [("before_pre_filter", "p"), *((call, "other") for call in CALLS[1:])]


@pytest.mark.parametrize("at", ["before_pre_filter", "after_pre_filter"])
def test_a_refusal_around_pre_filter_is_the_plugins_own(at: str) -> None:
    noting = RecordingPlugin(**{at: unresolvable("not today")})
    refused = decide(noting)
    assert isinstance(refused, Unschedulable)
    assert refused.message() == "0/4 nodes are available: not today."
    assert refused.rejecting_plugins() == {"Noting"}
    assert noting.heard[-1] == (at, "p")


@pytest.mark.parametrize("at", ["before_pre_filter", "after_pre_filter", "before_filter", "before_score"])
def test_a_fault_ends_the_attempt(at: str) -> None:
    point = "PreScore" if at == "before_score" else ""
    assert decide(RecordingPlugin(**{at: Fault("broken")})) == AttemptError("Noting", "broken", point)


def test_equal_pods_share_what_was_prepared() -> None:
    state, noting = cluster(), RecordingPlugin()
    engine = SchedulingEngine(profile_of([noting]), state)
    for name in ("p", "q"):
        assert isinstance(engine.decide(state.pod_info(make_pod(name))).decision, ChosenNode)
    assert ("before_pre_filter", "q") not in noting.heard


def test_a_plugin_that_says_nothing_of_itself_prepares_every_pod() -> None:
    class Silent(Plugin):
        name = "Silent"
        asked: list[str] = []

        def before_pre_filter(self, cycle: CycleState, pod: PodInfo) -> None:
            self.asked.append(pod.name)

    state, plugin = cluster(), Silent()
    engine = SchedulingEngine(profile_of([plugin]), state)
    for name in ("p", "q"):
        engine.decide(state.pod_info(make_pod(name)))
    assert plugin.asked == ["p", "q"]


# Planned nodes ---------------------------------------------------------------------------------------------------


def test_a_planned_node_is_taken_whatever_the_scores() -> None:
    chosen = decide(FilteringPlugin(), FindOneNodePlugin("n1"))
    assert isinstance(chosen, ChosenNode)
    assert (chosen.node, chosen.feasible) == ("n1", 1)


@pytest.mark.parametrize(
    ("planned", "message"),
    [
        pytest.param(
            "n3",
            "0/4 nodes are available: 1 node(s) were elsewhere, 3 node(s) didn't satisfy plugin(s) [Planning].",
            id="where-the-pod-does-not-fit",
        ),
        pytest.param(
            "gone", "0/4 nodes are available: 4 node(s) didn't satisfy plugin(s) [Planning].", id="that-is-not-there"
        ),
    ],
)
def test_no_other_node_stands_in_for_a_planned_one(planned: str, message: str) -> None:
    refused = decide(FilteringPlugin(), FindOneNodePlugin(planned))
    assert isinstance(refused, Unschedulable)
    assert refused.message() == message
    assert "Planning" in refused.rejecting_plugins()


def test_a_planned_node_that_pre_filter_left_out() -> None:
    refused = decide(RestrictingPlugin(), FindOneNodePlugin("n2"))
    assert isinstance(refused, Unschedulable)
    words = "node(s) didn't satisfy plugin(s) [Narrowing Planning] simultaneously"
    assert refused.message() == f"0/4 nodes are available: {words}."


def test_no_plan_is_no_restriction() -> None:
    chosen = decide(FilteringPlugin(), FindOneNodePlugin(SKIP))
    assert isinstance(chosen, ChosenNode)
    assert (chosen.node, chosen.feasible) == ("n0", 3)


def test_a_plan_that_is_empty_is_a_fault() -> None:
    words = 'FindOneNodePlugin "Planning" succeeded but produced no node for pod default/p'
    assert decide(FilteringPlugin(), FindOneNodePlugin("")) == AttemptError("Planning", words)


def test_a_plan_that_is_refused() -> None:
    refused = decide(FilteringPlugin(), FindOneNodePlugin(reject("no room for all")))
    assert isinstance(refused, Unschedulable)
    assert refused.message() == "0/4 nodes are available: no room for all."
    assert decide(FilteringPlugin(), FindOneNodePlugin(Fault("broken"))) == AttemptError("Planning", "broken")


def test_plans_of_equal_pods_are_their_own() -> None:
    state, planning = cluster(), FindOneNodePlugin("n1")
    engine = SchedulingEngine(profile_of([FilteringPlugin(), planning]), state)
    for name in ("n1", "n2", "n0", "n1"):
        planning.answer = name
        pod = state.pod_info(make_pod(f"for-{name}"))
        attempt = engine.decide(pod)
        assert attempt.node_name == name
        assert attempt.cycle.allowed_nodes == frozenset((name,))
    planning.answer = SKIP
    attempt = engine.decide(state.pod_info(make_pod("free")))
    assert isinstance(attempt.decision, ChosenNode)
    assert (attempt.decision.feasible, attempt.cycle.allowed_nodes) == (3, None)


# Preferred nodes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preferred", "node", "feasible"),
    [
        pytest.param(["n2", "n0"], "n2", 1, id="the-first-that-fits"),
        pytest.param(["n3", "gone", "n1"], "n1", 1, id="past-those-that-do-not"),
        pytest.param(["n3", "gone"], "n0", 3, id="none-fits"),
        pytest.param([], "n0", 3, id="none-named"),
        pytest.param(SKIP, "n0", 3, id="skipped"),
    ],
)
def test_preferred_nodes(preferred: Any, node: str, feasible: int) -> None:
    chosen = decide(FilteringPlugin(), PreferNodesPlugin(preferred))
    assert isinstance(chosen, ChosenNode)
    assert (chosen.node, chosen.feasible) == (node, feasible)


def test_a_preferred_node_that_pre_filter_left_out_is_passed_over() -> None:
    chosen = decide(FilteringPlugin(), RestrictingPlugin(), PreferNodesPlugin(["n2", "n1"]))
    assert isinstance(chosen, ChosenNode)
    assert chosen.node == "n1"


def test_a_plan_goes_before_a_preference() -> None:
    chosen = decide(FilteringPlugin(), PreferNodesPlugin(["n2"]), FindOneNodePlugin("n1"))
    assert isinstance(chosen, ChosenNode)
    assert chosen.node == "n1"


# After PostFilter ------------------------------------------------------------------------------------------------


class AfterPostFilterPlugin(Plugin):
    name = "Lamenting"

    def __init__(self) -> None:
        self.told: list[str] = []

    def after_post_filter(self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext) -> None:
        self.told.append(f"{pod.name}: {refused.decision.message()}")


class PostFilterPlugin(Plugin):
    name = "Giving"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def post_filter(self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext) -> Any:
        return self._answer


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([], id="nobody-can-help"),
        pytest.param(
            [PostFilterPlugin(PostFilterRejection(("hopeless",), final=True))], id="somebody-had-the-last-word"
        ),
        pytest.param([PostFilterPlugin(Fault("broken"))], id="somebody-broke"),
        pytest.param([PostFilterPlugin(PreemptionPlan("Giving", "n0", ()))], id="somebody-found-a-way"),
    ],
)
@pytest.mark.parametrize(
    ("refusing", "words"),
    [
        pytest.param(RecordingPlugin(pre_filter=reject("too early")), "too early", id="in-pre-filter"),
        pytest.param(RecordingPlugin(filter=reject("too full")), "4 too full", id="on-nodes"),
        pytest.param(FindOneNodePlugin(reject("no room for all")), "no room for all", id="in-a-plan"),
    ],
)
def test_hears_of_every_pod_that_fits_nowhere(before: list[Plugin], refusing: Plugin, words: str) -> None:
    state, lamenting = cluster(), AfterPostFilterPlugin()
    engine = SchedulingEngine(profile_of([refusing, *before, lamenting]), state)
    pod = state.pod_info(make_pod("p"))
    engine.post_filter(engine.decide(pod))
    assert lamenting.told == [f"p: 0/4 nodes are available: {words}."]
