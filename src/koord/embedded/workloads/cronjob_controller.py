"""The CronJob controller creates a Job at every scheduled time and prunes finished ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from koord.api.kubernetes.builtin_kinds import CRON_JOBS, JOBS
from koord.api.kubernetes.workload import CronJob, CronJobStatus, Job
from koord.api.model import ObjectReference
from koord.embedded.workloads import controller_ref
from koord.embedded.workloads.controller_context import (
    ControllerContext,
    WrittenVersions,
    seconds_until,
    status_patch,
    sync_result,
)
from koord.embedded.workloads.job_plan import COMPLETE, is_job_finished, job_finished_at
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError
from koord.values import duration, timestamp

SCHEDULED_ANNOTATION = "batch.kubernetes.io/cronjob-scheduled-timestamp"
DEFAULT_SUCCESSFUL_LIMIT = 3
DEFAULT_FAILED_LIMIT = 1
# Past the due time, so that a clock a hair behind does not look a moment early and then wait a whole period.
_DELTA_S = 0.1


class CronJobView(msgspec.Struct, frozen=True, kw_only=True):
    cron: CronJob
    jobs: tuple[Job, ...]  # that it controls
    now: datetime


class CronJobEvent(msgspec.Struct, frozen=True):
    type: recorder.EventType
    reason: str
    message: str


class CronJobPlan(msgspec.Struct, frozen=True, kw_only=True):
    status: CronJobStatus
    create_for: datetime | None = None
    replace: tuple[Job, ...] = ()  # end before the new one is made
    prune: tuple[Job, ...] = ()  # finished and past the history limits
    requeue_after_s: float | None = None
    events: tuple[CronJobEvent, ...] = ()


def job_succeeded(job: Job) -> bool:
    return any(found.type == COMPLETE and found.status == "True" for found in job.status.conditions)


def decide_cron_job(view: CronJobView) -> CronJobPlan:
    cron, now = view.cron, view.now
    status, told = _observed_status(view)
    clear = (
        *_beyond_history_limit(view, True, cron.spec.successful_jobs_history_limit, DEFAULT_SUCCESSFUL_LIMIT),
        # Fmt: skip
        *_beyond_history_limit(view, False, cron.spec.failed_jobs_history_limit, DEFAULT_FAILED_LIMIT),
    )
    plan = CronJobPlan(status=status, prune=clear, events=told)
    if cron.metadata.deletion_timestamp is not None or cron.spec.suspend:
        return plan
    try:
        schedule = CronSchedule(cron.spec.schedule, cron.spec.time_zone)
    except CronScheduleError as error:
        return _with_event(plan, CronJobEvent("Warning", "UnparseableSchedule", f"unparseable schedule: {error}"))
    coming = schedule.next(now)
    if coming is not None:
        plan = msgspec.structs.replace(plan, requeue_after_s=seconds_until(coming, now) + _DELTA_S)
    since = _earliest_missed(cron, now)
    due = schedule.latest_between(since, now)
    if due is None:
        return plan
    if schedule.missed_too_many(since, now):
        message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
        plan = _with_event(plan, CronJobEvent("Warning", "TooManyMissedTimes", message))
    return _plan_due_job(view, plan, due)


def _plan_due_job(view: CronJobView, plan: CronJobPlan, due: datetime) -> CronJobPlan:
    cron = view.cron
    deadline = cron.spec.starting_deadline_seconds
    if deadline is not None and due + timedelta(seconds=deadline) < view.now:
        message = f"Missed scheduled time to start a job: {timestamp.text(due)}"
        return _with_event(plan, CronJobEvent("Warning", "MissSchedule", message))
    name = job_name(cron, due)
    if any(job.metadata.name == name for job in view.jobs) or any(ref.name == name for ref in plan.status.active):
        return plan  # made already; only our memory of it was lost
    running = tuple(job for job in view.jobs if not is_job_finished(job))
    policy = cron.spec.concurrency_policy or "Allow"
    if policy == "Forbid" and plan.status.active:
        message = "Not starting job because prior execution is running and concurrency policy is Forbid"
        return _with_event(plan, CronJobEvent("Normal", "JobAlreadyActive", message))
    replace = running if policy == "Replace" else ()
    return msgspec.structs.replace(plan, create_for=due, replace=replace)


def _earliest_missed(cron: CronJob, now: datetime) -> datetime:
    """Return the time from which missed schedules count."""
    since = cron.status.last_schedule_time or cron.metadata.creation_timestamp or now
    deadline = cron.spec.starting_deadline_seconds
    if deadline is not None:
        since = max(since, now - timedelta(seconds=deadline))
    return since


def _observed_status(view: CronJobView) -> tuple[CronJobStatus, tuple[CronJobEvent, ...]]:
    """Return the status and events that follow from the Jobs themselves: which run, and when one last succeeded."""
    old, told = view.cron.status, []
    by_uid = {job.metadata.uid: job for job in view.jobs}
    active = [
        _object_reference(job)
        for job in view.jobs
        if not is_job_finished(job) and job.metadata.deletion_timestamp is None
    ]
    for ref in old.active:
        job = by_uid.get(ref.uid)
        if job is None:
            told.append(CronJobEvent("Normal", "MissingJob", f"Active job went missing: {ref.name}"))
        elif is_job_finished(job):
            end = "Complete" if job_succeeded(job) else "Failed"
            told.append(CronJobEvent("Normal", "SawCompletedJob", f"Saw completed job: {ref.name}, condition: {end}"))
    ends = [
        job.status.completion_time for job in view.jobs if job_succeeded(job) and job.status.completion_time is not None
    ]
    if old.last_successful_time is not None:
        ends.append(old.last_successful_time)
    status = CronJobStatus(
        active=tuple(sorted(active, key=lambda ref: ref.name)),
        last_schedule_time=old.last_schedule_time,
        last_successful_time=max(ends) if ends else None,
    )
    return status, tuple(told)


def _object_reference(job: Job) -> ObjectReference:
    meta = job.metadata
    return ObjectReference(
        api_version=JOBS.api_version, kind=JOBS.kind, namespace=meta.namespace, name=meta.name, uid=meta.uid
    )


def _beyond_history_limit(view: CronJobView, good: bool, limit: int | None, default: int) -> tuple[Job, ...]:
    ended = [job for job in view.jobs if is_job_finished(job) and job_succeeded(job) == good]
    ended.sort(key=lambda job: (job_finished_at(job) or view.now, job.metadata.name))
    excess = len(ended) - (default if limit is None else limit)
    return tuple(job for job in ended[: max(0, excess)] if job.metadata.deletion_timestamp is None)


def _with_event(plan: CronJobPlan, told: CronJobEvent) -> CronJobPlan:
    return msgspec.structs.replace(plan, events=(*plan.events, told))


def job_name(cron: CronJob, due: datetime) -> str:
    """Return the name of the Job of a scheduled time, always the same, so that it is created only once."""
    return f"{cron.metadata.name}-{int(due.timestamp()) // 60}"


def job_body(cron: CronJob, due: datetime) -> Unstructured:
    template = cron.spec.job_template
    given = template.get("metadata") or {}
    meta: Unstructured = {
        "name": job_name(cron, due),
        "namespace": cron.metadata.namespace,
        "annotations": {**(given.get("annotations") or {}), SCHEDULED_ANNOTATION: timestamp.text(due)},
        "ownerReferences": [controller_ref.controller_reference(CRON_JOBS, cron)],
    }
    if given.get("labels"):
        meta["labels"] = given["labels"]
    return {"metadata": meta, "spec": template.get("spec") or {}}


class CronJobController:
    name = "cronjob"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._crons = context.informers.for_resource(CRON_JOBS)
        self._jobs = context.informers.for_resource(JOBS)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._written_versions = WrittenVersions()
        controller_ref.index_by_controller(self._jobs)
        self._crons.add_event_handler(self._cron_changed)
        self._jobs.add_event_handler(self._job_changed)

    def _cron_changed(self, change: ObjectChange[CronJob]) -> None:
        if change.kind == "deleted":
            self._written_versions.forget(change.object.metadata.uid)
        self._queue.add(object_key(change.object))

    def _job_changed(self, change: ObjectChange[Job]) -> None:
        owner = controller_ref.controller_owner_of_kind(change.object.metadata, CRON_JOBS)
        if owner is not None:
            self._queue.add((change.object.metadata.namespace, owner.name))

    async def run(self) -> None:
        await self._context.run_controller(self.name, self._queue, self.reconcile, (self._crons, self._jobs))

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        cron = self._crons.get(*key)
        if cron is None or self._written_versions.is_stale(cron):
            return Done()
        jobs = tuple(controller_ref.owned_objects(self._jobs, cron.metadata.uid))
        plan = decide_cron_job(CronJobView(cron=cron, jobs=jobs, now=self._context.now()))
        return await self.apply(cron, plan)

    async def apply(self, cron: CronJob, plan: CronJobPlan) -> ReconcileResult:
        told, status, refused = plan.events, plan.status, None
        for job in plan.prune:
            refused = await self._delete(cron, job) or refused
        for job in plan.replace:
            refused = await self._delete(cron, job) or refused
        if refused is not None:
            return Requeue(refused.message)
        if plan.create_for is not None:
            made = await self._create(cron, plan.create_for)
            if isinstance(made, ApiError):
                self._record_event(cron, CronJobEvent("Warning", "FailedCreate", f"Error creating job: {made.message}"))
                return Requeue(made.message)
            gone = {job.metadata.uid for job in plan.replace}
            active = [*(ref for ref in status.active if ref.uid not in gone), _object_reference(made)]
            status = msgspec.structs.replace(
                status, active=tuple(sorted(active, key=lambda ref: ref.name)), last_schedule_time=plan.create_for
            )
        ended = await self._context.update_status(
            CRON_JOBS, cron, status_patch(cron.status, status), exactly=True, written=self._written_versions
        )
        if ended is not None:
            return ended
        for each in told:
            self._record_event(cron, each)
        return sync_result(None, plan.requeue_after_s)

    async def _create(self, cron: CronJob, due: datetime) -> Job | ApiError:
        body = job_body(cron, due)
        answer = await self._client.create(JOBS, body)
        if isinstance(answer, ApiError) and answer.already_exists:
            live = await self._client.get(JOBS, body["metadata"]["name"], cron.metadata.namespace)
            if isinstance(live, ApiError):
                return live
            owner = controller_ref.controller_owner_of_kind(live.metadata, CRON_JOBS)
            return live if owner is not None and owner.uid == cron.metadata.uid else answer
        if not isinstance(answer, ApiError):
            self._record_event(
                cron, CronJobEvent("Normal", "SuccessfulCreate", f"Created job {answer.metadata.name}"), answer
            )
        return answer

    async def _delete(self, cron: CronJob, job: Job) -> ApiError | None:
        meta = job.metadata
        answer = await self._client.delete(JOBS, meta.name, meta.namespace, uid=meta.uid, propagation="Background")
        if isinstance(answer, ApiError):
            return None if answer.not_found or answer.conflict else answer
        self._record_event(cron, CronJobEvent("Normal", "SuccessfulDelete", f"Deleted job {meta.name}"), job)
        return None

    def _record_event(self, cron: CronJob, told: CronJobEvent, about: Job | None = None) -> None:
        related = recorder.object_reference(JOBS, about) if about is not None else None
        regarding = recorder.object_reference(CRON_JOBS, cron)
        self._context.recorder.record(regarding, told.type, told.reason, told.message, related=related)


_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
# As many missed times are counted; more are only called many.
MAX_MISSED_COUNTED = 100
_FIELDS = 5
_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)  # parsing needs a moment to start from, whichever


class CronScheduleError(ValueError):
    """Raised when the text is not a schedule, or its time zone does not exist."""


class CronSchedule:
    def __init__(self, text: str, time_zone: str | None = None) -> None:
        self._zone: tzinfo = _time_zone(time_zone)
        self._every: timedelta | None = None
        self._cron = ""
        if text.startswith(_EVERY):
            self._every = _parse_interval(text[len(_EVERY) :])
            return
        fields = _MACROS.get(text.strip(), text).split()
        if len(fields) != _FIELDS:
            raise CronScheduleError(f"expected exactly {_FIELDS} fields, found {len(fields)}: {text!r}")
        self._cron = " ".join("*" if field == "?" else field for field in fields)
        try:
            CronSim(self._cron, _ANY_TIME)
        except CronSimError as error:
            raise CronScheduleError(f"{error}: {text!r}") from None

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the scheduled times strictly after `moment`, as long as there are any."""
        if self._every is not None:
            at = moment.replace(microsecond=0)
            while True:
                at += self._every
                yield at
        for found in CronSim(self._cron, moment.astimezone(self._zone)):
            yield found.astimezone(UTC)

    def next(self, moment: datetime) -> datetime | None:
        return next(self.after(moment), None)

    def latest_between(self, since: datetime, now: datetime) -> datetime | None:
        """Return the last scheduled time in (since, now], or None."""
        if self._every is not None:
            count = (now - since) // self._every
            return since.replace(microsecond=0) + count * self._every if count > 0 else None
        # Backwards from now: a long sleep may have missed a million of them.
        backwards = CronSim(self._cron, (now + timedelta(minutes=1)).astimezone(self._zone), reverse=True)
        for found in backwards:
            at: datetime = found.astimezone(UTC)
            if at <= now:
                return at if at > since else None
        return None

    def missed_too_many(self, since: datetime, now: datetime) -> bool:
        return sum(at <= now for at in islice(self.after(since), MAX_MISSED_COUNTED + 1)) > MAX_MISSED_COUNTED


def _time_zone(name: str | None) -> tzinfo:
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise CronScheduleError(f"unknown time zone {name!r}: {error}") from None


def _parse_interval(text: str) -> timedelta:
    try:
        whole = duration.parse(text) // duration.SECOND
    except duration.DurationError as error:
        raise CronScheduleError(f"{error}: {text!r}") from None
    return timedelta(seconds=max(1, whole))
