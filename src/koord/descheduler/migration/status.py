"""PodMigrationJobs: their phases and conditions, and how a status changes. The last condition also sets the
summary.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from koord.api.koord_scheduling import FAILED, SUCCEEDED, PodMigrationJobCondition, PodMigrationJobStatus

TRUE, FALSE = "True", "False"

RESERVATION_CREATED = "ReservationCreated"
RESERVATION_SCHEDULED = "ReservationScheduled"
RESERVATION_BOUND = "ReservationBound"
EVICTION = "Eviction"
POD_SCHEDULED = "PodScheduled"
POD_BOUND = "PodBoundReservation"
POD_READY = "BoundPodReady"

COMPLETE = "Complete"


def condition(status: PodMigrationJobStatus, kind: str) -> PodMigrationJobCondition | None:
    return next((c for c in status.conditions if c.type == kind), None)


def is_true(status: PodMigrationJobStatus, kind: str) -> bool:
    found = condition(status, kind)
    return found is not None and found.status == TRUE


def with_condition(
    status: PodMigrationJobStatus, now_s: float, kind: str, value: str, reason: str = "", message: str = ""
) -> PodMigrationJobStatus:
    """Return the status with the condition set; the same object when nothing changes, so that nothing is written."""
    old = condition(status, kind)
    if old is not None and (old.status, old.reason, old.message) == (value, reason, message):
        return status
    now = datetime.fromtimestamp(int(now_s), UTC)
    kept = old is not None and old.status == value
    made = PodMigrationJobCondition(
        type=kind,
        status=value,
        reason=reason,
        message=message,
        last_probe_time=now,
        last_transition_time=old.last_transition_time if old is not None and kept else now,
    )
    conditions = tuple(made if c.type == kind else c for c in status.conditions)
    if old is None:
        conditions = (*conditions, made)
    return msgspec.structs.replace(status, conditions=conditions, status=kind, reason=reason, message=message)


def failed(status: PodMigrationJobStatus, reason: str, message: str) -> PodMigrationJobStatus:
    return msgspec.structs.replace(status, phase=FAILED, reason=reason, message=message)


def succeeded(status: PodMigrationJobStatus, message: str) -> PodMigrationJobStatus:
    return msgspec.structs.replace(status, phase=SUCCEEDED, status=COMPLETE, reason="", message=message)
