"""This module holds the workload kinds of apps/v1 and batch/v1, and HorizontalPodAutoscaler of autoscaling/v2 as far
as programs here read it. Templates stay unstructured: objects are made from them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from koord.api.kubernetes.meta import Condition, LabelSelector, Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import IntOrString, LegacyCondition, ObjectReference, QuantityText, RawTemplate, Submodel
from koord.api.schema_markers import REQUIRED, never_omitted


class RollingUpdateDeployment(Submodel, frozen=True, kw_only=True):
    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DeploymentStrategy(Submodel, frozen=True, kw_only=True):
    type: str = ""  # RollingUpdate, Recreate
    rolling_update: RollingUpdateDeployment | None = None


class DeploymentSpec(Submodel, frozen=True, kw_only=True):
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: RawTemplate = {}
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class DeploymentCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    last_update_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class DeploymentStatus(Submodel, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    conditions: tuple[DeploymentCondition, ...] = ()
    collision_count: int | None = None


class Deployment(Object, frozen=True, kw_only=True):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(Submodel, frozen=True, kw_only=True):
    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: LabelSelector | None = None
    template: RawTemplate = {}


class ReplicaSetStatus(Submodel, frozen=True, kw_only=True):
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    observed_generation: int = 0
    conditions: tuple[LegacyCondition, ...] = ()


class ReplicaSet(Object, frozen=True, kw_only=True):
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class RollingUpdateStatefulSet(Submodel, frozen=True, kw_only=True):
    partition: int | None = None
    max_unavailable: IntOrString | None = None


class StatefulSetUpdateStrategy(Submodel, frozen=True, kw_only=True):
    type: str = ""  # RollingUpdate, OnDelete
    rolling_update: RollingUpdateStatefulSet | None = None


class StatefulSetClaimRetentionPolicy(Submodel, frozen=True, kw_only=True):
    when_deleted: str = ""  # Retain, Delete
    when_scaled: str = ""


class StatefulSetOrdinals(Submodel, frozen=True, kw_only=True):
    start: int = 0


class StatefulSetSpec(Submodel, frozen=True, kw_only=True):
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: RawTemplate = {}
    volume_claim_templates: tuple[RawTemplate, ...] = ()
    service_name: str = ""
    pod_management_policy: str = ""  # OrderedReady, Parallel
    update_strategy: StatefulSetUpdateStrategy = StatefulSetUpdateStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: StatefulSetClaimRetentionPolicy | None = None
    ordinals: StatefulSetOrdinals | None = None


class StatefulSetStatus(Submodel, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None
    conditions: tuple[LegacyCondition, ...] = ()


class StatefulSet(Object, frozen=True, kw_only=True):
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class RollingUpdateDaemonSet(Submodel, frozen=True, kw_only=True):
    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DaemonSetUpdateStrategy(Submodel, frozen=True, kw_only=True):
    type: str = ""  # RollingUpdate, OnDelete
    rolling_update: RollingUpdateDaemonSet | None = None


class DaemonSetSpec(Submodel, frozen=True, kw_only=True):
    selector: LabelSelector | None = None
    template: RawTemplate = {}
    update_strategy: DaemonSetUpdateStrategy = DaemonSetUpdateStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSetStatus(Submodel, frozen=True, kw_only=True):
    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    observed_generation: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    collision_count: int | None = None
    conditions: tuple[LegacyCondition, ...] = ()


class DaemonSet(Object, frozen=True, kw_only=True):
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(Object, frozen=True, kw_only=True):
    """ControllerRevision holds a patch in `data` that restores the owner's template."""

    data: dict[str, Any] | None = None
    revision: int = 0


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


class CrossVersionObjectReference(Submodel, frozen=True, kw_only=True):
    kind: Annotated[str, REQUIRED] = never_omitted("")
    name: Annotated[str, REQUIRED] = never_omitted("")
    api_version: str = ""


class MetricTarget(Submodel, frozen=True, kw_only=True):
    type: str = ""  # Utilization, AverageValue, Value
    average_utilization: int | None = None  # percent of requests
    average_value: QuantityText | None = None


class ResourceMetricSource(Submodel, frozen=True, kw_only=True):
    name: str = ""
    target: MetricTarget = MetricTarget()


class MetricSpec(Submodel, frozen=True, kw_only=True):
    type: str = ""  # Resource; ContainerResource, Pods, Object and External need metrics that nobody here has
    resource: ResourceMetricSource | None = None


class ScalingPolicy(Submodel, frozen=True, kw_only=True):
    type: str = ""  # Pods, Percent
    value: int = 0
    period_seconds: int = 0


class ScalingRules(Submodel, frozen=True, kw_only=True):
    stabilization_window_seconds: int | None = None
    select_policy: str = "Max"  # Max, Min, Disabled
    policies: tuple[ScalingPolicy, ...] = ()


class ScalingBehavior(Submodel, frozen=True, kw_only=True):
    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None


class HorizontalPodAutoscalerSpec(Submodel, frozen=True, kw_only=True):
    scale_target_ref: CrossVersionObjectReference = CrossVersionObjectReference()
    min_replicas: int = 1
    max_replicas: int = 0
    metrics: tuple[MetricSpec, ...] = ()
    behavior: ScalingBehavior | None = None


class HorizontalPodAutoscalerStatus(Submodel, frozen=True, kw_only=True):
    observed_generation: int = 0
    last_scale_time: datetime | None = None
    current_replicas: int = 0
    desired_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class HorizontalPodAutoscaler(Object, frozen=True, kw_only=True):
    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()


HORIZONTAL_POD_AUTOSCALERS = Resource.named_like_model(
    "autoscaling",
    "v2",
    HorizontalPodAutoscaler,
    "horizontalpodautoscalers",
    ("hpa",),
    namespaced=True,
    status=True,
)
