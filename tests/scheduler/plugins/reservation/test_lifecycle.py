"""Each row of the life-cycle table holds, and forbidden transitions do not happen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from koord.api.koordinator.scheduling import Reservation, ReservationSpec, ReservationStatus
from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.pod import Container, PodSpec, PodTemplateSpec, ResourceRequirements
from koord.scheduler.plugins.reservation import lifecycle
from koord.scheduler.plugins.reservation.lifecycle import (
    CurrentOwner,
    DeleteReservation,
    InvalidTransition,
    LifecycleEffect,
    RequeueReservationAt,
    ReservationNotPlaced,
    ReservationObserved,
    ReservationPlaced,
    WriteReservationStatus,
    expiry,
    step,
)
from tests.scheduler.plugins.reservation.reservation_builders import amounts

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TEMPLATE = PodTemplateSpec(
    spec=PodSpec(
        containers=(Container(name="c", resources=ResourceRequirements(requests={"cpu": "4", "memory": "4Gi"})),)
    )
)
OWNER = CurrentOwner(namespace="ns", name="p", uid="u", requests=amounts(2, 1) | {"ephemeral-storage": 5})


def made(phase: str = "Available", annotations: dict[str, str] | None = None, **other: Any) -> Reservation:
    spec = {"template": TEMPLATE, "ttl": "24h0m0s", "allocate_once": True}
    status: dict[str, Any] = {"phase": phase}
    if phase == "Available":
        status |= {
            "node_name": "n",
            "allocatable": {"cpu": "4", "memory": "4Gi"},
            "conditions": lifecycle.scheduled_conditions(START),
        }
    for name, value in other.items():
        (status if name in ReservationStatus.__struct_fields__ else spec)[name] = value
    meta = ObjectMeta(name="r", uid="uid-r", creation_timestamp=START, annotations=annotations or {})
    return Reservation(metadata=meta, spec=ReservationSpec(**spec), status=ReservationStatus(**status))  # type: ignore[arg-type]


def look(*owners: CurrentOwner, node: bool | None = True, known: bool = True, **other: Any) -> ReservationObserved:
    return ReservationObserved(node_exists=node, owners=owners if known else None, **other)


def written(effects: tuple[LifecycleEffect, ...]) -> ReservationStatus:
    found = [effect for effect in effects if isinstance(effect, WriteReservationStatus)]
    assert len(found) == 1
    return found[0].status


def shown(status: ReservationStatus) -> dict[str, str]:
    return {c.type: f"{c.status}/{c.reason}" for c in status.conditions}


def test_it_gets_its_node() -> None:
    before = made("Pending", conditions=lifecycle.unschedulable_conditions((), "no room", START))
    status = written(step(before, ReservationPlaced("n"), START + HOUR))
    assert (status.phase, status.node_name, status.allocatable) == ("Available", "n", {"cpu": "4", "memory": "4Gi"})
    assert shown(status) == {"Scheduled": "True/Scheduled", "Ready": "True/Available"}


def test_it_is_resized_on_the_way() -> None:
    key = "scheduling.koordinator.sh/reservation-resize-allocatable"
    status = written(step(made("Pending", {key: '{"resources":{"cpu":"3"}}'}), ReservationPlaced("n"), START))
    assert status.allocatable == {"cpu": "3", "memory": "4Gi"}


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_what_ended_is_not_placed(phase: str) -> None:
    assert step(made(phase), ReservationPlaced("n"), START) == (InvalidTransition("reservation is not active"),)
    assert step(made(phase), ReservationNotPlaced("no room"), START) == ()


def test_it_finds_no_node() -> None:
    status = written(step(made("Pending"), ReservationNotPlaced("no room"), START))
    assert (status.phase, shown(status)) == ("Pending", {"Scheduled": "False/Unschedulable"})
    again = written(
        step(made("Pending", conditions=status.conditions), ReservationNotPlaced("still none"), START + HOUR)
    )
    assert again.conditions[0].message == "still none"
    assert (again.conditions[0].last_transition_time, again.conditions[0].last_probe_time) == (START, START + HOUR)


def test_a_failed_attempt_says_nothing_against_one_that_has_its_node() -> None:
    status = written(step(made(), ReservationNotPlaced("no room"), START + HOUR))
    assert shown(status)["Scheduled"] == "True/Scheduled"
    assert status.conditions[0].message == ""


def test_while_it_waits_its_time_does_not_run() -> None:
    assert step(made("Pending"), look(), START + 100 * HOUR) == ()


@pytest.mark.parametrize(
    ("other", "ends"),
    [
        pytest.param({}, START + 24 * HOUR, id="time-to-live"),
        pytest.param({"expires": START + HOUR}, START + HOUR, id="the-earlier-of-both"),
        pytest.param({"ttl": None, "expires": START + 99 * HOUR}, START + 99 * HOUR, id="a-moment"),
        pytest.param({"ttl": "0s", "expires": START + HOUR}, None, id="zero-is-never"),
        pytest.param({"ttl": None}, None, id="nothing-stated"),
    ],
)
def test_expiry(other: dict[str, Any], ends: datetime | None) -> None:
    reservation = made(**other)
    assert expiry(reservation) == ends
    if ends is None:
        assert step(reservation, look(), START + 1000 * HOUR) == ()
        return
    assert step(reservation, look(), ends - timedelta(seconds=1)) == (RequeueReservationAt(ends),)
    status = written(step(reservation, look(), ends))
    assert (status.phase, shown(status)["Ready"]) == ("Failed", "False/Expired")


def test_its_node_goes() -> None:
    status = written(step(made(), look(OWNER, node=False), START))
    assert (status.phase, shown(status)["Ready"]) == ("Failed", "False/Expired")


def test_nothing_is_concluded_from_what_is_not_known_yet() -> None:
    held = written(step(made(allocate_once=False), look(OWNER), START))
    reservation = made(allocate_once=False, allocated=held.allocated, current_owners=held.current_owners)
    assert step(reservation, look(node=None, known=False), START) == (RequeueReservationAt(START + 24 * HOUR),)
    assert step(made(), look(), START) == (RequeueReservationAt(START + 24 * HOUR),)


def test_once_it_is_taken_it_is_done() -> None:
    owners = [CurrentOwner(namespace="ns", name=f"p{i}", uid=f"u{i}", requests=amounts(1, 1)) for i in (3, 1, 2, 0)]
    status = written(step(made(), look(*owners), START + 30 * HOUR))  # even if that is seen late
    assert (status.phase, shown(status)["Ready"]) == ("Succeeded", "False/Succeeded")
    assert [owner.uid for owner in status.current_owners] == ["u0", "u1", "u2", "u3"]
    assert status.allocated == {"cpu": "4", "memory": "4Gi"}


def test_shared_ones_follow_their_owners() -> None:
    status = written(step(made(allocate_once=False), look(OWNER), START))
    assert (status.phase, status.allocated) == ("Available", {"cpu": "2", "memory": "1Gi"})
    same = made(allocate_once=False, allocated=status.allocated, current_owners=status.current_owners)
    assert step(same, look(OWNER), START) == (RequeueReservationAt(START + 24 * HOUR),)
    left = written(step(same, look(), START))
    assert (left.phase, left.allocated, left.current_owners) == ("Available", {}, ())


@pytest.mark.parametrize(
    ("phase", "reason"),
    [("Failed", lifecycle.EXPIRED_REASON), ("Succeeded", lifecycle.SUCCEEDED_REASON)],
)
def test_what_ended_long_ago_is_deleted(phase: str, reason: str) -> None:
    ended = made(
        phase,
        conditions=lifecycle.ended_conditions(lifecycle.scheduled_conditions(START), reason, START + HOUR),
        node_name="n",
    )
    assert step(ended, look(), START + 24 * HOUR) == (RequeueReservationAt(START + 25 * HOUR),)
    assert isinstance(step(ended, look(), START + 25 * HOUR)[0], DeleteReservation)
    assert isinstance(step(ended, look(node=False), START + 2 * HOUR)[0], DeleteReservation)
    assert step(ended, look(node=False, keep_ended=None), START + 99 * HOUR) == ()


def test_what_failed_otherwise_stays() -> None:
    assert (
        step(made("Failed", conditions=lifecycle.scheduled_conditions(START)), look(node=False), START + 999 * HOUR)
        == ()
    )
