"""Free resources of nodes and reservations, the order of nomination, and what is kept from other pods are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.annotations.reservation_codecs import ReservationAffinity
from koord.api.koordinator.scheduling import ALIGNED, RESTRICTED
from koord.scheduler.plugins.reservation.cycle_state import (
    ReservationScoreNormaliser,
    encode_raw_score,
    nominate,
    score_reservation,
)
from koord.scheduler.plugins.reservation.fit import (
    NO_MATCH,
    POLICY_CONFLICT,
    WRONG_NODE,
    IgnoredResources,
    ReservationRefusal,
    filter_node,
    filter_reserve_pod,
    fits_node,
)
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage
from tests.scheduler.plugins.reservation.reservation_builders import ANY, GI, amounts, node_free, pod, reservation_usage

BY_NAME = ReservationAffinity(name="r")
BUSY = amounts(24, 24)  # with a reservation of 6 cpus, 30 of 32 are spoken for
SIX: dict[str, Any] = {"reserved": amounts(6), "allocate_once": False}
SEVEN: dict[str, Any] = {
    "reserved": amounts(7, pods=2),
    "node_reserved": amounts(1),
    "allocated": amounts(2),
    "owner_count": 2,
    "allocate_once": False,
    "policy": RESTRICTED,
}


def reasons(refused: ReservationRefusal | None) -> list[str]:
    return [] if refused is None else list(refused.reasons)


@pytest.mark.parametrize(
    ("held", "seeker", "used", "expected"),
    [
        pytest.param(
            {**SIX, "policy": ALIGNED}, {"requests": amounts(8, 8)}, BUSY, [], id="aligned-takes-from-the-node-too"
        ),
        pytest.param(
            {**SIX, "policy": ALIGNED},
            {"requests": amounts(8, 8)},
            amounts(26, 24),
            ["Insufficient cpu by node"],
            id="aligned-and-the-node-is-full",
        ),
        pytest.param({**SIX, "policy": RESTRICTED}, {"requests": amounts(6, 8)}, BUSY, [], id="restricted-exactly"),
        pytest.param(
            {**SIX, "policy": RESTRICTED},
            {"requests": amounts(8, 8)},
            BUSY,
            ["Reservation(s) Insufficient cpu"],
            id="restricted-to-what-is-reserved",
        ),
        pytest.param(
            {**SIX, "policy": RESTRICTED, "node_reserved": amounts(1)},
            {"requests": amounts(6, 8)},
            amounts(20),
            ["Reservation(s) Insufficient cpu"],
            id="a-part-is-kept-inside",
        ),
        pytest.param(SEVEN, {"requests": amounts(3)}, {}, ["Reservation(s) Too many pods"], id="owners-are-counted"),
        pytest.param(
            SEVEN,
            {"requests": amounts(3), "affinity": BY_NAME},
            {},
            ["Reservation(s) Too many pods, requested: 1, used: 2, capacity: 2"],
            id="details-for-who-asked-by-name",
        ),
    ],
)
def test_one_reservation(
    held: dict[str, Any], seeker: dict[str, Any], used: dict[str, int], expected: list[str]
) -> None:
    r = reservation_usage(**held)
    asks = pod(**{"affinity": ANY, **seeker})
    assert reasons(filter_node(asks, [r], node_free(r, used=used))) == expected


BATCH = "kubernetes.io/batch-cpu"


@pytest.mark.parametrize(
    ("there", "expected"), [(4000, []), (1000, [f"Insufficient {BATCH} by node"])], ids=["enough", "too-little"]
)
def test_resources_outside_the_reservation_come_from_the_node(there: int, expected: list[str]) -> None:
    r = reservation_usage(**SIX, policy=RESTRICTED)
    node = node_free(r, allocatable={**amounts(32, 32), BATCH: there})
    assert reasons(filter_node(pod(requests={BATCH: 2000}, affinity=ANY), [r], node)) == expected


def test_every_reservation_says_why() -> None:
    full = [
        reservation_usage(name, **{**SIX, "policy": RESTRICTED}, allocated=amounts(6), owner_count=1)
        for name in ("a", "b")
    ]
    asks = pod(requests=amounts(2), affinity=ANY)
    assert reasons(filter_node(asks, full, node_free(*full))) == ["Reservation(s) Insufficient cpu"] * 2


def test_pods_without_affinity_may_use_the_node_alone() -> None:
    full = reservation_usage(**SIX, policy=RESTRICTED, allocated=amounts(6), owner_count=1)
    asks = pod(requests=amounts(8))
    assert filter_node(asks, [full], node_free(full, used=BUSY)) is None
    assert reasons(filter_node(asks, [full], node_free(full, used=amounts(25)))) == ["Insufficient cpu by node"]


@pytest.mark.parametrize(
    ("seeker", "refused"),
    [
        pytest.param({"affinity": ANY}, ReservationRefusal((NO_MATCH,), resolvable=False), id="affinity-needs-one"),
        pytest.param({"requests": amounts(99)}, None, id="others-filter-the-node"),
    ],
)
def test_without_a_match(seeker: dict[str, Any], refused: ReservationRefusal | None) -> None:
    assert filter_node(pod(**seeker), [], node_free()) == refused


def test_who_ignores_reservations_is_judged_by_others() -> None:
    r = reservation_usage(reserved=amounts(32))
    node = node_free(r)
    assert filter_node(pod(requests=amounts(2), ignores_reservations=True), [r], node) is None
    assert node.free()["cpu"] == 0


@pytest.mark.parametrize(
    ("pods", "short"), [(98, []), (99, ["pods"])], ids=["the-owner-has-the-place-of-its-reservation", "full"]
)
def test_each_reservation_keeps_one_place_for_a_pod(pods: int, short: list[str]) -> None:
    a, b = reservation_usage("a"), reservation_usage("b")
    assert fits_node(pod(), node_free(a, b, pods=pods), a) == short
    assert fits_node(pod(), node_free(a, b, pods=pods)) == ["pods"]


def test_ignored_resources() -> None:
    ignored = IgnoredResources(frozenset({"x.io/one", "cpu"}), frozenset({"a"}))
    names = ["x.io/one", "x.io/two", "a/b/c", "a", "/x", "cpu", "pods"]
    assert [name for name in names if ignored.covers(name)] == ["x.io/one", "a/b/c"]
    asks = pod(requests={"x.io/one": 5, "x.io/two": 5})
    assert fits_node(asks, node_free(), ignored=ignored) == ["x.io/two"]


@pytest.mark.parametrize(
    ("pinned", "policy", "there", "reason"),
    [
        pytest.param("m", "", [], WRONG_NODE, id="pinned-elsewhere"),
        pytest.param("n", "", [reservation_usage()], None, id="both-default"),
        pytest.param("", "", [reservation_usage(policy=ALIGNED)], POLICY_CONFLICT, id="default-beside-aligned"),
        pytest.param("", RESTRICTED, [reservation_usage()], POLICY_CONFLICT, id="restricted-beside-default"),
        pytest.param("", RESTRICTED, [reservation_usage(policy=ALIGNED)], None, id="restricted-beside-aligned"),
        pytest.param(
            "", "", [reservation_usage(is_operating_pod=True)], POLICY_CONFLICT, id="a-pod-as-reservation-is-aligned"
        ),
        pytest.param("", "", [reservation_usage(policy=ALIGNED, owner_count=1)], None, id="beside-one-that-is-taken"),
    ],
)
def test_new_reservations(pinned: str, policy: str, there: list[ReservationUsage], reason: str | None) -> None:
    refused = filter_reserve_pod(pinned, policy, node_free(*there))
    assert reasons(refused) == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        pytest.param({"reserved": amounts(4, 8)}, 50, id="half-full"),
        pytest.param({"reserved": amounts(2, 4)}, 100, id="full"),
        pytest.param({"reserved": amounts(2, 4), "allocated": amounts(2, 3)}, 0, id="over-full"),
        pytest.param({"reserved": amounts(2, 4) | {"memory": 0}}, 100, id="nothing-of-one-resource"),
        pytest.param({"reserved": {"gpu": 3}}, 0, id="nothing-in-common"),
    ],
)
def test_worth(held: dict[str, Any], expected: int) -> None:
    assert score_reservation(pod(requests=amounts(2, 4)), reservation_usage(**held)) == expected
    assert score_reservation(pod(), reservation_usage(**held)) == 0


def chosen(*there: ReservationUsage, affinity: ReservationAffinity | None = None) -> str:
    found = nominate(pod(requests=amounts(2, 4), affinity=affinity), there, lambda s: s.info.name != "bad")
    return found.info.name if found is not None else ""


def test_nomination() -> None:
    big, small = reservation_usage("big", reserved=amounts(4, 8)), reservation_usage("small", reserved=amounts(2, 4))
    first, second = reservation_usage("first", order=1), reservation_usage("second", order=2)
    assert chosen() == ""
    assert chosen(big, small) == "small"
    assert chosen(big, small, second, first) == "first"
    assert chosen(reservation_usage("bad"), small) == "small"
    assert chosen(reservation_usage("bad")) == ""
    assert chosen(reservation_usage("bad"), affinity=ANY) == "bad"  # the only one that it may have was judged before
    assert chosen(reservation_usage("b"), reservation_usage("a")) == "a"
    used = reservation_usage("used", allocate_once=True, owner_count=1)
    assert chosen(used, big) == "big"


def test_scores_of_nodes() -> None:
    asks = pod(requests=amounts(2, 4))
    half, full = reservation_usage("h", reserved=amounts(4, 8)), reservation_usage("f", reserved=amounts(2, 4))
    ordered = reservation_usage("o", reserved=amounts(4, 8), order=7)
    later = reservation_usage("l", reserved=amounts(2, 4), order=8)

    def scores(*nominated: ReservationUsage | None) -> list[int]:
        raw = np.asarray(
            [0 if usage is None else encode_raw_score(usage, score_reservation(asks, usage)) for usage in nominated]
        )
        normaliser = ReservationScoreNormaliser()
        found: list[int] = normaliser.apply(raw, normaliser.span(raw, np.ones(len(raw), np.bool_))).tolist()
        return found

    assert scores(half, full, None) == [50, 100, 0]
    assert scores(full, ordered, later) == [10, 100, 10]
    assert scores(None) == [0]


parts = st.tuples(st.integers(0, 10), st.integers(0, 14), st.integers(0, 3))


@settings(max_examples=100)
@given(st.lists(parts, max_size=4), st.integers(0, 20))
def test_strangers_never_get_what_is_held(found: list[tuple[int, int, int]], others: int) -> None:
    """Whatever owners took, even more than was reserved, what is left of each reservation is kept from strangers."""
    standings = [
        reservation_usage(f"r{i}", reserved=amounts(reserved), allocated=amounts(had), node_reserved=amounts(inner))
        for i, (reserved, had, inner) in enumerate(found)
    ]
    used = amounts(others + sum(taken for _, taken, _ in found))
    node = node_free(*standings, used=used)
    free = node.free()["cpu"]
    held = sum(max(0, reserved - taken) for reserved, taken, _ in found) * 1000
    assert free == 32_000 - used.get("cpu", 0) - held
    for r, (reserved, had, inner) in zip(standings, found):
        mine = node.free(r)["cpu"]
        assert mine - free == max(0, reserved - had - inner) * 1000


def test_an_owner_that_took_more_than_reserved_does_not_make_a_node_look_free() -> None:
    r = reservation_usage(reserved=amounts(4, 4), allocated=amounts(6, 1), owner_count=1, allocate_once=False)
    node = node_free(r, allocatable=amounts(8, 16), used=amounts(6, 1))
    assert node.free() == {"cpu": 2000, "memory": 12 * GI}
    assert reasons(filter_node(pod(requests=amounts(4, 1)), [r], node)) == ["Insufficient cpu by node"]
