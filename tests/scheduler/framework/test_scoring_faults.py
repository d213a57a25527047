"""A plugin that cannot score fails the attempt only where there is something to choose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.attempt import failure_of_decision
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import AttemptError, ChosenNode, Decision, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, Fault, Reject, Skip, reject
from tests.scheduler.builders import make_info, make_node, make_state
from tests.scheduler.plugin_equivalence import profile_of


class FaultyPreScorePlugin(Plugin):
    name = "Unprepared"
    scope = ROW

    def __init__(self, fits: int) -> None:
        self._fits = fits

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return None if int(node.name[1:]) < self._fits else reject("no room")

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return Fault("broken")

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        raise AssertionError("it said that it cannot")


def decided(fits: int) -> Decision:
    state = make_state(make_node(f"n{i}") for i in range(4))
    engine = SchedulingEngine(profile_of([FaultyPreScorePlugin(fits)], {"Unprepared": 1}), state)
    return engine.decide(make_info(state)).decision


@pytest.mark.parametrize(
    ("fits", "kind"),
    [
        pytest.param(0, Unschedulable, id="no-node-fits"),
        pytest.param(1, ChosenNode, id="one-fits"),
        pytest.param(2, AttemptError, id="two-fit"),
    ],
)
def test_what_comes_of_it(fits: int, kind: type[Decision]) -> None:
    assert isinstance(decided(fits), kind)


def test_its_words() -> None:
    decision = decided(3)
    assert isinstance(decision, AttemptError)
    assert failure_of_decision(decision).message == 'running PreScore plugin "Unprepared": broken'
