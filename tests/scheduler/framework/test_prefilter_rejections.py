"""A pod that PreFilter rejects is unschedulable before any node is evaluated, with Kubernetes' message."""

from __future__ import annotations

from typing import Any

import pytest

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import AttemptError, ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, PreFilterResult, Reject, reject, unresolvable
from tests.scheduler.builders import make_info, make_node, make_state
from tests.scheduler.plugin_equivalence import profile_of


class PreFilterPlugin(Plugin):
    """Answer as configured, and reject every node with one reason when asked about nodes."""

    scope = ROW
    name = ""

    def __init__(self, name: str, answer: Any, *, refuses: bool = False) -> None:
        self.__dict__["name"] = name
        self._answer = answer
        self._refuses = refuses
        self.asked = False

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Any:
        self.asked = True
        return self._answer

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return reject(f"not for {self.name}") if self._refuses else None


def only(*names: str) -> PreFilterResult:
    return PreFilterResult(frozenset(names))


def decided(*plugins: Plugin) -> ChosenNode | Unschedulable | AttemptError:
    state = make_state(make_node(f"n{i}") for i in range(3))
    return SchedulingEngine(profile_of(plugins), state).decide(make_info(state)).decision


@pytest.mark.parametrize(
    ("plugins", "message", "waits_for"),
    [
        pytest.param(
            (PreFilterPlugin("A", unresolvable("no way")),), "0/3 nodes are available: no way.", {"A"}, id="one-refuses"
        ),
        pytest.param(
            (PreFilterPlugin("A", only("n0")), PreFilterPlugin("B", only("n1"))),
            "0/3 nodes are available: node(s) didn't satisfy plugin(s) [A B] simultaneously.",
            {"A", "B"},
            id="two-leave-nothing-between-them",
        ),
        pytest.param(
            (PreFilterPlugin("A", only()),),
            "0/3 nodes are available: node(s) didn't satisfy plugin A.",
            {"A"},
            id="one-leaves-nothing",
        ),
        pytest.param(
            (
                PreFilterPlugin("B", only("n0", "n1")),
                PreFilterPlugin("A", only("n1", "n2")),
                PreFilterPlugin("C", None, refuses=True),
            ),
            "0/3 nodes are available: 1 not for C, 2 node(s) didn't satisfy plugin(s) [A B].",
            {"A", "B", "C"},
            id="what-is-left-is-refused",
        ),
        pytest.param(
            (PreFilterPlugin("A", only("ghost")),),
            "0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [A].",
            {"A"},
            id="no-such-node",
        ),
    ],
)
def test_words(plugins: tuple[Plugin, ...], message: str, waits_for: set[str]) -> None:
    refused = decided(*plugins)
    assert isinstance(refused, Unschedulable)
    assert refused.message() == message
    assert refused.rejecting_plugins() == waits_for


def test_the_search_is_narrowed() -> None:
    chosen = decided(PreFilterPlugin("A", only("n1", "n2")), PreFilterPlugin("B", only("n0", "n1")))
    assert isinstance(chosen, ChosenNode)
    assert (chosen.node, chosen.feasible) == ("n1", 1)


def test_a_refusal_that_preemption_could_lift_lets_the_others_prepare() -> None:
    first, second = PreFilterPlugin("A", reject("later")), PreFilterPlugin("B", None)
    refused = decided(first, second)
    assert isinstance(refused, Unschedulable)
    assert refused.message() == "0/3 nodes are available: later."
    assert second.asked


def test_a_refusal_beyond_help_ends_it() -> None:
    first, second = PreFilterPlugin("A", unresolvable("never")), PreFilterPlugin("B", None)
    decided(first, second)
    assert not second.asked


def test_who_skips_is_not_asked_about_nodes() -> None:
    assert isinstance(decided(PreFilterPlugin("A", SKIP, refuses=True)), ChosenNode)


def test_a_fault_concludes_nothing_about_nodes() -> None:
    assert decided(PreFilterPlugin("A", Fault("broken"))) == AttemptError("A", "broken", "PreFilter")


def test_a_cluster_without_nodes() -> None:
    state, asked = make_state(), PreFilterPlugin("A", None)
    refused = SchedulingEngine(profile_of([asked]), state).decide(make_info(state)).decision
    assert isinstance(refused, Unschedulable)
    assert refused.message() == "no nodes available to schedule pods"
    assert refused.rejecting_plugins() == frozenset()
    assert not asked.asked
