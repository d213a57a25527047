"""A plugin that cannot score fails the attempt only where there is something to choose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import Chosen, Decision, Failed, Unschedulable
from koord.scheduler.framework.engine import Engine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, Fault, Reject, Skip, reject
from koord.scheduler.shell.outcome import of_decision
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from tests.scheduler.clusters import make_info, make_node, make_state
from tests.scheduler.equality import profile_of


class Unprepared(Plugin):
    name = "Unprepared"
    scope = ROW

    def __init__(self, fits: int) -> None:
        self._fits = fits

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return None if int(node.name[1:]) < self._fits else reject("no room")

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return Fault("broken")

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        raise AssertionError("it said that it cannot")


def decided(fits: int) -> Decision:
    state = make_state(make_node(f"n{i}") for i in range(4))
    return Engine(profile_of([Unprepared(fits)], {"Unprepared": 1}), state).decide(make_info(state))


@pytest.mark.parametrize(
    ("fits", "kind"),
    [
        pytest.param(0, Unschedulable, id="no-node-fits"),
        pytest.param(1, Chosen, id="one-fits"),
        pytest.param(2, Failed, id="two-fit"),
    ],
)
def test_what_comes_of_it(fits: int, kind: type[Decision]) -> None:
    assert isinstance(decided(fits), kind)


def test_its_words() -> None:
    decision = decided(3)
    assert isinstance(decision, Failed)
    assert of_decision(decision).message == 'running PreScore plugin "Unprepared": broken'
