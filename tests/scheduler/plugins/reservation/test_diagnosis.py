"""The diagnosis texts about reservations that did not help are right."""

from __future__ import annotations

import pytest

from koord.api.kubernetes.affinity import Taint
from koord.scheduler.plugins.reservation.matching import (
    Mismatch,
    MismatchCounts,
    ReservationMatch,
    diagnosis_reasons,
    event_message,
)

TAINTED = ReservationMatch(Mismatch.TAINT, taint=Taint(key="k", value="v", effect="NoSchedule"))
NAME = "node(s) didn't match the requested node name"


def test_counts_over_nodes() -> None:
    tallies = {
        "n1": MismatchCounts.from_matches(
            [ReservationMatch(Mismatch.AFFINITY)] * 3 + [ReservationMatch(Mismatch.OWNER)] * 5
        ),
        "n2": MismatchCounts.from_matches(
            [ReservationMatch(Mismatch.UNSCHEDULABLE), ReservationMatch(), ReservationMatch()]
        ),
    }
    assert diagnosis_reasons(tallies, {"n2": [NAME]}, has_affinity=False) == [
        "3 Reservation(s) didn't match affinity rules",
        "1 Reservation(s) is unschedulable",
        f"2 Reservation(s) for node reason that {NAME}",
        "6 Reservation(s) matched owner total",
    ]


def test_all_words_in_their_order() -> None:
    answers = [
        ReservationMatch(Mismatch.NOT_EXACT),
        TAINTED,
        ReservationMatch(Mismatch.UNSCHEDULABLE),
        ReservationMatch(Mismatch.AFFINITY),
        ReservationMatch(Mismatch.NAME),
        ReservationMatch(matched_by_name=True),
    ]
    assert diagnosis_reasons(
        {"n": MismatchCounts.from_matches(answers)},
        {"n": ["Reservation(s) Insufficient cpu", "other"]},
        has_affinity=True,
    ) == [
        "1 Reservation(s) exactly matches the requested reservation name",
        "1 Reservation(s) didn't match the requested reservation name",
        "1 Reservation(s) didn't match affinity rules",
        "1 Reservation(s) is unschedulable",
        "1 Reservation(s) is not exact matched",
        "1 Reservation(s) had untolerated taint {k: v}",
        "6 Reservation(s) matched owner total",
    ]


def test_without_any_reservation() -> None:
    assert diagnosis_reasons({}, {"n": ["x"]}, has_affinity=False) == []
    assert diagnosis_reasons({}, {}, has_affinity=True) == ["0 Reservation(s) matched owner total"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(
            "0/3 nodes are available: 1 Reservation(s) Insufficient cpu. 1 Reservation(s) matched owner total.",
            "0/1 reservations are available: 1 Reservation(s) Insufficient cpu.",
            id="short",
        ),
        pytest.param(
            "0/10 nodes are available: 1 Reservation(s) Insufficient cpu, requested: 4000, used: 30000, "
            "capacity: 32000, 9 node(s) didn't match. 1 Reservation(s) exactly matches the requested reservation name, "
            "3 Reservation(s) didn't match the requested reservation name, 4 Reservation(s) matched owner total.",
            "0/4 reservations are available: 1 Reservation(s) exactly matches the requested reservation name, "
            "1 Reservation(s) Insufficient cpu, 3 Reservation(s) didn't match the requested reservation name.",
            id="by-name",
        ),
        pytest.param(
            "0/1 nodes are available: 1 Insufficient cpu. 1 Reservation(s) for node reason that Insufficient cpu, "
            "1 Reservation(s) is unschedulable, 2 Reservation(s) matched owner total, preemption: none.",
            "0/2 reservations are available: 1 Reservation(s) is unschedulable, "
            "1 Reservation(s) for node reason that Insufficient cpu.",
            id="reasons-of-the-node-come-last",
        ),
        pytest.param("0/1 nodes are available: 1 Insufficient cpu.", None, id="nothing-about-reservations"),
        pytest.param("gang is waiting", None, id="another-sentence"),
    ],
)
def test_the_event(message: str, expected: str | None) -> None:
    assert event_message(message) == expected
