"""Decide what a Job does next: which pods it creates and deletes, and when it is done. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from koord.api.batch import Job, JobCondition, JobStatus
from koord.api.core import Pod
from koord.embedded.workloads import job_index
from koord.embedded.workloads.context import seconds_until
from koord.embedded.workloads.job_failure import (
    Backoff,
    delay_s,
    ended_at,
    failed,
    past_limit_by_restarts,
    per_index,
    waits_for_end,
)
from koord.embedded.workloads.job_index import index_of
from koord.embedded.workloads.job_tracking import Tally, indexed, tally
from koord.embedded.workloads.pod_state import active, ready, terminating
from koord.embedded.workloads.ranking import victims

MOST_CREATES = 500
SUCCESS = "SuccessCriteriaMet"
FAILURE = "FailureTarget"
COMPLETE = "Complete"
FAILED = "Failed"
SUSPENDED = "Suspended"


class View(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    pods: tuple[Pod, ...]
    settled: bool = True  # the cache shows all that was done so far
    backoff: Backoff = Backoff()
    now: datetime


class Target(msgspec.Struct, frozen=True):
    """Says how the Job will end once its pods have ended: the interim condition, its reason and message."""

    type: str  # SUCCESS or FAILURE
    reason: str
    message: str


class NewPod(msgspec.Struct, frozen=True):
    index: int | None = None
    failures: int = 0  # of this index so far


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    status: JobStatus
    create: tuple[NewPod, ...] = ()
    drop: tuple[Pod, ...] = ()  # not wanted any more; their end does not count
    end: tuple[Pod, ...] = ()  # the Job is over; their end counts as a failure
    release: tuple[Pod, ...] = ()  # lose their finalizer after the status is written
    backoff: Backoff = Backoff()
    look_again_s: float | None = None
    told: tuple[tuple[str, str, str], ...] = ()  # type, reason, message of events


def condition(job: Job, type: str) -> JobCondition | None:
    return next((found for found in job.status.conditions if found.type == type), None)


def is_finished(job: Job) -> bool:
    return any(found.type in (COMPLETE, FAILED) and found.status == "True" for found in job.status.conditions)


def finished_at(job: Job) -> datetime | None:
    for found in job.status.conditions:
        if found.type in (COMPLETE, FAILED) and found.status == "True":
            return found.last_transition_time
    return None


def parallelism(job: Job) -> int:
    return 1 if job.spec.parallelism is None else job.spec.parallelism


def completions(job: Job) -> int | None:
    """Return the wanted successes; None lets the first success begin the end. A Job that names neither number
    wants one.
    """
    if job.spec.completions is None and job.spec.parallelism is None:
        return 1
    return job.spec.completions


def decide(seen: View) -> Plan:
    job, now = seen.job, seen.now
    known = _known_target(job)
    counts = tally(job, seen.pods, now, ending=known is not None)
    alive = [pod for pod in seen.pods if active(pod) and not failed(pod, job)]
    leaving = sum(terminating(pod) for pod in seen.pods)
    status, told = _started(job, now)
    target = known or _target(seen, counts, alive)
    backoff = seen.backoff.after(counts.ends)
    plan = Plan(status=status, release=counts.release, backoff=backoff, told=told)
    if target is not None:
        return _ending(seen, plan, counts, target, alive, leaving, is_new=known is None)
    if job.metadata.deletion_timestamp is not None:
        return _with_counts(plan, seen, counts, alive, leaving)
    if job.spec.suspend:
        plan = msgspec.structs.replace(plan, drop=tuple(alive) if seen.settled else ())
        return _with_counts(plan, seen, counts, alive, leaving)
    plan = _staffed(seen, plan, counts, alive, leaving)
    plan = _with_counts(plan, seen, counts, alive, leaving)
    return msgspec.structs.replace(
        plan, look_again_s=_sooner(plan.look_again_s, _deadline_left_s(plan.status, job, now))
    )


# -- beginning, suspending


def _started(job: Job, now: datetime) -> tuple[JobStatus, tuple[tuple[str, str, str], ...]]:
    status = job.status
    known = condition(job, SUSPENDED)
    if job.spec.suspend:
        if known is not None and known.status == "True":
            return status, ()
        changed = _with(status.conditions, SUSPENDED, "True", "JobSuspended", "Job suspended", now)
        status = msgspec.structs.replace(status, conditions=changed, start_time=None)
        return status, (("Normal", "Suspended", "Job suspended"),)
    if known is not None and known.status == "True":
        changed = _with(status.conditions, SUSPENDED, "False", "JobResumed", "Job resumed", now)
        status = msgspec.structs.replace(status, conditions=changed, start_time=now)
        return status, (("Normal", "Resumed", "Job resumed"),)
    return (msgspec.structs.replace(status, start_time=now) if status.start_time is None else status), ()


# -- ending


def _known_target(job: Job) -> Target | None:
    for type in (SUCCESS, FAILURE):
        found = condition(job, type)
        if found is not None and found.status == "True":
            return Target(type, found.reason, found.message)
    return None


def _target(seen: View, counts: Tally, alive: Sequence[Pod]) -> Target | None:
    job = seen.job
    if counts.fail_job:
        return Target(FAILURE, "PodFailurePolicy", counts.fail_job)
    limit = 6 if job.spec.backoff_limit is None else job.spec.backoff_limit
    if job.spec.backoff_limit is None and job.spec.backoff_limit_per_index is not None:
        limit = (1 << 31) - 1
    if counts.all_failed > limit or past_limit_by_restarts(job, alive):
        return Target(FAILURE, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    left = _deadline_left_s(job.status, job, seen.now)
    if left is not None and left <= 0:
        return Target(FAILURE, "DeadlineExceeded", "Job was active longer than specified deadline")
    by_index = indexed(job)
    if by_index and job.spec.backoff_limit_per_index is not None:
        target = _index_target(job, counts)
        if target is not None:
            return target
    if by_index and (rule := _success_rule(job, counts.completed)) is not None:
        return Target(SUCCESS, "SuccessPolicy", f"Matched rules at index {rule}")
    wanted, reached = completions(job), counts.all_succeeded(by_index)
    if wanted is None:
        done = reached > 0 and not alive
    else:
        done = reached >= wanted and (not alive or wanted > 0)
    return Target(SUCCESS, "CompletionsReached", "Reached expected number of succeeded pods") if done else None


def _index_target(job: Job, counts: Tally) -> Target | None:
    most = job.spec.max_failed_indexes
    if most is not None and len(counts.failed_indexes) > most:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return Target(FAILURE, "MaxFailedIndexesExceeded", message)
    if counts.failed_indexes and len(counts.failed_indexes | counts.completed) >= (job.spec.completions or 0):
        return Target(FAILURE, "FailedIndexes", "Job has failed indexes")
    return None


def _success_rule(job: Job, completed: frozenset[int]) -> int | None:
    policy = job.spec.success_policy
    for number, rule in enumerate(policy.rules if policy is not None else ()):
        asked = job_index.parse(rule.succeeded_indexes) if rule.succeeded_indexes is not None else None
        matching = completed if asked is None else completed & asked
        least = rule.succeeded_count if rule.succeeded_count is not None else len(asked or ())
        if matching and len(matching) >= least:
            return number
    return None


def _ending(
    seen: View, plan: Plan, counts: Tally, target: Target, alive: Sequence[Pod], leaving: int, *, is_new: bool
) -> Plan:
    """Delete the pods first; set the final condition when none is left and every ended pod is counted."""
    now = seen.now
    conditions, told = plan.status.conditions, plan.told
    if is_new:
        conditions = _with(conditions, target.type, "True", target.reason, target.message, now)
        if target.type == FAILURE:
            told = (*told, ("Warning", target.reason, target.message))
    over = not alive and not leaving and not counts.capped
    over = over and not counts.uncounted.succeeded and not counts.uncounted.failed
    completed_at = None
    if over:
        last = COMPLETE if target.type == SUCCESS else FAILED
        conditions = _with(conditions, last, "True", target.reason, target.message, now)
        if last == COMPLETE:
            completed_at = now
            told = (*told, ("Normal", "Completed", "Job completed"))
    status = msgspec.structs.replace(plan.status, conditions=conditions, completion_time=completed_at)
    plan = msgspec.structs.replace(plan, status=status, told=told, end=tuple(alive) if seen.settled else ())
    return _with_counts(plan, seen, counts, alive, leaving)


def _deadline_left_s(status: JobStatus, job: Job, now: datetime) -> float | None:
    limit = job.spec.active_deadline_seconds
    if limit is None or status.start_time is None or job.spec.suspend:
        return None
    return seconds_until(status.start_time + timedelta(seconds=limit), now)


# -- staffing


def _staffed(seen: View, plan: Plan, counts: Tally, alive: Sequence[Pod], leaving: int) -> Plan:
    job, now = seen.job, seen.now
    if not seen.settled:
        return plan
    by_index = indexed(job)
    wanted = _wanted_active(job, counts, len(alive), by_index)
    surplus = _surplus(job, counts, alive, wanted, now)
    if surplus:
        return msgspec.structs.replace(plan, drop=surplus)
    missing = wanted - len(alive) - (leaving if waits_for_end(job) else 0)
    if missing <= 0:
        return plan
    missing = min(missing, MOST_CREATES)
    if by_index and job.spec.backoff_limit_per_index is not None:
        return _staffed_per_index(seen, plan, counts, alive, missing)
    over = plan.backoff.over_at()
    if over is not None and over > now:
        return msgspec.structs.replace(plan, look_again_s=seconds_until(over, now))
    if by_index:
        create = tuple(NewPod(index) for index in _open_indexes(seen, counts, alive)[:missing])
    else:
        create = (NewPod(),) * missing
    return msgspec.structs.replace(plan, create=create)


def _wanted_active(job: Job, counts: Tally, alive: int, by_index: bool) -> int:
    wanted, reached = completions(job), counts.all_succeeded(by_index)
    if wanted is None:
        return min(alive, parallelism(job)) if reached > 0 else parallelism(job)
    return min(parallelism(job), max(0, wanted - reached - len(counts.failed_indexes)))


def _surplus(job: Job, counts: Tally, alive: Sequence[Pod], wanted: int, now: datetime) -> tuple[Pod, ...]:
    """Return the pods to delete: those of done, failed, invalid or duplicate indexes in any case, then the
    cheapest.
    """
    useless: list[Pod] = []
    if indexed(job):
        taken: set[int] = set()
        for pod in sorted(alive, key=lambda p: (p.metadata.creation_timestamp or now, p.metadata.uid)):
            index = index_of(pod)
            closed = counts.completed | counts.failed_indexes
            if index is None or index >= (job.spec.completions or 0) or index in closed or index in taken:
                useless.append(pod)
            else:
                taken.add(index)
    excess = len(alive) - len(useless) - wanted
    if excess > 0:
        useful = [pod for pod in alive if pod not in useless]
        useless += victims(useful, excess, (), now)
    return tuple(useless)


def _open_indexes(seen: View, counts: Tally, alive: Sequence[Pod]) -> list[int]:
    busy = {index_of(pod) for pod in alive}
    if waits_for_end(seen.job):
        busy |= {index_of(pod) for pod in seen.pods if terminating(pod)}
    closed = counts.completed | counts.failed_indexes | busy
    return [index for index in range(seen.job.spec.completions or 0) if index not in closed]


def _staffed_per_index(seen: View, plan: Plan, counts: Tally, alive: Sequence[Pod], missing: int) -> Plan:
    """Plan pods per index. Every index waits out its own failures, which the annotation on its last pod
    counts.
    """
    grouped = per_index(pod for pod in seen.pods if failed(pod, seen.job))
    create: list[NewPod] = []
    wait: float | None = None
    for index in _open_indexes(seen, counts, alive):
        if len(create) == missing:
            break
        ends = [(ended_at(pod, seen.now), job_index.failures_of(pod) + 1) for pod in grouped.get(index, ())]
        failures = max((count for _, count in ends), default=0)
        left = 0.0
        if ends:
            due = max(at for at, _ in ends) + timedelta(seconds=delay_s(failures))
            left = seconds_until(due, seen.now)
        if left > 0:
            wait = left if wait is None else min(wait, left)
        else:
            create.append(NewPod(index, failures))
    return msgspec.structs.replace(plan, create=tuple(create), look_again_s=wait)


# -- status


def _with_counts(plan: Plan, seen: View, counts: Tally, alive: Sequence[Pod], leaving: int) -> Plan:
    by_index = indexed(seen.job)
    over = any(c.type in (COMPLETE, FAILED) and c.status == "True" for c in plan.status.conditions)
    remaining = len(alive) - len(plan.drop) - len(plan.end) + len(plan.create)
    per = seen.job.spec.backoff_limit_per_index is not None
    gone = {pod.metadata.uid for pod in (*plan.drop, *plan.end)}
    status = msgspec.structs.replace(
        plan.status,
        active=remaining,
        ready=sum(ready(pod) for pod in alive if pod.metadata.uid not in gone),
        terminating=0 if over else leaving + len(plan.drop) + len(plan.end),
        succeeded=counts.succeeded,
        failed=counts.failed,
        completed_indexes=job_index.text(counts.completed) if by_index else "",
        failed_indexes=job_index.text(counts.failed_indexes) if by_index and per else None,
        uncounted_terminated_pods=counts.uncounted,
    )
    return msgspec.structs.replace(plan, status=status)


def _with(
    conditions: tuple[JobCondition, ...], type: str, status: str, reason: str, message: str, now: datetime
) -> tuple[JobCondition, ...]:
    made = JobCondition(
        type=type, status=status, reason=reason, message=message, last_probe_time=now, last_transition_time=now
    )
    return (*(found for found in conditions if found.type != type), made)


def _sooner(one: float | None, other: float | None) -> float | None:
    moments = [moment for moment in (one, other) if moment is not None]
    return min(moments) if moments else None
