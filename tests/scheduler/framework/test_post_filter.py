"""The PostFilter plugins of a profile together give one outcome."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PostFilterRejection, PreemptionPlan, Unschedulable, VictimSearch
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import ROW, Fault, Reject, reject, unresolvable
from tests.scheduler.builders import make_info, make_node, make_state
from tests.scheduler.plugin_equivalence import profile_of


class RejectingPlugin(Plugin):
    name = "Refuses"
    scope = ROW

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return reject("full") if node.name == "n0" else unresolvable("wrong")


class PostFilterPlugin(Plugin):
    """Answer as configured."""

    name = ""
    scope = ROW

    def __init__(self, name: str, answer: Any) -> None:
        self.__dict__["name"] = name
        self._answer = answer
        self.seen: list[str] | None = None

    def post_filter(self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext) -> Any:
        nodes = refused.table.nodes
        self.seen = [node.name for row in refused.resolvable_rows() if (node := nodes[row]) is not None]
        return self._answer


ROOM = PreemptionPlan("P", "n0", ())


def run(*answers: Any) -> tuple[Unschedulable, list[PostFilterPlugin]]:
    state = make_state(make_node(f"n{i}") for i in range(3))
    plugins = [PostFilterPlugin(f"P{i}", answer) for i, answer in enumerate(answers)]
    engine = SchedulingEngine(profile_of([RejectingPlugin(), *plugins]), state)
    pod = make_info(state)
    attempt = engine.decide(pod)
    assert isinstance(attempt.decision, Unschedulable)
    return engine.post_filter(attempt), plugins


@pytest.mark.parametrize(
    ("answers", "words", "nominate", "asked"),
    [
        pytest.param((None,), "", None, 1, id="nothing-to-add"),
        pytest.param(
            (PostFilterRejection(("a",)), PostFilterRejection(("b", "c"))),
            "a, b, c",
            None,
            2,
            id="all-reasons-are-told",
        ),
        pytest.param(
            (PostFilterRejection(("a",)), ROOM, PostFilterRejection(("c",))),
            "",
            "n0",
            2,
            id="success-has-the-last-word",
        ),
        pytest.param(
            (PostFilterRejection(("a",)), PostFilterRejection(("b",), final=True), ROOM),
            "b",
            None,
            2,
            id="no-way-has-it-too",
        ),
        pytest.param(
            (PostFilterRejection(("a",), nominate=""), Fault("broken"), ROOM), "broken", None, 2, id="a-fault-ends-it"
        ),
        pytest.param(
            (PostFilterRejection(("a",), nominate=""), PostFilterRejection(("b",))),
            "a, b",
            "",
            2,
            id="a-promise-is-taken-back",
        ),
        pytest.param(
            (PostFilterRejection(("a",), nominate=""), PostFilterRejection(nominate="n2")),
            "a",
            "n2",
            2,
            id="the-last-one-that-says",
        ),
    ],
)
def test_answers(answers: tuple[Any, ...], words: str, nominate: str | None, asked: int) -> None:
    told, plugins = run(*answers)
    assert (told.post_filter, told.nominate) == (words, nominate)
    assert (told.preempt is not None) == (nominate == "n0")
    assert [plugin.seen is not None for plugin in plugins].count(True) == asked
    assert told.message() == f"0/3 nodes are available: 1 full, 2 wrong.{f' {words}' if words else ''}"


def test_only_nodes_that_pods_could_free_are_worth_a_look() -> None:
    _, (plugin,) = run(None)
    assert plugin.seen == ["n0"]


def test_searches_are_kept_for_explanations() -> None:
    first, second = VictimSearch("A", 1, 0, {"x": 1}), VictimSearch("B", 1, 0, {"y": 1})
    told, _ = run(PostFilterRejection(search=first), None, PostFilterRejection(search=second))
    assert told.searches == (first, second)


def test_without_plugins_a_promise_is_taken_back() -> None:
    told, _ = run()
    assert (told.nominate, told.post_filter) == ("", "")


def test_without_nodes_nobody_is_asked() -> None:
    state = make_state()
    plugin = PostFilterPlugin("P", ROOM)
    engine = SchedulingEngine(profile_of([RejectingPlugin(), plugin]), state)
    pod = make_info(state)
    attempt = engine.decide(pod)
    assert isinstance(attempt.decision, Unschedulable)
    told = engine.post_filter(attempt)
    assert (plugin.seen, told.preempt, told.nominate) == (None, None, "")
    assert told.message() == "no nodes available to schedule pods"


def test_it_is_of_the_pod_just_decided_and_the_cluster_as_it_is() -> None:
    state = make_state([make_node("n0")])
    engine = SchedulingEngine(profile_of([RejectingPlugin(), PostFilterPlugin("P", None)]), state)
    attempt = engine.decide(make_info(state))
    other = engine.decide(make_info(state, name="other"))
    assert (engine.post_filter(attempt), engine.post_filter(other)) == (attempt.decision, other.decision)
    state.set_node(make_node("n1"))
    with pytest.raises(ValueError, match="has changed"):
        engine.post_filter(attempt)
