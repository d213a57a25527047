"""This module holds batch/v1: Job and CronJob. Templates stay unstructured: objects are made from them."""

from __future__ import annotations

from datetime import datetime

from koord.api.kubernetes.meta import LabelSelector, Object
from koord.api.model import ObjectReference, RawTemplate, Submodel


class PodFailureOnExitCodes(Submodel, frozen=True, kw_only=True):
    container_name: str | None = None
    operator: str = ""  # In, NotIn
    values: tuple[int, ...] = ()


class PodFailureOnCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""


class PodFailurePolicyRule(Submodel, frozen=True, kw_only=True):
    action: str = ""  # FailJob, FailIndex, Ignore, Count
    on_exit_codes: PodFailureOnExitCodes | None = None
    on_pod_conditions: tuple[PodFailureOnCondition, ...] = ()


class PodFailurePolicy(Submodel, frozen=True, kw_only=True):
    rules: tuple[PodFailurePolicyRule, ...] = ()


class SuccessPolicyRule(Submodel, frozen=True, kw_only=True):
    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Submodel, frozen=True, kw_only=True):
    rules: tuple[SuccessPolicyRule, ...] = ()


class JobSpec(Submodel, frozen=True, kw_only=True):
    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    selector: LabelSelector | None = None
    manual_selector: bool | None = None
    template: RawTemplate = {}
    ttl_seconds_after_finished: int | None = None
    completion_mode: str | None = None  # NonIndexed, Indexed
    suspend: bool | None = None
    pod_replacement_policy: str | None = None  # TerminatingOrFailed, Failed
    managed_by: str | None = None


class JobCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    last_probe_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class UncountedTerminatedPods(Submodel, frozen=True, kw_only=True):
    """UncountedTerminatedPods holds the UIDs of finished pods that still have the job's finalizer."""

    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobStatus(Submodel, frozen=True, kw_only=True):
    conditions: tuple[JobCondition, ...] = ()
    start_time: datetime | None = None
    completion_time: datetime | None = None
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int | None = None
    ready: int | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None
    uncounted_terminated_pods: UncountedTerminatedPods | None = None


class Job(Object, frozen=True, kw_only=True):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class CronJobSpec(Submodel, frozen=True, kw_only=True):
    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = ""  # Allow, Forbid, Replace
    suspend: bool | None = None
    job_template: RawTemplate = {}
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(Submodel, frozen=True, kw_only=True):
    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: datetime | None = None
    last_successful_time: datetime | None = None


class CronJob(Object, frozen=True, kw_only=True):
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()
