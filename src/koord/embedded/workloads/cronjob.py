"""The CronJob controller creates a Job at every scheduled time and prunes finished ones."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from koord.api.batch import CronJob, CronJobStatus, Job
from koord.api.builtin import CRON_JOBS, JOBS
from koord.api.part import ObjectReference
from koord.embedded.workloads.context import Context, seconds_until
from koord.embedded.workloads.freshness import Written
from koord.embedded.workloads.job_decision import COMPLETE, finished_at, is_finished
from koord.embedded.workloads.ownership import controlled_by, index_by_controller, owned, reference
from koord.embedded.workloads.schedule import Schedule, ScheduleError
from koord.embedded.workloads.status import difference, write_status
from koord.kube import recorder
from koord.kube.cache import Change, Key, key_of
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.verb import Plain
from koord.kube.workqueue import WorkQueue
from koord.values import instant

SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"
DEFAULT_SUCCESSFUL = 3
DEFAULT_FAILED = 1
# Past the due time, so that a clock a hair behind does not look a moment early and then wait a whole period.
_DELTA_S = 0.1


class View(msgspec.Struct, frozen=True, kw_only=True):
    cron: CronJob
    jobs: tuple[Job, ...]  # that it controls
    now: datetime


class Told(msgspec.Struct, frozen=True):
    type: recorder.EventType
    reason: str
    message: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    status: CronJobStatus
    create_for: datetime | None = None
    replace: tuple[Job, ...] = ()  # end before the new one is made
    clear: tuple[Job, ...] = ()  # finished and past the history limits
    look_again_s: float | None = None
    told: tuple[Told, ...] = ()


def succeeded(job: Job) -> bool:
    return any(found.type == COMPLETE and found.status == "True" for found in job.status.conditions)


def decide(seen: View) -> Plan:
    cron, now = seen.cron, seen.now
    status, told = _actual(seen)
    clear = (*_past(seen, True, cron.spec.successful_jobs_history_limit, DEFAULT_SUCCESSFUL),
             *_past(seen, False, cron.spec.failed_jobs_history_limit, DEFAULT_FAILED))  # fmt: skip
    plan = Plan(status=status, clear=clear, told=told)
    if cron.metadata.deletion_timestamp is not None or cron.spec.suspend:
        return plan
    try:
        schedule = Schedule(cron.spec.schedule, cron.spec.time_zone)
    except ScheduleError as error:
        return _saying(plan, Told("Warning", "UnparseableSchedule", f"unparseable schedule: {error}"))
    coming = schedule.next(now)
    if coming is not None:
        plan = msgspec.structs.replace(plan, look_again_s=seconds_until(coming, now) + _DELTA_S)
    since = _since(cron, now)
    due = schedule.latest(since, now)
    if due is None:
        return plan
    if schedule.many_missed(since, now):
        message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
        plan = _saying(plan, Told("Warning", "TooManyMissedTimes", message))
    return _due(seen, plan, due)


def _due(seen: View, plan: Plan, due: datetime) -> Plan:
    cron = seen.cron
    deadline = cron.spec.starting_deadline_seconds
    if deadline is not None and due + timedelta(seconds=deadline) < seen.now:
        message = f"Missed scheduled time to start a job: {instant.text(due)}"
        return _saying(plan, Told("Warning", "MissSchedule", message))
    name = job_name(cron, due)
    if any(job.metadata.name == name for job in seen.jobs) or any(ref.name == name for ref in plan.status.active):
        return plan  # made already; only our memory of it was lost
    running = tuple(job for job in seen.jobs if not is_finished(job))
    policy = cron.spec.concurrency_policy or "Allow"
    if policy == "Forbid" and plan.status.active:
        message = "Not starting job because prior execution is running and concurrency policy is Forbid"
        return _saying(plan, Told("Normal", "JobAlreadyActive", message))
    replace = running if policy == "Replace" else ()
    return msgspec.structs.replace(plan, create_for=due, replace=replace)


def _since(cron: CronJob, now: datetime) -> datetime:
    """Return the time from which missed schedules count."""
    since = cron.status.last_schedule_time or cron.metadata.creation_timestamp or now
    deadline = cron.spec.starting_deadline_seconds
    if deadline is not None:
        since = max(since, now - timedelta(seconds=deadline))
    return since


def _actual(seen: View) -> tuple[CronJobStatus, tuple[Told, ...]]:
    """Return the status and events that follow from the Jobs themselves: which run, and when one last
    succeeded.
    """
    old, told = seen.cron.status, []
    by_uid = {job.metadata.uid: job for job in seen.jobs}
    active = [_pointer(job) for job in seen.jobs if not is_finished(job) and job.metadata.deletion_timestamp is None]
    for ref in old.active:
        job = by_uid.get(ref.uid)
        if job is None:
            told.append(Told("Normal", "MissingJob", f"Active job went missing: {ref.name}"))
        elif is_finished(job):
            end = "Complete" if succeeded(job) else "Failed"
            told.append(Told("Normal", "SawCompletedJob", f"Saw completed job: {ref.name}, condition: {end}"))
    ends = [
        job.status.completion_time for job in seen.jobs if succeeded(job) and job.status.completion_time is not None
    ]
    if old.last_successful_time is not None:
        ends.append(old.last_successful_time)
    status = CronJobStatus(
        active=tuple(sorted(active, key=lambda ref: ref.name)),
        last_schedule_time=old.last_schedule_time,
        last_successful_time=max(ends) if ends else None,
    )
    return status, tuple(told)


def _pointer(job: Job) -> ObjectReference:
    meta = job.metadata
    return ObjectReference(
        api_version=JOBS.api_version, kind=JOBS.kind, namespace=meta.namespace, name=meta.name, uid=meta.uid
    )


def _past(seen: View, good: bool, limit: int | None, default: int) -> tuple[Job, ...]:
    ended = [job for job in seen.jobs if is_finished(job) and succeeded(job) == good]
    ended.sort(key=lambda job: (finished_at(job) or seen.now, job.metadata.name))
    excess = len(ended) - (default if limit is None else limit)
    return tuple(job for job in ended[: max(0, excess)] if job.metadata.deletion_timestamp is None)


def _saying(plan: Plan, told: Told) -> Plan:
    return msgspec.structs.replace(plan, told=(*plan.told, told))


def job_name(cron: CronJob, due: datetime) -> str:
    """Return the name of the Job of a scheduled time, always the same, so that it is created only once."""
    return f"{cron.metadata.name}-{int(due.timestamp()) // 60}"


def job_body(cron: CronJob, due: datetime) -> Plain:
    template = cron.spec.job_template
    given = template.get("metadata") or {}
    meta: Plain = {
        "name": job_name(cron, due),
        "namespace": cron.metadata.namespace,
        "annotations": {**(given.get("annotations") or {}), SCHEDULED: instant.text(due)},
        "ownerReferences": [reference(CRON_JOBS, cron)],
    }
    if given.get("labels"):
        meta["labels"] = given["labels"]
    return {"metadata": meta, "spec": template.get("spec") or {}}


class CronJobs:
    name = "cronjob"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        self._crons = context.informers.of(CRON_JOBS)
        self._jobs = context.informers.of(JOBS)
        self._queue: WorkQueue[Key] = WorkQueue(context.clock, name=self.name)
        self._written = Written()
        index_by_controller(self._jobs)
        self._crons.on(self._cron_changed)
        self._jobs.on(self._job_changed)

    def _cron_changed(self, change: Change[CronJob]) -> None:
        if change.kind == "deleted":
            self._written.forget(change.object.metadata.uid)
        self._queue.add(key_of(change.object))

    def _job_changed(self, change: Change[Job]) -> None:
        owner = controlled_by(change.object.metadata, CRON_JOBS)
        if owner is not None:
            self._queue.add((change.object.metadata.namespace, owner.name))

    async def run(self) -> None:
        await self._context.work(self.name, self._queue, self.reconcile, (self._crons, self._jobs))

    async def reconcile(self, key: Key) -> Outcome:
        cron = self._crons.get(*key)
        if cron is None or self._written.outdated(cron):
            return Done()
        jobs = tuple(owned(self._jobs, cron.metadata.uid))
        plan = decide(View(cron=cron, jobs=jobs, now=self._context.now()))
        return await self.apply(cron, plan)

    async def apply(self, cron: CronJob, plan: Plan) -> Outcome:
        told, status, refused = plan.told, plan.status, None
        for job in plan.clear:
            refused = await self._delete(cron, job) or refused
        for job in plan.replace:
            refused = await self._delete(cron, job) or refused
        if refused is not None:
            return Requeue(refused.message)
        if plan.create_for is not None:
            made = await self._create(cron, plan.create_for)
            if isinstance(made, Refused):
                self._tell(cron, Told("Warning", "FailedCreate", f"Error creating job: {made.message}"))
                return Requeue(made.message)
            gone = {job.metadata.uid for job in plan.replace}
            active = [*(ref for ref in status.active if ref.uid not in gone), _pointer(made)]
            status = msgspec.structs.replace(
                status,
                active=tuple(sorted(active, key=lambda ref: ref.name)),
                last_schedule_time=plan.create_for,
            )
        answer = await write_status(self._client, CRON_JOBS, cron, difference(cron.status, status), exactly=True)
        if isinstance(answer, Refused):
            return Done() if answer.not_found else Requeue(answer.message)
        if answer is not None:
            self._written.note(answer)
        for each in told:
            self._tell(cron, each)
        return Done() if plan.look_again_s is None else Retry(plan.look_again_s)

    async def _create(self, cron: CronJob, due: datetime) -> Job | Refused:
        body = job_body(cron, due)
        answer = await self._client.create(JOBS, body)
        if isinstance(answer, Refused) and answer.already_exists:
            live = await self._client.get(JOBS, body["metadata"]["name"], cron.metadata.namespace)
            if isinstance(live, Refused):
                return live
            owner = controlled_by(live.metadata, CRON_JOBS)
            return live if owner is not None and owner.uid == cron.metadata.uid else answer
        if not isinstance(answer, Refused):
            self._tell(cron, Told("Normal", "SuccessfulCreate", f"Created job {answer.metadata.name}"), answer)
        return answer

    async def _delete(self, cron: CronJob, job: Job) -> Refused | None:
        meta = job.metadata
        answer = await self._client.delete(JOBS, meta.name, meta.namespace, uid=meta.uid, propagation="Background")
        if isinstance(answer, Refused):
            return None if answer.not_found or answer.conflict else answer
        self._tell(cron, Told("Normal", "SuccessfulDelete", f"Deleted job {meta.name}"), job)
        return None

    def _tell(self, cron: CronJob, told: Told, about: Job | None = None) -> None:
        related = recorder.reference(JOBS, about) if about is not None else None
        regarding = recorder.reference(CRON_JOBS, cron)
        self._context.recorder.record(regarding, told.type, told.reason, told.message, related=related)
