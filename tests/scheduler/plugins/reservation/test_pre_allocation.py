"""Running pods are chosen as owners of a reservation that is about to be placed."""

from __future__ import annotations

import pytest

from koord.scheduler.plugins.reservation.pre_allocation import (
    PreAllocationCandidate,
    PreAllocationRequest,
    choose_pre_allocated,
    score_pre_allocation,
)


def pods(**cpu: int) -> list[PreAllocationCandidate]:
    """In the order of their rank."""
    return [
        PreAllocationCandidate(uid=uid, requests={"cpu": n}, rank=(i, uid)) for i, (uid, n) in enumerate(cpu.items())
    ]


@pytest.mark.parametrize(
    ("demand", "candidates", "free", "expected"),
    [
        pytest.param(
            PreAllocationRequest(reserved={"cpu": 4}), pods(a=2, b=3), 1, ("b",), id="the-one-that-fills-it-best"
        ),
        pytest.param(PreAllocationRequest(reserved={"cpu": 4}), pods(a=2), 1, None, id="one-that-does-not-make-it-fit"),
        pytest.param(
            PreAllocationRequest(reserved={"cpu": 4}), pods(a=5), 0, None, id="one-that-is-larger-than-the-reservation"
        ),
        pytest.param(
            PreAllocationRequest(reserved={"cpu": 4}), pods(a=5), 4, (), id="none-where-there-is-room-without"
        ),
        pytest.param(PreAllocationRequest(reserved={"cpu": 4}), pods(a=1), 4, ("a",), id="one-though-there-is-room"),
        pytest.param(
            PreAllocationRequest(reserved={"cpu": 4}, prefers_free_capacity=True), pods(a=1), 4, (), id="rather-none"
        ),
        pytest.param(
            PreAllocationRequest(reserved={"cpu": 4}, allows_multiple=True),
            pods(a=2, b=2),
            0,
            ("a", "b"),
            id="as-many-as-needed",
        ),
        pytest.param(
            PreAllocationRequest(reserved={"cpu": 4}, allows_multiple=True),
            pods(a=2, b=2, c=2),
            2,
            ("a",),
            id="and-no-more",
        ),
        pytest.param(
            PreAllocationRequest(reserved={"cpu": 5}, allows_multiple=True, ranked=True),
            pods(large=6, second=2, third=4, fourth=3),
            0,
            ("second", "fourth"),
            id="by-rank-passing-over-those-that-overflow",
        ),
        pytest.param(PreAllocationRequest(reserved={"cpu": 4}, allows_multiple=True), pods(a=1), 0, None, id="too-few"),
    ],
)
def test_choice(
    demand: PreAllocationRequest, candidates: list[PreAllocationCandidate], free: int, expected: tuple[str, ...] | None
) -> None:
    found = choose_pre_allocated(demand, candidates, {"cpu": free})
    assert (None if found is None else tuple(c.uid for c in found)) == expected


def test_score_is_the_mean_share() -> None:
    assert score_pre_allocation({"cpu": 4, "memory": 8}, {"cpu": 2, "memory": 8}) == 75
