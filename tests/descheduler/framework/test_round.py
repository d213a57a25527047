"""A pass over the cluster: who is asked, in which order, and what limits and evictors make of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from koord.api.node import Node
from koord.descheduler.framework.effect import Evict
from koord.descheduler.framework.limit import Limits
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.profile import Profile
from koord.descheduler.framework.round import TOO_SMALL, Hand, Outcome, Sight, decide
from koord.descheduler.wire import Pod
from koord.values.selector import Selector
from tests.descheduler.clusters import make_node, make_pod, make_snapshot


class Sweeper(Plugin):
    """Proposes every pod that the filters let go."""

    name: ClassVar[str] = "Sweeper"

    def __init__(self, args: Any = None, error: str | None = None) -> None:
        self.seen: list[str] = []
        self._error = error

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        return self._sweep(nodes, hand)

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        return self._sweep(nodes, hand)

    def _sweep(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        for node in nodes:
            self.seen.append(node.metadata.name)
            for pod in hand.snapshot.on(node.metadata.name):
                if hand.refuses(pod) is None:
                    hand.evict(pod, "swept")
        return self._error


class Guard(Plugin):
    """Protects pods by name, and takes on one proposal per pod."""

    name: ClassVar[str] = "Guard"

    def __init__(self, *protected: str) -> None:
        self._protected = protected

    def refuses(self, pod: Pod, sight: Sight) -> str | None:
        return "protected" if pod.metadata.name in self._protected else None

    def evicts(self, proposal: Evict, sight: Sight) -> str | None:
        taken = {other.pod.metadata.uid for other in sight.proposed}
        return "already proposed" if proposal.pod.metadata.uid in taken else None


NODES = (make_node("n1"), make_node("n2", labels={"pool": "x"}))
PODS = (
    make_pod("a", "n1"),
    make_pod("b", "n1"),
    make_pod("c", "n2", namespace="other"),
    make_pod("done", "n2", status={"phase": "Succeeded"}),
)


def evicted(outcome: Outcome) -> list[str]:
    return [effect.pod.metadata.name for effect in outcome.effects if isinstance(effect, Evict)]


def profile(guard: Guard, **points: Any) -> Profile:
    return Profile(name="p", evict=guard, filter=(guard,), **points)


def test_filters_keep_pods_and_ended_ones_are_not_seen() -> None:
    outcome = decide([profile(Guard("b"), balance=(Sweeper(),))], make_snapshot(NODES, PODS), Limits())
    assert evicted(outcome) == ["a", "c"]


def test_a_proposal_is_seen_by_whoever_comes_after() -> None:
    guard = Guard()
    profiles = [profile(guard, deschedule=(Sweeper(),), balance=(Sweeper(),))]
    outcome = decide(profiles, make_snapshot(NODES, PODS), Limits())
    assert evicted(outcome) == ["a", "b", "c"]
    assert [(d.by, d.why) for d in outcome.declined] == [("Guard", "already proposed")] * 3


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(Limits(per_node=1), ["a", "c"], id="second-pod-of-a-node"),
        pytest.param(Limits(per_namespace=1), ["a", "c"], id="second-pod-of-a-namespace"),
        pytest.param(Limits(total=2), ["a", "b"], id="third-pod-in-all"),
        pytest.param(Limits(total=0), [], id="none-at-all"),
    ],
)
def test_limits(limits: Limits, expected: list[str]) -> None:
    profiles = [profile(Guard(), balance=(Sweeper(),))]
    assert evicted(decide(profiles, make_snapshot(NODES, PODS), limits)) == expected
    # Counted anew in the next round.
    assert evicted(decide(profiles, make_snapshot(NODES, PODS), limits)) == expected


def test_what_an_evictor_declines_does_not_count() -> None:
    guard = Guard()
    profiles = [profile(guard, deschedule=(Sweeper(),), balance=(Sweeper(),))]
    outcome = decide(profiles, make_snapshot(NODES, PODS[:2]), Limits(total=2))
    assert evicted(outcome) == ["a", "b"]


def test_all_deschedule_come_before_all_balance_and_an_error_ends_the_pass() -> None:
    broken, late = Sweeper(error="cannot"), Sweeper()
    profiles = [
        profile(Guard(), balance=(late,)),
        Profile(name="q", evict=Guard(), deschedule=(broken, Sweeper())),
    ]
    outcome = decide(profiles, make_snapshot(NODES, PODS), Limits())
    assert outcome.error == "Sweeper: cannot"
    assert evicted(outcome)[:3] == ["a", "b", "c"]
    assert late.seen == []


def test_selectors_of_the_program_and_of_the_profile() -> None:
    sweeper = Sweeper()
    pool = Selector.of_labels({"pool": "x"})
    decide([profile(Guard(), balance=(sweeper,), nodes=pool)], make_snapshot(NODES, PODS), Limits())
    assert sweeper.seen == ["n2"]
    assert decide([profile(Guard())], make_snapshot(NODES), Limits(), nodes=pool).error == TOO_SMALL


@pytest.mark.parametrize(("ready", "counts"), [("True", True), ("", True), ("False", False), ("Unknown", False)])
def test_ready_or_silent_nodes_count(ready: str, counts: bool) -> None:
    nodes = (make_node("n1"), make_node("n2", ready=ready, unschedulable=True))
    assert (decide([profile(Guard())], make_snapshot(nodes), Limits()).error == "") is counts


def test_a_dry_run_chooses_the_same_and_says_so() -> None:
    profiles = [profile(Guard("b"), balance=(Sweeper(),))]
    real = decide(profiles, make_snapshot(NODES, PODS), Limits(total=1))
    dry = decide(profiles, make_snapshot(NODES, PODS), Limits(total=1), dry_run=True)
    assert evicted(real) == evicted(dry) == ["a"]
    assert [effect.dry_run for effect in (*real.effects, *dry.effects)] == [False, True]


class Broken(Sweeper):
    name: ClassVar[str] = "Broken"

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        super().deschedule(nodes, hand)
        raise KeyError("nothing")


def test_a_plugin_that_breaks_ends_the_pass_and_not_the_program() -> None:
    late = Sweeper()
    outcome = decide([profile(Guard(), deschedule=(Broken(),), balance=(late,))], make_snapshot(NODES, PODS), Limits())
    assert outcome.error == "Broken: KeyError: 'nothing'"
    assert [type(one) for one in outcome.broken] == [KeyError]
    assert evicted(outcome) == ["a", "b", "c"]  # what was proposed before stands
    assert late.seen == []
