"""The next step of one job, from what is known of it. Pure: what is to be done comes back as data.

    phase      fact                                         ->  next
    ---------  -------------------------------------------  -------------------------------------------------------
    any        paused, or ended                                 nothing
    any alive  older than its ttl                               drop the reservation; Failed/Timeout
    any alive  ttl, mode or template not understood             Failed/InvalidSpec
    Pending    pod reference incomplete                         Failed/InvalidPodRef
               no such pod                                      Failed/MissingPod
               else                                             Running, with the pod's uid
    Running    evicts directly                                  evict; gone: Succeeded
               no reservation yet                               create it
               reservation is gone                              Failed/MissingReservation
               reservation cannot be scheduled (yet)            ReservationScheduled=False, wait
               reservation expired / failed                     Failed/ReservationExpired, Failed/Unschedulable
               reservation on the pod's own node                Failed/ForbiddenMigratePod
               reservation cannot take the pod's successor      Failed/ForbiddenMigratePod
               taken by somebody else before the eviction       Failed/ForbiddenMigratePod
               the server can never accept the eviction         drop the reservation; Failed/FailedEvict
               delete options ask for a dry run                 drop the reservation; Succeeded or Failed/DryRun
               pod had no node itself                           wait until it has: Succeeded
               place is ready                                   evict; gone: wait for its successor
               pod gone, and the eviction's answer is not known as if it were
               successor lives in the reservation               ReservationBound=True; wait until it is ready
               successor is ready                               Succeeded

No pod is evicted before the place of its successor is certain, and every wait ends with the job's ttl. A process may
die between an eviction and the status that says so; the next one takes a pod that is gone for one that was evicted.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from koord.api.annotations import pod_codecs
from koord.api.koordinator.protocol import L_RESERVATION_ORDER
from koord.api.koordinator.scheduling import (
    EVICT_DIRECTLY,
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    PodMigrationJob,
    PodMigrationJobCondition,
    PodMigrationJobStatus,
    Reservation,
)
from koord.api.kubernetes.meta import DeleteOptions
from koord.api.kubernetes.pod import Pod
from koord.api.model import ObjectReference
from koord.descheduler.framework.snapshot import is_available
from koord.descheduler.migration.job import (
    ACTIVE_PHASES,
    BOUND_POD_READY,
    EVICTION,
    FALSE,
    POD_BOUND_RESERVATION,
    POD_SCHEDULED,
    RESERVATION_BOUND,
    RESERVATION_CREATED,
    RESERVATION_SCHEDULED,
    TRUE,
    failed_status,
    find_condition,
    is_condition_true,
    is_past_ttl,
    normalized_duration,
    reservation_name,
    spec_error,
    succeeded_status,
    with_condition,
)
from koord.descheduler.migration.plugin import EVICT_ANNOTATION
from koord.descheduler.migration.reservation_fit import CREATED_BY_LABEL

RECHECK_S = 3.0
DRY_RUN, FAILED_EVICT = "DryRun", "FailedEvict"  # reasons of the Eviction condition, and of a job's end


# Actions ---------------------------------------------------------------------------------------------------------


class CreateReservation(msgspec.Struct, frozen=True):
    """Create the reservation and set its name in the job."""


class NormalizeReservationTtl(msgspec.Struct, frozen=True):
    """Rewrite the ttl in Kubernetes' duration format, as upstream does with a reservation that a job names."""

    name: str
    ttl: str
    uid: str = ""


class StampReservationOrder(msgspec.Struct, frozen=True):
    """Label the reservation that a job names, so that the scheduler prefers it to others that match."""

    name: str
    order_ms: int
    uid: str = ""


class DeleteJobReservation(msgspec.Struct, frozen=True):
    name: str


class EvictPod(msgspec.Struct, frozen=True):
    """Evict the pod with these options. With a dry run among them the server is asked, and the pod stays."""

    pod: Pod
    options: DeleteOptions | None = None


class SetPodUid(msgspec.Struct, frozen=True):
    """Write the pod's uid into the job's reference, so that no other pod of that name is meant."""

    uid: str


StepAction: TypeAlias = (
    CreateReservation | NormalizeReservationTtl | StampReservationOrder | DeleteJobReservation | EvictPod | SetPodUid
)


class JobEvent(msgspec.Struct, frozen=True):
    """An event to record on the job."""

    type: str
    reason: str
    message: str


class MigrationStep(msgspec.Struct, frozen=True, kw_only=True):
    """The next step: first the action, then, if it succeeds, the status. `requeue_after_s` is when to look again."""

    action: StepAction | None = None
    status: PodMigrationJobStatus | None = None  # None: as it is
    requeue_after_s: float | None = None
    event: JobEvent | None = None


class MigrationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """MigrationFacts holds what is known about a job now. `rate_limit_reason` says why evictions must wait, if so."""

    now_s: float
    default_mode: str
    pod: Pod | None = None
    reservation: Reservation | None = None
    reservation_misfit: str = ""  # why the pod's successor could not take it
    successor: Pod | None = None  # the pod that lives in the reservation
    default_delete_options: DeleteOptions | None = None  # of jobs that have none
    rate_limit_reason: str = ""
    # An eviction was sent and its answer lost, or an earlier process may have sent one before it died.
    may_have_been_evicted: bool = False


NO_STEP = MigrationStep()


def next_step(job: PodMigrationJob, facts: MigrationFacts) -> MigrationStep:
    status = job.status
    if job.spec.paused or status.phase not in ACTIVE_PHASES:
        return NO_STEP
    if is_past_ttl(job, facts.now_s):
        return _finish_late(job, facts) or _time_out(job)
    return _next_step_in_time(job, facts)


def _time_out(job: PodMigrationJob) -> MigrationStep:
    ref = reservation_name(job)
    release = DeleteJobReservation(ref) if ref else None
    return _fail(job.status, "Timeout", "Abort job caused by timeout", action=release)


def _finish_late(job: PodMigrationJob, facts: MigrationFacts) -> MigrationStep | None:
    """Return the step of a job whose pod has left and which has nothing to wait for: what is done is no failure."""
    if job.status.phase != RUNNING or not _has_left(job, facts):
        return None
    step = _next_step_in_time(job, facts)
    return step if step.action is None and step.requeue_after_s is None and step.status is not None else None


def _has_left(job: PodMigrationJob, facts: MigrationFacts) -> bool:
    """Return whether the pod is gone, and by this job's eviction as far as anybody can tell."""
    if facts.pod is not None and not _is_other_pod(job, facts.pod):
        return False
    options = _delete_options(job, facts)
    evicts = options is None or not options.is_dry_run
    return find_condition(job.status, EVICTION) is not None or (evicts and facts.may_have_been_evicted)


def _next_step_in_time(job: PodMigrationJob, facts: MigrationFacts) -> MigrationStep:
    status = job.status
    wrong = spec_error(job) if find_condition(status, EVICTION) is None else None
    if wrong is not None:
        return _fail(status, "InvalidSpec", f"Abort job caused by {wrong}")
    if status.phase in ("", PENDING) or job.spec.pod_ref is None or not job.spec.pod_ref.uid:
        return _begin(job, facts)
    waits = _await_rate_limit(job, facts)
    if waits is not None:
        return waits
    if (job.spec.mode or facts.default_mode) == EVICT_DIRECTLY:
        return _evict(job, facts) or MigrationStep(
            status=succeeded_status(status, f'Pod "{_pod_name(job)}" has been evicted'),
            event=JobEvent("Normal", "Complete", f'Pod "{_pod_name(job)}" has been evicted'),
        )
    return _await_reservation(job, facts)


# Beginning -------------------------------------------------------------------------------------------------------


def _begin(job: PodMigrationJob, facts: MigrationFacts) -> MigrationStep:
    ref, status = job.spec.pod_ref, job.status
    if ref is None or not ref.namespace or not ref.name:
        return _fail(status, "InvalidPodRef", "Abort job caused by invalid PodRef")
    if facts.pod is None or _is_other_pod(job, facts.pod):
        return _fail_missing_pod(job)
    running = msgspec.structs.replace(status, phase=RUNNING)
    return MigrationStep(action=None if ref.uid else SetPodUid(facts.pod.metadata.uid), status=running)


def _await_rate_limit(job: PodMigrationJob, facts: MigrationFacts) -> MigrationStep | None:
    """Wait for the rate limit, before the eviction only: its own eviction must not hold a job up afterwards."""
    begun = find_condition(job.status, EVICTION) is not None
    if not facts.rate_limit_reason or begun or EVICT_ANNOTATION in job.metadata.annotations:
        return None
    return MigrationStep(requeue_after_s=RECHECK_S)


# Reserving -------------------------------------------------------------------------------------------------------


def _await_reservation(job: PodMigrationJob, facts: MigrationFacts) -> MigrationStep:
    status, name, reservation = job.status, reservation_name(job), facts.reservation
    if not name:
        if facts.pod is None or _is_other_pod(job, facts.pod):
            return _fail_missing_pod(job)
        return MigrationStep(action=CreateReservation())
    if reservation is None:
        return _fail(status, "MissingReservation", f'Abort job caused by missing Reservation "{name}"')
    ttl = reservation.spec.ttl
    labels = reservation.metadata.labels
    begun = find_condition(status, EVICTION) is not None
    if facts.reservation_misfit and not begun:
        text = f'Reservation "{name}" cannot take Pod "{_pod_name(job)}": {facts.reservation_misfit}'
        return _fail(status, "ForbiddenMigratePod", text)
    theirs = CREATED_BY_LABEL not in labels and not is_condition_true(status, RESERVATION_CREATED)
    if theirs and ttl and (tidy := normalized_duration(ttl)) != ttl:
        return MigrationStep(action=NormalizeReservationTtl(name, tidy, reservation.metadata.uid))
    # Upstream's update loses the label where there is none yet, and its users see objects without any stay so.
    if theirs and labels and L_RESERVATION_ORDER not in labels:
        return MigrationStep(action=StampReservationOrder(name, int(facts.now_s * 1000), reservation.metadata.uid))
    created = with_condition(status, facts.now_s, RESERVATION_CREATED, TRUE)
    if not is_condition_true(status, RESERVATION_CREATED):
        text = f'Successfully create Reservation "{name}"'
        return MigrationStep(status=created, event=JobEvent("Normal", RESERVATION_CREATED, text))
    return _await_reservation_scheduled(job, facts, reservation) or _evict_and_await_successor(job, facts, reservation)


def _await_reservation_scheduled(
    job: PodMigrationJob, facts: MigrationFacts, reservation: Reservation
) -> MigrationStep | None:
    """Return the step while the reservation is not scheduled to a suitable node; None once it is."""
    status, where = job.status, reservation.status
    if is_condition_true(status, RESERVATION_SCHEDULED):
        return None
    refused = next((c for c in where.conditions if c.type == "Scheduled" and c.status == FALSE), None)
    if refused is not None:
        told = with_condition(status, facts.now_s, RESERVATION_SCHEDULED, FALSE, "Unschedulable", refused.message)
        if told is not status:
            return MigrationStep(status=told, event=JobEvent("Warning", "Unschedulable", refused.message))
    if where.phase in ("", PENDING):
        return MigrationStep(requeue_after_s=RECHECK_S)
    expired = any(c.type == "Ready" and c.reason == "Expired" for c in where.conditions)
    if where.phase == FAILED and expired:
        return _fail(status, "ReservationExpired", "Reservation expired")
    if not where.node_name or where.phase == FAILED:
        return _fail(status, "Unschedulable", refused.message if refused is not None else "Reservation failed")
    if facts.pod is not None and facts.pod.spec.node_name == where.node_name:
        return _fail_same_node(job, where.node_name)
    placed = msgspec.structs.replace(status, node_name=where.node_name)
    text = f'Assigned Reservation "{reservation.metadata.name}" to node "{where.node_name}"'
    return MigrationStep(
        status=with_condition(placed, facts.now_s, RESERVATION_SCHEDULED, TRUE),
        event=JobEvent("Normal", RESERVATION_SCHEDULED, text),
    )


# Moving ----------------------------------------------------------------------------------------------------------


def _evict_and_await_successor(job: PodMigrationJob, facts: MigrationFacts, reservation: Reservation) -> MigrationStep:
    if _is_for_pending_pod(job, reservation):
        return _await_pending_pod_scheduled(job, facts, reservation)
    return _evict(job, facts, reservation) or _await_successor(job, facts, reservation)


def _is_for_pending_pod(job: PodMigrationJob, reservation: Reservation) -> bool:
    """Return whether the reservation is for the job's pod itself, which has no node, rather than for a successor."""
    uid = job.spec.pod_ref.uid if job.spec.pod_ref is not None else ""
    ours = CREATED_BY_LABEL in reservation.metadata.labels
    alone = (o.object for o in reservation.spec.owners if o.controller is None and o.label_selector is None)
    return any(ours or named.uid == uid for named in alone if named is not None)


def _evict(job: PodMigrationJob, facts: MigrationFacts, reservation: Reservation | None = None) -> MigrationStep | None:
    """Return the step while the pod is not gone; None once it is."""
    status, pod = job.status, facts.pod
    if is_condition_true(status, EVICTION):
        return None
    begun = find_condition(status, EVICTION)
    if pod is None or _is_other_pod(job, pod):
        if not _has_left(job, facts):
            return _fail_missing_pod(job)
        return MigrationStep(
            status=with_condition(status, facts.now_s, EVICTION, TRUE, "EvictComplete"),
            event=JobEvent("Normal", "EvictComplete", f'Pod "{_pod_name(job)}" has been evicted'),
        )
    if begun is not None and begun.reason in (DRY_RUN, FAILED_EVICT):
        return _end_without_eviction(job, begun)
    if begun is not None and begun.reason == "Evicting":
        return MigrationStep(requeue_after_s=RECHECK_S)
    if reservation is not None and _is_reservation_taken(reservation):
        return _fail(status, "ForbiddenMigratePod", "Reservation is already bound by another Pod")
    if reservation is not None and reservation.status.phase == FAILED:
        return _fail(status, "ReservationExpired", "Reservation expired")
    if reservation is not None and reservation.status.phase in ("", PENDING):
        return MigrationStep(requeue_after_s=RECHECK_S)  # it was scheduled when the job noted it, and is not any more
    if reservation is not None and reservation.status.node_name == pod.spec.node_name:
        return _fail_same_node(job, pod.spec.node_name)
    options = _delete_options(job, facts)
    if options is not None and options.is_dry_run:
        text = f'Dry run: Pod "{_pod_name(job)}" would be evicted from node "{pod.spec.node_name}"'
        tried = with_condition(status, facts.now_s, EVICTION, FALSE, DRY_RUN, text)
        return MigrationStep(action=EvictPod(pod, options), status=tried)
    why = pod_codecs.parse_evict_reason(job.metadata.annotations)
    text = f'Pod "{_pod_name(job)}" evicted from node "{pod.spec.node_name}" by the reason "{why}"'
    # One that is going already, perhaps because an earlier process of ours saw to it, is not asked again.
    going = pod.metadata.deletion_timestamp is not None
    return MigrationStep(
        action=None if going else EvictPod(pod, options),
        status=with_condition(status, facts.now_s, EVICTION, FALSE, "Evicting", text),
        requeue_after_s=RECHECK_S,
        event=JobEvent("Normal", "Evicting", text),
    )


def reservation_refused(job: PodMigrationJob, why: str, now_s: float) -> MigrationStep:
    """Return the step after the server called the reservation of a job invalid, which it will always be."""
    reason = "FailedCreateReservation"
    return _fail(with_condition(job.status, now_s, RESERVATION_CREATED, FALSE, reason, why), reason, why)


def refused_for_good(job: PodMigrationJob, options: DeleteOptions | None, why: str, now_s: float) -> MigrationStep:
    """Return the step after an eviction that the server does not accept, and that is not tried again."""
    text = f'Failed evict Pod "{_pod_name(job)}" caused by {why}'
    if options is not None and options.is_dry_run:
        text = f"Dry run: {text}"
    return MigrationStep(
        status=with_condition(job.status, now_s, EVICTION, FALSE, FAILED_EVICT, text),
        event=JobEvent("Warning", FAILED_EVICT, text),
    )


def _end_without_eviction(job: PodMigrationJob, tried: PodMigrationJobCondition) -> MigrationStep:
    """End a job whose pod stays, and give its place back."""
    release = DeleteJobReservation(reservation_name(job)) if reservation_name(job) else None
    text = tried.message
    if tried.reason == FAILED_EVICT:
        return _fail(job.status, DRY_RUN if text.startswith("Dry run: ") else FAILED_EVICT, text, action=release)
    done = msgspec.structs.replace(succeeded_status(job.status, text), reason=DRY_RUN)
    return MigrationStep(action=release, status=done, event=JobEvent("Normal", DRY_RUN, text))


def _await_successor(job: PodMigrationJob, facts: MigrationFacts, reservation: Reservation) -> MigrationStep:
    status, owners = job.status, reservation.status.current_owners
    if not owners:
        waiting = with_condition(status, facts.now_s, POD_BOUND_RESERVATION, FALSE, "WaitForPodBindReservation")
        return MigrationStep(status=waiting if waiting is not status else None, requeue_after_s=RECHECK_S)
    new = owners[0]
    if not is_condition_true(status, RESERVATION_BOUND):
        named = msgspec.structs.replace(
            status, pod_ref=ObjectReference(namespace=new.namespace, name=new.name, uid=new.uid)
        )
        return MigrationStep(status=with_condition(named, facts.now_s, RESERVATION_BOUND, TRUE))
    if not is_condition_true(status, BOUND_POD_READY):
        if facts.successor is not None and not is_available(facts.successor):
            waiting = with_condition(status, facts.now_s, BOUND_POD_READY, FALSE, "WaitForBoundPodReady")
            return MigrationStep(status=waiting if waiting is not status else None, requeue_after_s=RECHECK_S)
        return MigrationStep(status=with_condition(status, facts.now_s, BOUND_POD_READY, TRUE))
    text = f'Bind Pod "{new.namespace}/{new.name}" in Reservation "{reservation.metadata.name}"'
    done = with_condition(status, facts.now_s, POD_BOUND_RESERVATION, TRUE, "", text)
    return MigrationStep(status=succeeded_status(done, text), event=JobEvent("Normal", "Complete", text))


def _await_pending_pod_scheduled(
    job: PodMigrationJob, facts: MigrationFacts, reservation: Reservation
) -> MigrationStep:
    """Wait until the pending pod is scheduled: it had no node, so nothing is evicted."""
    status, pod = job.status, facts.pod
    if pod is None or _is_other_pod(job, pod):
        return _fail_missing_pod(job)
    if any(c.type == "PodScheduled" and c.status == TRUE for c in pod.status.conditions):
        text = f'Assign Pod "{_pod_name(job)}" to node "{pod.spec.node_name}"'
        done = with_condition(status, facts.now_s, POD_SCHEDULED, TRUE)
        return MigrationStep(status=succeeded_status(done, text), event=JobEvent("Normal", "Complete", text))
    taken = [owner for owner in reservation.status.current_owners if owner.uid != pod.metadata.uid]
    if reservation.status.phase == SUCCEEDED and taken:
        return _fail(status, "ForbiddenMigratePod", "Reservation is already bound by another Pod")
    waiting = with_condition(status, facts.now_s, POD_SCHEDULED, FALSE, "Unschedulable")
    return MigrationStep(status=waiting if waiting is not status else None, requeue_after_s=RECHECK_S)


# Shared parts ----------------------------------------------------------------------------------------------------


def _pod_name(job: PodMigrationJob) -> str:
    ref = job.spec.pod_ref
    return "" if ref is None else f"{ref.namespace}/{ref.name}"


def _delete_options(job: PodMigrationJob, facts: MigrationFacts) -> DeleteOptions | None:
    return job.spec.delete_options or facts.default_delete_options


def _is_other_pod(job: PodMigrationJob, pod: Pod) -> bool:
    """Return whether the pod is a newer one of the same name than the one that the job refers to."""
    ref = job.spec.pod_ref
    return ref is not None and ref.uid not in ("", pod.metadata.uid)


def _is_reservation_taken(reservation: Reservation) -> bool:
    once = reservation.spec.allocate_once is not False
    return reservation.status.phase == SUCCEEDED or (once and bool(reservation.status.current_owners))


def _fail_same_node(job: PodMigrationJob, node: str) -> MigrationStep:
    text = f'Reservation is scheduled to the node "{node}" that the Pod is on'
    return _fail(job.status, "ForbiddenMigratePod", text)


def _fail_missing_pod(job: PodMigrationJob) -> MigrationStep:
    return _fail(job.status, "MissingPod", f'Abort job caused by missing Pod "{_pod_name(job)}"')


def _fail(status: PodMigrationJobStatus, reason: str, message: str, action: StepAction | None = None) -> MigrationStep:
    return MigrationStep(
        action=action, status=failed_status(status, reason, message), event=JobEvent("Warning", reason, message)
    )
