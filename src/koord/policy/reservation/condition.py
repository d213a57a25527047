"""The two conditions of a Reservation, Scheduled and Ready, and how they change."""

from __future__ import annotations

from datetime import datetime

import msgspec

from koord.api.koord_scheduling import ReservationCondition

SCHEDULED = "Scheduled"
READY = "Ready"
TRUE = "True"
FALSE = "False"

# Reasons
UNSCHEDULABLE = "Unschedulable"
AVAILABLE = "Available"
SUCCEEDED = "Succeeded"
EXPIRED = "Expired"

Conditions = tuple[ReservationCondition, ...]


def find(conditions: Conditions, kind: str) -> ReservationCondition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def placed(now: datetime) -> Conditions:
    """Of a reservation that just got its node; what was said before is forgotten."""
    return (
        _made(SCHEDULED, TRUE, SCHEDULED, now),
        _made(READY, TRUE, AVAILABLE, now),
    )


def not_placed(conditions: Conditions, message: str, now: datetime) -> Conditions:
    """A failed attempt says nothing against a reservation that has its node already."""
    known = find(conditions, SCHEDULED)
    if known is None:
        return (*conditions, _made(SCHEDULED, FALSE, UNSCHEDULABLE, now, message))
    if known.status == TRUE:
        changed = msgspec.structs.replace(known, last_probe_time=now)
    else:
        changed = msgspec.structs.replace(known, reason=UNSCHEDULABLE, message=message, last_probe_time=now)
    return tuple(changed if condition is known else condition for condition in conditions)


def not_ready(conditions: Conditions, reason: str, now: datetime) -> Conditions:
    """It ended; `reason` says how. The time of transition stays with the first time that it was not ready."""
    known = find(conditions, READY)
    if known is None:
        return (*conditions, _made(READY, FALSE, reason, now))
    since = known.last_transition_time if known.status == FALSE and known.reason == reason else now
    changed = msgspec.structs.replace(
        known, status=FALSE, reason=reason, last_probe_time=now, last_transition_time=since
    )
    return tuple(changed if condition is known else condition for condition in conditions)


def _made(kind: str, status: str, reason: str, now: datetime, message: str = "") -> ReservationCondition:
    return ReservationCondition(
        type=kind, status=status, reason=reason, message=message, last_probe_time=now, last_transition_time=now
    )
