"""A pass over the cluster: who is asked, in which order, and what limits and evictors make of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import (
    DeschedulerPlugin,
    DeschedulingProfile,
    EvictionProposal,
    EvictorHandle,
    RoundLimits,
    RoundState,
)
from koord.descheduler.framework.round import CLUSTER_TOO_SMALL, RoundOutcome, run_round
from koord.values.selector import Selector
from tests.descheduler.cluster_builders import make_node, make_pod, make_snapshot


class Sweeper(DeschedulerPlugin):
    """Proposes every pod that the filters let go."""

    name: ClassVar[str] = "Sweeper"

    def __init__(self, args: Any = None, error: str | None = None) -> None:
        self.seen: list[str] = []
        self._error = error

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        return self._sweep(nodes, handle)

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        return self._sweep(nodes, handle)

    def _sweep(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        for node in nodes:
            self.seen.append(node.metadata.name)
            for pod in handle.snapshot.pods_on_node(node.metadata.name):
                if handle.filter(pod) is None:
                    handle.evict(pod, "swept")
        return self._error


class Guard(DeschedulerPlugin):
    """Protects pods by name, and takes on one proposal per pod."""

    name: ClassVar[str] = "Guard"

    def __init__(self, *protected: str) -> None:
        self._protected = protected

    def filter(self, pod: Pod, round_state: RoundState) -> str | None:
        return "protected" if pod.metadata.name in self._protected else None

    def evict(self, proposal: EvictionProposal, round_state: RoundState) -> str | None:
        taken = {other.pod.metadata.uid for other in round_state.proposed}
        return "already proposed" if proposal.pod.metadata.uid in taken else None


NODES = (make_node("n1"), make_node("n2", labels={"pool": "x"}))
PODS = (
    make_pod("a", "n1"),
    make_pod("b", "n1"),
    make_pod("c", "n2", namespace="other"),
    make_pod("done", "n2", status={"phase": "Succeeded"}),
)


def evicted(outcome: RoundOutcome) -> list[str]:
    return [effect.pod.metadata.name for effect in outcome.effects if isinstance(effect, EvictionProposal)]


def profile(guard: Guard, **points: Any) -> DeschedulingProfile:
    return DeschedulingProfile(name="p", evict=guard, filter=(guard,), **points)


def test_filters_keep_pods_and_ended_ones_are_not_seen() -> None:
    outcome = run_round([profile(Guard("b"), balance=(Sweeper(),))], make_snapshot(NODES, PODS), RoundLimits())
    assert evicted(outcome) == ["a", "c"]


def test_a_proposal_is_seen_by_whoever_comes_after() -> None:
    guard = Guard()
    profiles = [profile(guard, deschedule=(Sweeper(),), balance=(Sweeper(),))]
    outcome = run_round(profiles, make_snapshot(NODES, PODS), RoundLimits())
    assert evicted(outcome) == ["a", "b", "c"]
    assert [(d.by, d.why) for d in outcome.declined] == [("Guard", "already proposed")] * 3


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(RoundLimits(per_node=1), ["a", "c"], id="second-pod-of-a-node"),
        pytest.param(RoundLimits(per_namespace=1), ["a", "c"], id="second-pod-of-a-namespace"),
        pytest.param(RoundLimits(total=2), ["a", "b"], id="third-pod-in-all"),
        pytest.param(RoundLimits(total=0), [], id="none-at-all"),
    ],
)
def test_limits(limits: RoundLimits, expected: list[str]) -> None:
    profiles = [profile(Guard(), balance=(Sweeper(),))]
    assert evicted(run_round(profiles, make_snapshot(NODES, PODS), limits)) == expected
    # Counted anew in the next round.
    assert evicted(run_round(profiles, make_snapshot(NODES, PODS), limits)) == expected


def test_what_an_evictor_declines_does_not_count() -> None:
    guard = Guard()
    profiles = [profile(guard, deschedule=(Sweeper(),), balance=(Sweeper(),))]
    outcome = run_round(profiles, make_snapshot(NODES, PODS[:2]), RoundLimits(total=2))
    assert evicted(outcome) == ["a", "b"]


def test_all_deschedule_come_before_all_balance_and_an_error_ends_the_pass() -> None:
    broken, late = Sweeper(error="cannot"), Sweeper()
    profiles = [
        profile(Guard(), balance=(late,)),
        DeschedulingProfile(name="q", evict=Guard(), deschedule=(broken, Sweeper())),
    ]
    outcome = run_round(profiles, make_snapshot(NODES, PODS), RoundLimits())
    assert outcome.error == "Sweeper: cannot"
    assert evicted(outcome)[:3] == ["a", "b", "c"]
    assert late.seen == []


def test_selectors_of_the_program_and_of_the_profile() -> None:
    sweeper = Sweeper()
    pool = Selector.from_labels({"pool": "x"})
    run_round([profile(Guard(), balance=(sweeper,), nodes=pool)], make_snapshot(NODES, PODS), RoundLimits())
    assert sweeper.seen == ["n2"]
    assert run_round([profile(Guard())], make_snapshot(NODES), RoundLimits(), nodes=pool).error == CLUSTER_TOO_SMALL


@pytest.mark.parametrize(("ready", "counts"), [("True", True), ("", True), ("False", False), ("Unknown", False)])
def test_ready_or_silent_nodes_count(ready: str, counts: bool) -> None:
    nodes = (make_node("n1"), make_node("n2", ready=ready, unschedulable=True))
    assert (run_round([profile(Guard())], make_snapshot(nodes), RoundLimits()).error == "") is counts


def test_a_dry_run_chooses_the_same_and_says_so() -> None:
    profiles = [profile(Guard("b"), balance=(Sweeper(),))]
    real = run_round(profiles, make_snapshot(NODES, PODS), RoundLimits(total=1))
    dry = run_round(profiles, make_snapshot(NODES, PODS), RoundLimits(total=1), dry_run=True)
    assert evicted(real) == evicted(dry) == ["a"]
    assert [effect.dry_run for effect in (*real.effects, *dry.effects)] == [False, True]


class Broken(Sweeper):
    name: ClassVar[str] = "Broken"

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        super().deschedule(nodes, handle)
        raise KeyError("nothing")


def test_a_plugin_that_breaks_ends_the_pass_and_not_the_program() -> None:
    late = Sweeper()
    outcome = run_round(
        [profile(Guard(), deschedule=(Broken(),), balance=(late,))], make_snapshot(NODES, PODS), RoundLimits()
    )
    assert outcome.error == "Broken: KeyError: 'nothing'"
    assert [type(one) for one in outcome.plugin_errors] == [KeyError]
    assert evicted(outcome) == ["a", "b", "c"]  # what was proposed before stands
    assert late.seen == []
