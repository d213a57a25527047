"""PodMigrationJobs: their phases and conditions, and how a status changes. The last condition also sets the summary."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from koord.api.koordinator.protocol import A_PASSED_ARBITRATION
from koord.api.koordinator.scheduling import (
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    PodMigrationJob,
    PodMigrationJobCondition,
    PodMigrationJobStatus,
)
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.values import duration

ACTIVE_PHASES = ("", PENDING, RUNNING)


def is_active(job: PodMigrationJob) -> bool:
    return job.status.phase in ACTIVE_PHASES


def is_past_ttl(job: PodMigrationJob, now_s: float) -> bool:
    ttl_s = duration.parse_seconds(job.spec.ttl) if job.spec.ttl else 0.0
    created = job.metadata.creation_timestamp
    return ttl_s > 0 and created is not None and now_s - created.timestamp() >= ttl_s


def has_passed_arbitration(job: PodMigrationJob) -> bool:
    return job.metadata.annotations.get(A_PASSED_ARBITRATION) == "true"


def counts_in_arbitration(job: PodMigrationJob) -> bool:
    """Return whether a job counts against others: running or passed ones do, waiting ones do not."""
    return job.status.phase == RUNNING or (is_active(job) and has_passed_arbitration(job))


def pod_of_job(job: PodMigrationJob, snapshot: ClusterSnapshot) -> Pod | None:
    """Return the pod that the job refers to; a newer pod of the same name is not it."""
    ref = job.spec.pod_ref
    pod = None if ref is None else snapshot.by_name.get((ref.namespace, ref.name))
    return pod if pod is not None and ref is not None and ref.uid in ("", pod.metadata.uid) else None


def reservation_name(job: PodMigrationJob) -> str:
    """Return the name of the reservation that the job refers to; empty without one."""
    options = job.spec.reservation_options
    ref = options.reservation_ref if options is not None else None
    return ref.name if ref is not None else ""


TRUE, FALSE = "True", "False"

RESERVATION_CREATED = "ReservationCreated"
RESERVATION_SCHEDULED = "ReservationScheduled"
RESERVATION_BOUND = "ReservationBound"
EVICTION = "Eviction"
POD_SCHEDULED = "PodScheduled"
POD_BOUND_RESERVATION = "PodBoundReservation"
BOUND_POD_READY = "BoundPodReady"

COMPLETE = "Complete"


def find_condition(status: PodMigrationJobStatus, kind: str) -> PodMigrationJobCondition | None:
    return next((c for c in status.conditions if c.type == kind), None)


def is_condition_true(status: PodMigrationJobStatus, kind: str) -> bool:
    found = find_condition(status, kind)
    return found is not None and found.status == TRUE


def with_condition(
    status: PodMigrationJobStatus, now_s: float, kind: str, value: str, reason: str = "", message: str = ""
) -> PodMigrationJobStatus:
    """Return the status with the condition set; the same object when nothing changes, so that nothing is written."""
    old = find_condition(status, kind)
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


def failed_status(status: PodMigrationJobStatus, reason: str, message: str) -> PodMigrationJobStatus:
    return msgspec.structs.replace(status, phase=FAILED, reason=reason, message=message)


def succeeded_status(status: PodMigrationJobStatus, message: str) -> PodMigrationJobStatus:
    return msgspec.structs.replace(status, phase=SUCCEEDED, status=COMPLETE, reason="", message=message)
