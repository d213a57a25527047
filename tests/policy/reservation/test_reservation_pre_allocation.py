"""Running pods are chosen as owners of a reservation that is about to be placed."""

from __future__ import annotations

import pytest

from koord.policy.reservation.pre_allocation import Candidate, Demand, choose, score


def pods(**cpu: int) -> list[Candidate]:
    """In the order of their rank."""
    return [Candidate(uid=uid, requests={"cpu": n}, rank=(i, uid)) for i, (uid, n) in enumerate(cpu.items())]


@pytest.mark.parametrize(
    ("demand", "candidates", "free", "expected"),
    [
        pytest.param(Demand(reserved={"cpu": 4}), pods(a=2, b=3), 1, ("b",), id="the-one-that-fills-it-best"),
        pytest.param(Demand(reserved={"cpu": 4}), pods(a=2), 1, None, id="one-that-does-not-make-it-fit"),
        pytest.param(Demand(reserved={"cpu": 4}), pods(a=5), 0, None, id="one-that-is-larger-than-the-reservation"),
        pytest.param(Demand(reserved={"cpu": 4}), pods(a=5), 4, (), id="none-where-there-is-room-without"),
        pytest.param(Demand(reserved={"cpu": 4}), pods(a=1), 4, ("a",), id="one-though-there-is-room"),
        pytest.param(Demand(reserved={"cpu": 4}, rather_none=True), pods(a=1), 4, (), id="rather-none"),
        pytest.param(Demand(reserved={"cpu": 4}, several=True), pods(a=2, b=2), 0, ("a", "b"), id="as-many-as-needed"),
        pytest.param(Demand(reserved={"cpu": 4}, several=True), pods(a=2, b=2, c=2), 2, ("a",), id="and-no-more"),
        pytest.param(
            Demand(reserved={"cpu": 5}, several=True, ranked=True),
            pods(large=6, second=2, third=4, fourth=3),
            0,
            ("second", "fourth"),
            id="by-rank-passing-over-those-that-overflow",
        ),
        pytest.param(Demand(reserved={"cpu": 4}, several=True), pods(a=1), 0, None, id="too-few"),
    ],
)
def test_choice(demand: Demand, candidates: list[Candidate], free: int, expected: tuple[str, ...] | None) -> None:
    found = choose(demand, candidates, {"cpu": free})
    assert (None if found is None else tuple(c.uid for c in found)) == expected


def test_pods_of_other_resources_are_no_candidates() -> None:
    other = [Candidate(uid="a", requests={"memory": 1})]
    assert choose(Demand(reserved={"cpu": 1}), other, {"cpu": 0, "memory": 0}) is None


def test_score_is_the_mean_share() -> None:
    assert score({"cpu": 4, "memory": 8}, {"cpu": 2, "memory": 8}) == 75
