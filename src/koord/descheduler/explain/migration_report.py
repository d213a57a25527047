"""Reports on one migration: who requested it, from where to where, how far it is and what it waits for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from koord.api.koordinator.protocol import A_EVICT_REASON, A_EVICT_TRIGGER
from koord.api.koordinator.scheduling import RESERVATION_FIRST, SUCCEEDED, PodMigrationJob, Reservation
from koord.api.kubernetes.pod import Pod
from koord.descheduler.migration.job import (
    BOUND_POD_READY,
    EVICTION,
    FALSE,
    RESERVATION_BOUND,
    RESERVATION_SCHEDULED,
    find_condition,
    has_passed_arbitration,
    is_active,
    is_condition_true,
    reservation_name,
)

REQUESTED_BY_PERSON = "a person"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class MigrationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report on one job. `blocked` is empty for a job that ended; `source` is empty once its pod is gone."""

    name: str
    pod: str
    phase: str
    mode: str
    asked_by: str
    reason: str = ""
    source: str = ""
    target: str = ""
    reservation: str = ""
    new_pod: str = ""
    paused: bool = False
    created: datetime | None = None
    ttl: str = ""
    ended: str = ""  # how, once it has
    blocked: str = ""


class MigrationObstacles(msgspec.Struct, frozen=True, kw_only=True):
    """The obstacles that only the running controller knows."""

    waits: str = ""  # what arbitration holds against it
    limited: str = ""  # what holds up its eviction
    forbidden: str = ""  # why its pod may not be moved at all


NO_OBSTACLES = MigrationObstacles()


def report_migration(
    job: PodMigrationJob,
    pod: Pod | None,
    reservation: Reservation | None = None,
    known: MigrationObstacles = NO_OBSTACLES,
) -> MigrationReport:
    ref, status, annotations = job.spec.pod_ref, job.status, job.metadata.annotations
    same = pod is not None and ref is not None and ref.uid in ("", pod.metadata.uid)
    alive = is_active(job)
    new = status.pod_ref
    new_pod = f"{new.namespace}/{new.name}" if new is not None else ""
    placed = reservation.status.node_name if reservation is not None else ""
    return MigrationReport(
        name=job.metadata.name,
        pod=f"{ref.namespace}/{ref.name}" if ref is not None else "",
        phase=status.phase or "Pending",
        mode=job.spec.mode or RESERVATION_FIRST,
        asked_by=annotations.get(A_EVICT_TRIGGER) or REQUESTED_BY_PERSON,
        reason=annotations.get(A_EVICT_REASON, ""),
        source=pod.spec.node_name if pod is not None and same else "",
        target=status.node_name or placed or _requested_node(job),
        reservation=reservation_name(job),
        new_pod=new_pod,
        paused=job.spec.paused,
        created=job.metadata.creation_timestamp,
        ttl=job.spec.ttl or "",
        ended="" if alive else _describe_end(job, new_pod, known.forbidden),
        blocked=_describe_wait(job, reservation, known) if alive else "",
    )


def _requested_node(job: PodMigrationJob) -> str:
    """Return the one node that the job's own template allows, if it names one."""
    options = job.spec.reservation_options
    at: Any = options.template if options is not None else None
    for part in ("spec", "template", "spec", "affinity", "nodeAffinity", _REQUIRED):
        at = at.get(part) if isinstance(at, dict) else None
    terms = at.get("nodeSelectorTerms") if isinstance(at, dict) else None
    names = {
        tuple(field.get("values") or ())
        for term in terms or ()
        for field in term.get("matchFields") or ()
        if field.get("operator") == "In"
    }
    return next(iter(names))[0] if len(names) == 1 and len(next(iter(names))) == 1 else ""


def _describe_end(job: PodMigrationJob, new_pod: str, forbidden: str) -> str:
    status = job.status
    if status.phase == SUCCEEDED:
        return f"done: {new_pod} lives there" if new_pod else f"done: {status.message}"
    if status.reason == "ForbiddenMigratePod" and forbidden:
        return f"{status.reason}: {forbidden}"
    return ": ".join(part for part in (status.reason, status.message) if part)


def _describe_wait(job: PodMigrationJob, reservation: Reservation | None, known: MigrationObstacles) -> str:
    status = job.status
    if job.spec.paused:
        return "approval: it is paused"
    if known.waits:
        return f"its turn: {known.waits}"
    if not has_passed_arbitration(job):
        return "arbitration"
    if known.limited and find_condition(status, EVICTION) is None:
        return f"its turn: {known.limited}"
    placed = find_condition(status, RESERVATION_SCHEDULED)
    if placed is not None and placed.status == FALSE:
        return f"a node for its reservation: {placed.message or placed.reason}"
    leaving = find_condition(status, EVICTION)
    if leaving is not None and leaving.status == FALSE:
        return "the pod to be gone: it was asked to leave"
    if is_condition_true(status, RESERVATION_BOUND) and not is_condition_true(status, BOUND_POD_READY):
        return "the new pod to be ready"
    if is_condition_true(status, EVICTION):
        return "a new pod in its reservation"
    if reservation is not None and not reservation.status.node_name:
        return "a node for its reservation"
    return "its next step"
