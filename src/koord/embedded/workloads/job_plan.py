"""Decide what a Job does next: which pods it creates and deletes, and when it is done. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import Job, JobCondition, JobStatus
from koord.embedded.workloads import job_accounting
from koord.embedded.workloads.controller_context import seconds_until
from koord.embedded.workloads.job_accounting import (
    JobBackoff,
    JobPodCounts,
    backoff_delay_s,
    completion_index,
    count_ended_pods,
    counts_as_failed,
    is_indexed,
    pod_ended_at,
    pods_by_index,
    replaces_only_terminated,
    restarts_exceed_limit,
)
from koord.embedded.workloads.pod_control import is_pod_active, is_pod_ready, is_pod_terminating, pods_to_delete

MAX_CREATES = 500
SUCCESS_CRITERIA_MET = "SuccessCriteriaMet"
FAILURE_TARGET = "FailureTarget"
COMPLETE = "Complete"
FAILED = "Failed"
SUSPENDED = "Suspended"


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    pods: tuple[Pod, ...]
    expectations_met: bool = True  # the cache shows all that was done so far
    backoff: JobBackoff = JobBackoff()
    now: datetime


class JobEndReason(msgspec.Struct, frozen=True):
    """Says how the Job will end once its pods have ended: the interim condition, its reason and message."""

    type: str  # SUCCESS or FAILURE
    reason: str
    message: str


class NewJobPod(msgspec.Struct, frozen=True):
    index: int | None = None
    failures: int = 0  # of this index so far


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    status: JobStatus
    create: tuple[NewJobPod, ...] = ()
    delete_uncounted: tuple[Pod, ...] = ()  # not wanted any more; their end does not count
    delete_as_failed: tuple[Pod, ...] = ()  # the Job is over; their end counts as a failure
    release: tuple[Pod, ...] = ()  # lose their finalizer after the status is written
    backoff: JobBackoff = JobBackoff()
    requeue_after_s: float | None = None
    events: tuple[tuple[str, str, str], ...] = ()  # type, reason, message of events


def job_condition(job: Job, type: str) -> JobCondition | None:
    return next((found for found in job.status.conditions if found.type == type), None)


def is_job_finished(job: Job) -> bool:
    return any(found.type in (COMPLETE, FAILED) and found.status == "True" for found in job.status.conditions)


def job_finished_at(job: Job) -> datetime | None:
    for found in job.status.conditions:
        if found.type in (COMPLETE, FAILED) and found.status == "True":
            return found.last_transition_time
    return None


def parallelism(job: Job) -> int:
    return 1 if job.spec.parallelism is None else job.spec.parallelism


def completions(job: Job) -> int | None:
    """Return the wanted successes; None: the first begins the end. A Job that names neither number wants one."""
    if job.spec.completions is None and job.spec.parallelism is None:
        return 1
    return job.spec.completions


def decide_job(view: JobView) -> JobPlan:
    job, now = view.job, view.now
    known = _recorded_end_reason(job)
    counts = count_ended_pods(job, view.pods, now, ending=known is not None)
    alive = [pod for pod in view.pods if is_pod_active(pod) and not counts_as_failed(pod, job)]
    leaving = sum(is_pod_terminating(pod) for pod in view.pods)
    status, events = _started(job, now)
    target = known or _new_end_reason(view, counts, alive)
    backoff = view.backoff.after(counts.ends)
    plan = JobPlan(status=status, release=counts.release, backoff=backoff, events=events)
    if target is not None:
        return _plan_end(view, plan, counts, target, alive, leaving, is_new=known is None)
    if job.metadata.deletion_timestamp is not None:
        return _with_counts(plan, view, counts, alive, leaving)
    if job.spec.suspend:
        plan = msgspec.structs.replace(plan, delete_uncounted=tuple(alive) if view.expectations_met else ())
        return _with_counts(plan, view, counts, alive, leaving)
    plan = _plan_pods(view, plan, counts, alive, leaving)
    plan = _with_counts(plan, view, counts, alive, leaving)
    return msgspec.structs.replace(
        plan, requeue_after_s=_earlier(plan.requeue_after_s, _deadline_left_s(plan.status, job, now))
    )


# -- beginning, suspending


def _started(job: Job, now: datetime) -> tuple[JobStatus, tuple[tuple[str, str, str], ...]]:
    status = job.status
    known = job_condition(job, SUSPENDED)
    if job.spec.suspend:
        if known is not None and known.status == "True":
            return status, ()
        changed = _with_condition(status.conditions, SUSPENDED, "True", "JobSuspended", "Job suspended", now)
        status = msgspec.structs.replace(status, conditions=changed, start_time=None)
        return status, (("Normal", "Suspended", "Job suspended"),)
    if known is not None and known.status == "True":
        changed = _with_condition(status.conditions, SUSPENDED, "False", "JobResumed", "Job resumed", now)
        status = msgspec.structs.replace(status, conditions=changed, start_time=now)
        return status, (("Normal", "Resumed", "Job resumed"),)
    return (msgspec.structs.replace(status, start_time=now) if status.start_time is None else status), ()


# -- ending


def _recorded_end_reason(job: Job) -> JobEndReason | None:
    for type in (SUCCESS_CRITERIA_MET, FAILURE_TARGET):
        found = job_condition(job, type)
        if found is not None and found.status == "True":
            return JobEndReason(type, found.reason, found.message)
    return None


def _new_end_reason(view: JobView, counts: JobPodCounts, alive: Sequence[Pod]) -> JobEndReason | None:
    job = view.job
    if counts.fail_job:
        return JobEndReason(FAILURE_TARGET, "PodFailurePolicy", counts.fail_job)
    limit = 6 if job.spec.backoff_limit is None else job.spec.backoff_limit
    if job.spec.backoff_limit is None and job.spec.backoff_limit_per_index is not None:
        limit = (1 << 31) - 1
    if counts.all_failed > limit or restarts_exceed_limit(job, alive):
        return JobEndReason(FAILURE_TARGET, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    left = _deadline_left_s(job.status, job, view.now)
    if left is not None and left <= 0:
        return JobEndReason(FAILURE_TARGET, "DeadlineExceeded", "Job was active longer than specified deadline")
    by_index = is_indexed(job)
    if by_index and job.spec.backoff_limit_per_index is not None:
        target = _index_end_reason(job, counts)
        if target is not None:
            return target
    if by_index and (rule := _matching_success_rule(job, counts.completed)) is not None:
        return JobEndReason(SUCCESS_CRITERIA_MET, "SuccessPolicy", f"Matched rules at index {rule}")
    wanted, reached = completions(job), counts.all_succeeded(by_index)
    if wanted is None:
        done = reached > 0 and not alive
    else:
        done = reached >= wanted and (not alive or wanted > 0)
    return (
        JobEndReason(SUCCESS_CRITERIA_MET, "CompletionsReached", "Reached expected number of succeeded pods")
        if done
        else None
    )


def _index_end_reason(job: Job, counts: JobPodCounts) -> JobEndReason | None:
    most = job.spec.max_failed_indexes
    if most is not None and len(counts.failed_indexes) > most:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return JobEndReason(FAILURE_TARGET, "MaxFailedIndexesExceeded", message)
    if counts.failed_indexes and len(counts.failed_indexes | counts.completed) >= (job.spec.completions or 0):
        return JobEndReason(FAILURE_TARGET, "FailedIndexes", "Job has failed indexes")
    return None


def _matching_success_rule(job: Job, completed: frozenset[int]) -> int | None:
    policy = job.spec.success_policy
    for number, rule in enumerate(policy.rules if policy is not None else ()):
        asked = job_accounting.parse_indexes(rule.succeeded_indexes) if rule.succeeded_indexes is not None else None
        matching = completed if asked is None else completed & asked
        least = rule.succeeded_count if rule.succeeded_count is not None else len(asked or ())
        if matching and len(matching) >= least:
            return number
    return None


def _plan_end(
    view: JobView,
    plan: JobPlan,
    counts: JobPodCounts,
    target: JobEndReason,
    alive: Sequence[Pod],
    leaving: int,
    *,
    is_new: bool,
) -> JobPlan:
    """Delete the pods first; set the final condition when none is left and every ended pod is counted."""
    now = view.now
    conditions, events = plan.status.conditions, plan.events
    if is_new:
        conditions = _with_condition(conditions, target.type, "True", target.reason, target.message, now)
        if target.type == FAILURE_TARGET:
            events = (*events, ("Warning", target.reason, target.message))
    over = not alive and not leaving and not counts.is_truncated
    over = over and not counts.uncounted.succeeded and not counts.uncounted.failed
    completed_at = None
    if over:
        last = COMPLETE if target.type == SUCCESS_CRITERIA_MET else FAILED
        conditions = _with_condition(conditions, last, "True", target.reason, target.message, now)
        if last == COMPLETE:
            completed_at = now
            events = (*events, ("Normal", "Completed", "Job completed"))
    status = msgspec.structs.replace(plan.status, conditions=conditions, completion_time=completed_at)
    plan = msgspec.structs.replace(
        plan, status=status, events=events, delete_as_failed=tuple(alive) if view.expectations_met else ()
    )
    return _with_counts(plan, view, counts, alive, leaving)


def _deadline_left_s(status: JobStatus, job: Job, now: datetime) -> float | None:
    limit = job.spec.active_deadline_seconds
    if limit is None or status.start_time is None or job.spec.suspend:
        return None
    return seconds_until(status.start_time + timedelta(seconds=limit), now)


# -- staffing


def _plan_pods(view: JobView, plan: JobPlan, counts: JobPodCounts, alive: Sequence[Pod], leaving: int) -> JobPlan:
    job, now = view.job, view.now
    if not view.expectations_met:
        return plan
    by_index = is_indexed(job)
    wanted = _wanted_active(job, counts, len(alive), by_index)
    surplus = _surplus(job, counts, alive, wanted, now)
    if surplus:
        return msgspec.structs.replace(plan, delete_uncounted=surplus)
    missing = wanted - len(alive) - (leaving if replaces_only_terminated(job) else 0)
    if missing <= 0:
        return plan
    missing = min(missing, MAX_CREATES)
    if by_index and job.spec.backoff_limit_per_index is not None:
        return _plan_pods_per_index(view, plan, counts, alive, missing)
    over = plan.backoff.ends_at()
    if over is not None and over > now:
        return msgspec.structs.replace(plan, requeue_after_s=seconds_until(over, now))
    if by_index:
        create = tuple(NewJobPod(index) for index in _open_indexes(view, counts, alive)[:missing])
    else:
        create = (NewJobPod(),) * missing
    return msgspec.structs.replace(plan, create=create)


def _wanted_active(job: Job, counts: JobPodCounts, alive: int, by_index: bool) -> int:
    wanted, reached = completions(job), counts.all_succeeded(by_index)
    if wanted is None:
        return min(alive, parallelism(job)) if reached > 0 else parallelism(job)
    return min(parallelism(job), max(0, wanted - reached - len(counts.failed_indexes)))


def _surplus(job: Job, counts: JobPodCounts, alive: Sequence[Pod], wanted: int, now: datetime) -> tuple[Pod, ...]:
    """Return the pods to delete: those of done, failed, invalid or duplicate indexes in any case, then the cheapest."""
    useless: list[Pod] = []
    if is_indexed(job):
        taken: set[int] = set()
        for pod in sorted(alive, key=lambda p: (p.metadata.creation_timestamp or now, p.metadata.uid)):
            index = completion_index(pod)
            closed = counts.completed | counts.failed_indexes
            if index is None or index >= (job.spec.completions or 0) or index in closed or index in taken:
                useless.append(pod)
            else:
                taken.add(index)
    excess = len(alive) - len(useless) - wanted
    if excess > 0:
        useful = [pod for pod in alive if pod not in useless]
        useless += pods_to_delete(useful, excess, (), now)
    return tuple(useless)


def _open_indexes(view: JobView, counts: JobPodCounts, alive: Sequence[Pod]) -> list[int]:
    busy = {completion_index(pod) for pod in alive}
    if replaces_only_terminated(view.job):
        busy |= {completion_index(pod) for pod in view.pods if is_pod_terminating(pod)}
    closed = counts.completed | counts.failed_indexes | busy
    return [index for index in range(view.job.spec.completions or 0) if index not in closed]


def _plan_pods_per_index(
    view: JobView, plan: JobPlan, counts: JobPodCounts, alive: Sequence[Pod], missing: int
) -> JobPlan:
    """Plan pods per index. Every index waits out its own failures, which the annotation on its last pod counts."""
    grouped = pods_by_index(pod for pod in view.pods if counts_as_failed(pod, view.job))
    create: list[NewJobPod] = []
    wait: float | None = None
    for index in _open_indexes(view, counts, alive):
        if len(create) == missing:
            break
        ends = [
            (pod_ended_at(pod, view.now), job_accounting.index_failure_count(pod) + 1) for pod in grouped.get(index, ())
        ]
        failures = max((count for _, count in ends), default=0)
        left = 0.0
        if ends:
            due = max(at for at, _ in ends) + timedelta(seconds=backoff_delay_s(failures))
            left = seconds_until(due, view.now)
        if left > 0:
            wait = left if wait is None else min(wait, left)
        else:
            create.append(NewJobPod(index, failures))
    return msgspec.structs.replace(plan, create=tuple(create), requeue_after_s=wait)


# -- status


def _with_counts(plan: JobPlan, view: JobView, counts: JobPodCounts, alive: Sequence[Pod], leaving: int) -> JobPlan:
    by_index = is_indexed(view.job)
    over = any(c.type in (COMPLETE, FAILED) and c.status == "True" for c in plan.status.conditions)
    remaining = len(alive) - len(plan.delete_uncounted) - len(plan.delete_as_failed) + len(plan.create)
    per = view.job.spec.backoff_limit_per_index is not None
    gone = {pod.metadata.uid for pod in (*plan.delete_uncounted, *plan.delete_as_failed)}
    status = msgspec.structs.replace(
        plan.status,
        active=remaining,
        ready=sum(is_pod_ready(pod) for pod in alive if pod.metadata.uid not in gone),
        terminating=0 if over else leaving + len(plan.delete_uncounted) + len(plan.delete_as_failed),
        succeeded=counts.succeeded,
        failed=counts.failed,
        completed_indexes=job_accounting.format_indexes(counts.completed) if by_index else "",
        failed_indexes=job_accounting.format_indexes(counts.failed_indexes) if by_index and per else None,
        uncounted_terminated_pods=counts.uncounted,
    )
    return msgspec.structs.replace(plan, status=status)


def _with_condition(
    conditions: tuple[JobCondition, ...], type: str, status: str, reason: str, message: str, now: datetime
) -> tuple[JobCondition, ...]:
    made = JobCondition(
        type=type, status=status, reason=reason, message=message, last_probe_time=now, last_transition_time=now
    )
    return (*(found for found in conditions if found.type != type), made)


def _earlier(one: float | None, other: float | None) -> float | None:
    moments = [moment for moment in (one, other) if moment is not None]
    return min(moments) if moments else None
