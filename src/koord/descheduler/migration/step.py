"""The next step of one job, from what is known of it. Pure: what is to be done comes back as data.

    phase      fact                                         ->  next
    ---------  -------------------------------------------  -------------------------------------------------------
    any        paused, or ended                                 nothing
    any alive  older than its ttl                               drop the reservation; Failed/Timeout
    Pending    pod reference incomplete                         Failed/InvalidPodRef
               no such pod                                      Failed/MissingPod
               else                                             Running, with the pod's uid
    Running    evicts directly                                  evict; gone: Succeeded
               no reservation yet                               create it
               reservation is gone                              Failed/MissingReservation
               reservation cannot be scheduled (yet)            ReservationScheduled=False, wait
               reservation expired / failed                     Failed/ReservationExpired, Failed/Unschedulable
               reservation on the pod's own node                Failed/ForbiddenMigratePod
               taken by somebody else before the eviction       Failed/ForbiddenMigratePod
               pod had no node itself                           wait until it has: Succeeded
               place is ready                                   evict; gone: wait for its successor
               successor lives in the reservation               ReservationBound=True; wait until it is ready
               successor is ready                               Succeeded

No pod is evicted before the place of its successor is certain, and every wait ends with the job's ttl.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from koord.api.annotations import evict_reason
from koord.api.koord_scheduling import (
    EVICT_DIRECTLY,
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    PodMigrationJob,
    PodMigrationJobStatus,
    Reservation,
)
from koord.api.part import ObjectReference
from koord.descheduler.migration.moves import ALIVE, is_late
from koord.descheduler.migration.protection import EVICT
from koord.descheduler.migration.status import (
    EVICTION,
    FALSE,
    POD_BOUND,
    POD_READY,
    POD_SCHEDULED,
    RESERVATION_BOUND,
    RESERVATION_CREATED,
    RESERVATION_SCHEDULED,
    TRUE,
    condition,
    failed,
    is_true,
    succeeded,
    with_condition,
)
from koord.descheduler.migration.template import CREATED_BY
from koord.descheduler.snapshot import is_available
from koord.descheduler.wire import Pod
from koord.values import duration

WAIT_S = 3.0


# Actions ---------------------------------------------------------------------------------------------------------


class CreateReservation(msgspec.Struct, frozen=True):
    """Create the reservation and set its name in the job."""


class TidyReservation(msgspec.Struct, frozen=True):
    """Rewrite the ttl in Kubernetes' duration format, as upstream does with a reservation that a job names."""

    name: str
    ttl: str


class DropReservation(msgspec.Struct, frozen=True):
    name: str


class EvictPod(msgspec.Struct, frozen=True):
    pod: Pod


class NamePod(msgspec.Struct, frozen=True):
    """Write the pod's uid into the job's reference, so that no other pod of that name is meant."""

    uid: str


Action: TypeAlias = CreateReservation | TidyReservation | DropReservation | EvictPod | NamePod


class Told(msgspec.Struct, frozen=True):
    """An event to record on the job."""

    type: str
    reason: str
    message: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The next step: first the action, then, if it succeeds, the status. `requeue_after_s` is when to look again."""

    action: Action | None = None
    status: PodMigrationJobStatus | None = None  # None: as it is
    wait_s: float | None = None
    told: Told | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a job now. `rate_limit_reason` says why evictions of the pod's workload must wait, if
    so.
    """

    now_s: float
    default_mode: str
    pod: Pod | None = None
    reservation: Reservation | None = None
    successor: Pod | None = None  # the pod that lives in the reservation
    limited: str = ""


NOTHING = Step()


def step(job: PodMigrationJob, facts: Facts) -> Step:
    status = job.status
    if job.spec.paused or status.phase not in ALIVE:
        return NOTHING
    if is_late(job, facts.now_s):
        ref = _reservation_name(job)
        text = "Abort job caused by timeout"
        return _failure(status, "Timeout", text, action=DropReservation(ref) if ref else None)
    if status.phase in ("", PENDING) or job.spec.pod_ref is None or not job.spec.pod_ref.uid:
        return _begin(job, facts)
    waits = _limited(job, facts)
    if waits is not None:
        return waits
    if (job.spec.mode or facts.default_mode) == EVICT_DIRECTLY:
        return _evict(job, facts) or Step(
            status=succeeded(status, f'Pod "{_pod_name(job)}" has been evicted'),
            told=Told("Normal", "Complete", f'Pod "{_pod_name(job)}" has been evicted'),
        )
    return _reserve(job, facts)


# Beginning -------------------------------------------------------------------------------------------------------


def _begin(job: PodMigrationJob, facts: Facts) -> Step:
    ref, status = job.spec.pod_ref, job.status
    if ref is None or not ref.namespace or not ref.name:
        return _failure(status, "InvalidPodRef", "Abort job caused by invalid PodRef")
    if facts.pod is None or _is_another(job, facts.pod):
        return _missing_pod(job)
    running = msgspec.structs.replace(status, phase=RUNNING)
    return Step(action=None if ref.uid else NamePod(facts.pod.metadata.uid), status=running)


def _limited(job: PodMigrationJob, facts: Facts) -> Step | None:
    """Wait for the rate limit, before the eviction only: its own eviction must not hold a job up afterwards."""
    begun = condition(job.status, EVICTION) is not None
    if not facts.limited or begun or EVICT in job.metadata.annotations:
        return None
    return Step(wait_s=WAIT_S)


# Reserving -------------------------------------------------------------------------------------------------------


def _reserve(job: PodMigrationJob, facts: Facts) -> Step:
    status, name, reservation = job.status, _reservation_name(job), facts.reservation
    if not name:
        if facts.pod is None or _is_another(job, facts.pod):
            return _missing_pod(job)
        return Step(action=CreateReservation())
    if reservation is None:
        return _failure(status, "MissingReservation", f'Abort job caused by missing Reservation "{name}"')
    ttl = reservation.spec.ttl
    theirs = CREATED_BY not in reservation.metadata.labels and not is_true(status, RESERVATION_CREATED)
    if theirs and ttl and (tidy := duration.text(duration.parse(ttl))) != ttl:
        return Step(action=TidyReservation(name, tidy))
    created = with_condition(status, facts.now_s, RESERVATION_CREATED, TRUE)
    if not is_true(status, RESERVATION_CREATED):
        text = f'Successfully create Reservation "{name}"'
        return Step(status=created, told=Told("Normal", RESERVATION_CREATED, text))
    return _scheduled(job, facts, reservation) or _move(job, facts, reservation)


def _scheduled(job: PodMigrationJob, facts: Facts, reservation: Reservation) -> Step | None:
    """Return the step while the reservation is not scheduled to a suitable node; None once it is."""
    status, where = job.status, reservation.status
    if is_true(status, RESERVATION_SCHEDULED):
        return None
    refused = next((c for c in where.conditions if c.type == "Scheduled" and c.status == FALSE), None)
    if refused is not None:
        told = with_condition(status, facts.now_s, RESERVATION_SCHEDULED, FALSE, "Unschedulable", refused.message)
        if told is not status:
            return Step(status=told, told=Told("Warning", "Unschedulable", refused.message))
    if where.phase in ("", PENDING):
        return Step(wait_s=WAIT_S)
    expired = any(c.type == "Ready" and c.reason == "Expired" for c in where.conditions)
    if where.phase == FAILED and expired:
        return _failure(status, "ReservationExpired", "Reservation expired")
    if not where.node_name or where.phase == FAILED:
        return _failure(status, "Unschedulable", refused.message if refused is not None else "Reservation failed")
    if facts.pod is not None and facts.pod.spec.node_name == where.node_name:
        text = f'Reservation is scheduled to the node "{where.node_name}" that the Pod is on'
        return _failure(status, "ForbiddenMigratePod", text)
    placed = msgspec.structs.replace(status, node_name=where.node_name)
    text = f'Assigned Reservation "{reservation.metadata.name}" to node "{where.node_name}"'
    return Step(
        status=with_condition(placed, facts.now_s, RESERVATION_SCHEDULED, TRUE),
        told=Told("Normal", RESERVATION_SCHEDULED, text),
    )


# Moving ----------------------------------------------------------------------------------------------------------


def _move(job: PodMigrationJob, facts: Facts, reservation: Reservation) -> Step:
    owners = reservation.spec.owners
    if any(o.object is not None and o.controller is None and o.label_selector is None for o in owners):
        return _await_pending(job, facts, reservation)
    return _evict(job, facts, reservation) or _await_successor(job, facts, reservation)


def _evict(job: PodMigrationJob, facts: Facts, reservation: Reservation | None = None) -> Step | None:
    """Return the step while the pod is not gone; None once it is."""
    status, pod = job.status, facts.pod
    if is_true(status, EVICTION):
        return None
    begun = condition(status, EVICTION)
    if pod is None or _is_another(job, pod):
        if begun is None:
            return _missing_pod(job)
        return Step(
            status=with_condition(status, facts.now_s, EVICTION, TRUE, "EvictComplete"),
            told=Told("Normal", "EvictComplete", f'Pod "{_pod_name(job)}" has been evicted'),
        )
    if begun is not None and begun.reason == "Evicting":
        return Step(wait_s=WAIT_S)
    if reservation is not None and _is_taken(reservation):
        return _failure(status, "ForbiddenMigratePod", "Reservation is already bound by another Pod")
    if reservation is not None and reservation.status.phase == FAILED:
        return _failure(status, "ReservationExpired", "Reservation expired")
    why = evict_reason.parse(job.metadata.annotations)
    text = f'Pod "{_pod_name(job)}" evicted from node "{pod.spec.node_name}" by the reason "{why}"'
    # One that is going already, perhaps because an earlier process of ours saw to it, is not asked again.
    going = pod.metadata.deletion_timestamp is not None
    return Step(
        action=None if going else EvictPod(pod),
        status=with_condition(status, facts.now_s, EVICTION, FALSE, "Evicting", text),
        wait_s=WAIT_S,
        told=Told("Normal", "Evicting", text),
    )


def _await_successor(job: PodMigrationJob, facts: Facts, reservation: Reservation) -> Step:
    status, owners = job.status, reservation.status.current_owners
    if not owners:
        waiting = with_condition(status, facts.now_s, POD_BOUND, FALSE, "WaitForPodBindReservation")
        return Step(status=waiting if waiting is not status else None, wait_s=WAIT_S)
    new = owners[0]
    if not is_true(status, RESERVATION_BOUND):
        named = msgspec.structs.replace(
            status, pod_ref=ObjectReference(namespace=new.namespace, name=new.name, uid=new.uid)
        )
        return Step(status=with_condition(named, facts.now_s, RESERVATION_BOUND, TRUE))
    if not is_true(status, POD_READY):
        if facts.successor is not None and not is_available(facts.successor):
            waiting = with_condition(status, facts.now_s, POD_READY, FALSE, "WaitForBoundPodReady")
            return Step(status=waiting if waiting is not status else None, wait_s=WAIT_S)
        return Step(status=with_condition(status, facts.now_s, POD_READY, TRUE))
    text = f'Bind Pod "{new.namespace}/{new.name}" in Reservation "{reservation.metadata.name}"'
    done = with_condition(status, facts.now_s, POD_BOUND, TRUE, "", text)
    return Step(status=succeeded(done, text), told=Told("Normal", "Complete", text))


def _await_pending(job: PodMigrationJob, facts: Facts, reservation: Reservation) -> Step:
    """Wait until the pending pod is scheduled: it had no node, so nothing is evicted."""
    status, pod = job.status, facts.pod
    if pod is None or _is_another(job, pod):
        return _missing_pod(job)
    if any(c.type == "PodScheduled" and c.status == TRUE for c in pod.status.conditions):
        text = f'Assign Pod "{_pod_name(job)}" to node "{pod.spec.node_name}"'
        done = with_condition(status, facts.now_s, POD_SCHEDULED, TRUE)
        return Step(status=succeeded(done, text), told=Told("Normal", "Complete", text))
    taken = [owner for owner in reservation.status.current_owners if owner.uid != pod.metadata.uid]
    if reservation.status.phase == SUCCEEDED and taken:
        return _failure(status, "ForbiddenMigratePod", "Reservation is already bound by another Pod")
    waiting = with_condition(status, facts.now_s, POD_SCHEDULED, FALSE, "Unschedulable")
    return Step(status=waiting if waiting is not status else None, wait_s=WAIT_S)


# Shared parts ----------------------------------------------------------------------------------------------------


def _pod_name(job: PodMigrationJob) -> str:
    ref = job.spec.pod_ref
    return "" if ref is None else f"{ref.namespace}/{ref.name}"


def _is_another(job: PodMigrationJob, pod: Pod) -> bool:
    """Return whether the pod is a newer one of the same name than the one that the job refers to."""
    ref = job.spec.pod_ref
    return ref is not None and ref.uid not in ("", pod.metadata.uid)


def _is_taken(reservation: Reservation) -> bool:
    once = reservation.spec.allocate_once is not False
    return reservation.status.phase == SUCCEEDED or (once and bool(reservation.status.current_owners))


def _reservation_name(job: PodMigrationJob) -> str:
    options = job.spec.reservation_options
    ref = options.reservation_ref if options is not None else None
    return ref.name if ref is not None else ""


def _missing_pod(job: PodMigrationJob) -> Step:
    return _failure(job.status, "MissingPod", f'Abort job caused by missing Pod "{_pod_name(job)}"')


def _failure(status: PodMigrationJobStatus, reason: str, message: str, action: Action | None = None) -> Step:
    return Step(action=action, status=failed(status, reason, message), told=Told("Warning", reason, message))
