"""How a Reservation lives and ends: its conditions Scheduled and Ready, its transitions, and the status patch.
Applying the effects is left to others.

| from                | fact                                | to                                         |
|---------------------|-------------------------------------|--------------------------------------------|
| Pending             | placed                              | Available with node and allocatable        |
| Pending             | not placed                          | Pending, Scheduled=False; ttl not counted  |
| Available           | observed: expired, or node gone     | Failed, Ready=False/Expired                |
| Available, once     | observed: it has an owner           | Succeeded, Ready=False/Succeeded           |
| Available, not once | observed: owners changed            | Available, with its owners                 |
| Succeeded, Expired  | observed: long ago, or node gone    | deleted                                    |
| Failed otherwise    | anything                            | stays, for somebody to look at             |
"""

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
    """Return the conditions of a reservation that just got its node; earlier conditions are dropped."""
    return (
        _made(SCHEDULED, TRUE, SCHEDULED, now),
        _made(READY, TRUE, AVAILABLE, now),
    )


def not_placed(conditions: Conditions, message: str, now: datetime) -> Conditions:
    """Record a failed attempt; it does not change a reservation that has its node already."""
    known = find(conditions, SCHEDULED)
    if known is None:
        return (*conditions, _made(SCHEDULED, FALSE, UNSCHEDULABLE, now, message))
    if known.status == TRUE:
        changed = msgspec.structs.replace(known, last_probe_time=now)
    else:
        changed = msgspec.structs.replace(known, reason=UNSCHEDULABLE, message=message, last_probe_time=now)
    return tuple(changed if condition is known else condition for condition in conditions)


def not_ready(conditions: Conditions, reason: str, now: datetime) -> Conditions:
    """Record the end; `reason` says how. The transition time stays that of the first time that it was not ready."""
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
