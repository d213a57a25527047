"""Of several candidate nodes the one that does least harm is picked."""

from __future__ import annotations

import pytest

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.preemption.victims import PreemptionCandidate, pick_candidate
from tests.scheduler.preemption.cluster_fixture import running

Victims = list[tuple[int, int | None]]  # priority and minute of start, the most important first


def candidate(name: str, violations: int, victims: Victims) -> PreemptionCandidate:
    state = ClusterState()
    pods = [running(f"{name}{i}", name, priority=p, started=at) for i, (p, at) in enumerate(victims)]
    return PreemptionCandidate(name, tuple(state.pod_info(pod) for pod in pods), violations)


@pytest.mark.parametrize(
    ("first", "second", "best"),
    [
        pytest.param((1, [(0, 0)]), (0, [(5, 0), (5, 0)]), "b", id="fewer-broken-budgets"),
        pytest.param((0, [(5, 0)]), (0, [(4, 0), (4, 0)]), "b", id="a-lower-highest-priority"),
        pytest.param((0, [(5, 0), (4, 0)]), (0, [(5, 0), (3, 0)]), "b", id="a-smaller-sum"),
        pytest.param((0, [(5, 0), (-5, 0)]), (0, [(5, 0), (-5, 0), (-5, 0)]), "a", id="negative-ones-count-too"),
        pytest.param((0, [(5, 0), (5, 9)]), (0, [(5, 1), (5, 2)]), "b", id="a-later-earliest-start"),
        pytest.param((0, [(5, 3), (0, 9)]), (0, [(5, 4), (0, 0)]), "b", id="starts-of-the-highest-only"),
        pytest.param((0, [(5, 3)]), (0, [(5, None)]), "b", id="one-that-has-not-started-is-the-latest"),
        pytest.param((0, [(5, 3)]), (0, [(5, 3)]), "a", id="the-first-of-equals"),
        pytest.param((0, [(5, None)]), (0, [(5, None)]), "a", id="the-first-when-none-has-started"),
    ],
)
def test_pick(first: tuple[int, Victims], second: tuple[int, Victims], best: str) -> None:
    assert pick_candidate([candidate("a", *first), candidate("b", *second)]).node == best


def test_sum_and_number_are_told_apart() -> None:
    """One pod of a high priority weighs less than two of half of it: each counts from the lowest priority there is."""
    assert pick_candidate([candidate("a", 0, [(10, 0)]), candidate("b", 0, [(10, 0), (-2_000_000_000, 0)])]).node == "a"
