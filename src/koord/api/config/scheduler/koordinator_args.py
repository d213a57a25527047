"""This module holds the arguments of Koordinator's scheduler plugins: Coscheduling, NodeNUMAResource, DeviceShare,
NodeResourcesFitPlus, ScarceResourceAvoidance, SchedulingHint, ElasticQuota, Reservation and LoadAwareScheduling.
"""

from __future__ import annotations

import msgspec
from msgspec import field

from koord.api.annotations.cpu_codecs import CPU_BIND_FULL_PCPUS, CPU_BIND_SPREAD_BY_PCPUS
from koord.api.annotations.gang_codecs import GANG_MATCH_POLICIES, ONCE_SATISFIED
from koord.api.config.component import fill_empty, fill_none
from koord.api.config.field_error import (
    FieldError,
    duration_errors,
    each_range_errors,
    enum_errors,
    range_errors,
    required_error,
)
from koord.api.config.scheduler.in_tree_args import (
    LEAST_ALLOCATED,
    LEAST_CPU_AND_MEMORY,
    MOST_ALLOCATED,
    ResourceWeight,
    SchedulerPluginArgs,
    ScoringStrategy,
    defaulted_strategy,
    validate_strategy,
)
from koord.api.koordinator import protocol
from koord.api.koordinator.resource_name import CPU, FPGA, GPU_MEMORY, GPU_MEMORY_RATIO, MEMORY, NPU_CORE, RDMA
from koord.api.koordinator.slo import AGGREGATIONS
from koord.api.model import Model, ResourceList
from koord.api.schema_markers import Duration
from koord.values.names import dns1123_subdomain
from koord.values.quantity import Quantity, QuantityError


class CoschedulingArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    default_timeout: Duration | None = None
    controller_workers: int | None = None
    skip_check_schedule_cycle: bool | None = None  # accepted for old files, without effect
    enable_preemption: bool | None = None
    aware_network_topology: bool | None = None
    default_match_policy: str | None = None


def defaulted_coscheduling(args: CoschedulingArgs) -> CoschedulingArgs:
    args = fill_empty(args, default_timeout="600s", default_match_policy=ONCE_SATISFIED)
    return fill_none(args, controller_workers=1, enable_preemption=False, aware_network_topology=False)


def validate_coscheduling(args: CoschedulingArgs) -> list[FieldError]:
    return [
        *duration_errors("defaultTimeout", args.default_timeout),
        *range_errors("controllerWorkers", args.controller_workers, low=1),
        *enum_errors("defaultMatchPolicy", args.default_match_policy, GANG_MATCH_POLICIES),
    ]


class NodeNUMAResourceArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    """NodeNUMAResourceArgs: an explicitly empty bind policy leaves LSE and LSR pods without their own unbound."""

    default_cpu_bind_policy: str | None = field(default=None, name="defaultCPUBindPolicy")
    scoring_strategy: ScoringStrategy | None = None
    numa_scoring_strategy: ScoringStrategy | None = None


def defaulted_numa(args: NodeNUMAResourceArgs) -> NodeNUMAResourceArgs:
    return msgspec.structs.replace(
        fill_none(args, default_cpu_bind_policy=CPU_BIND_FULL_PCPUS),
        scoring_strategy=defaulted_strategy(args.scoring_strategy, LEAST_CPU_AND_MEMORY),
        numa_scoring_strategy=defaulted_strategy(args.numa_scoring_strategy, LEAST_CPU_AND_MEMORY),
    )


def validate_numa(args: NodeNUMAResourceArgs) -> list[FieldError]:
    types = (LEAST_ALLOCATED, MOST_ALLOCATED)
    return [
        *enum_errors(
            "defaultCPUBindPolicy", args.default_cpu_bind_policy, ("", CPU_BIND_FULL_PCPUS, CPU_BIND_SPREAD_BY_PCPUS)
        ),
        *validate_strategy(args.scoring_strategy, "scoringStrategy", types),
        *validate_strategy(args.numa_scoring_strategy, "numaScoringStrategy", types),
    ]


DEVICE_SHARE_STRATEGY = ScoringStrategy(
    type=LEAST_ALLOCATED,
    resources=tuple(ResourceWeight(name=name, weight=1) for name in (GPU_MEMORY_RATIO, GPU_MEMORY, RDMA, FPGA)),
)


class GPUSharedResourceTemplatesConfig(Model, frozen=True, kw_only=True):
    config_map_namespace: str = ""
    config_map_name: str = ""
    matched_resources: tuple[str, ...] = ()


class UnsupportedGPUModel(Model, frozen=True, kw_only=True):
    vendor: str = ""
    model: str = ""


class DeviceShareArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    allocator: str = ""  # deprecated, without effect
    scoring_strategy: ScoringStrategy | None = None
    disable_device_numa_topology_alignment: bool = field(default=False, name="disableDeviceNUMATopologyAlignment")
    gpu_shared_resource_templates_config: GPUSharedResourceTemplatesConfig | None = None
    gpu_share_unsupported_models: tuple[UnsupportedGPUModel, ...] = ()


def defaulted_device_share(args: DeviceShareArgs) -> DeviceShareArgs:
    templates = args.gpu_shared_resource_templates_config or GPUSharedResourceTemplatesConfig()
    return msgspec.structs.replace(
        args,
        scoring_strategy=defaulted_strategy(args.scoring_strategy, DEVICE_SHARE_STRATEGY),
        gpu_shared_resource_templates_config=GPUSharedResourceTemplatesConfig(
            config_map_namespace=templates.config_map_namespace or protocol.NAMESPACE,
            config_map_name=templates.config_map_name or protocol.GPU_TEMPLATES_CONFIG_MAP,
            matched_resources=templates.matched_resources or (NPU_CORE,),
        ),
    )


def validate_device_share(args: DeviceShareArgs) -> list[FieldError]:
    return validate_strategy(args.scoring_strategy, "scoringStrategy", (LEAST_ALLOCATED, MOST_ALLOCATED))


class FitPlusResource(Model, frozen=True, kw_only=True):
    type: str = ""
    weight: int = 0


class NodeResourcesFitPlusArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    """NodeResourcesFitPlusArgs has no defaults, and upstream validates nothing: an unknown type scores 0."""

    resources: dict[str, FitPlusResource] = {}


class ScarceResourceAvoidanceArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    """ScarceResourceAvoidanceArgs names the resources that pods without need of them should keep away from."""

    resources: tuple[str, ...] = ()


class SchedulingHintArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    max_hint_nodes: int | None = None


def defaulted_scheduling_hint(args: SchedulingHintArgs) -> SchedulingHintArgs:
    return fill_none(args, max_hint_nodes=100)


def validate_scheduling_hint(args: SchedulingHintArgs) -> list[FieldError]:
    return range_errors("maxHintNodes", args.max_hint_nodes, above=0)


UNBOUNDED_QUOTA = (2**63 - 1) // 5  # room to add up groups without leaving int64


class QuotaHookPlugin(Model, frozen=True, kw_only=True):
    key: str = ""
    factory_key: str = ""
    factory_args: str = ""


class ElasticQuotaArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    delay_evict_time: Duration | None = None
    revoke_pod_interval: Duration | None = None
    default_quota_group_max: ResourceList = {}
    system_quota_group_max: ResourceList = {}
    quota_group_namespace: str = ""
    monitor_all_quotas: bool | None = None
    enable_check_parent_quota: bool | None = None
    enable_runtime_quota: bool | None = None
    enable_min_quota_scale: bool | None = None
    disable_default_quota_preemption: bool | None = None
    enable_queue_hint: bool | None = None
    quota_snapshot_update_interval: Duration | None = None
    hook_plugins: tuple[QuotaHookPlugin, ...] = ()


def defaulted_elastic_quota(args: ElasticQuotaArgs) -> ElasticQuotaArgs:
    unbounded: ResourceList = {CPU: str(UNBOUNDED_QUOTA), MEMORY: str(UNBOUNDED_QUOTA)}
    args = fill_empty(
        args,
        delay_evict_time="120s",
        revoke_pod_interval="1s",
        default_quota_group_max=unbounded,
        system_quota_group_max=unbounded,
        quota_group_namespace=protocol.NAMESPACE,
        quota_snapshot_update_interval="120s",
    )
    args = fill_none(args, monitor_all_quotas=False, enable_check_parent_quota=False, enable_queue_hint=False)
    return fill_none(
        args, enable_runtime_quota=True, enable_min_quota_scale=True, disable_default_quota_preemption=True
    )


def validate_elastic_quota(args: ElasticQuotaArgs) -> list[FieldError]:
    errors = duration_errors("delayEvictTime", args.delay_evict_time)
    errors += duration_errors("revokePodInterval", args.revoke_pod_interval)
    errors += duration_errors("quotaSnapshotUpdateInterval", args.quota_snapshot_update_interval)
    for group, maximum in (
        ("defaultQuotaGroupMax", args.default_quota_group_max),
        ("systemQuotaGroupMax", args.system_quota_group_max),
    ):
        for name, amount in maximum.items():
            errors += _amount(f"{group}[{name}]", amount)
    for index, hook in enumerate(args.hook_plugins):
        errors += [] if hook.key else [required_error(f"hookPlugins[{index}].key")]
        errors += [] if hook.factory_key else [required_error(f"hookPlugins[{index}].factoryKey")]
    return errors


def _amount(field: str, amount: str | int | float) -> list[FieldError]:
    try:
        parsed = Quantity.parse(amount)
    except QuantityError as error:
        return [FieldError(field, amount, str(error))]
    return [FieldError(field, amount, "must be 0 or greater")] if parsed.sign() < 0 else []


class PreAllocationConfig(Model, frozen=True, kw_only=True):
    enable_cluster_mode: bool = False
    cluster_label_key: str = ""
    cluster_priority_annotation_key: str = ""
    prefer_no_pre_allocated_pods: bool = False


class ReservationSelectorIndex(Model, frozen=True, kw_only=True):
    enabled: bool = False
    key_prefixes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class ReservationArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    enable_preemption: bool | None = None
    min_candidate_nodes_percentage: int | None = None
    min_candidate_nodes_absolute: int | None = None
    controller_workers: int | None = None
    gc_duration_seconds: int = 0
    gc_interval_seconds: int = 0
    resync_interval_seconds: int = 0
    disable_garbage_collection: bool = False
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    pre_allocation_config: PreAllocationConfig | None = None
    reservation_selector_index: ReservationSelectorIndex | None = None


def defaulted_reservation(args: ReservationArgs) -> ReservationArgs:
    pre = args.pre_allocation_config and fill_empty(
        args.pre_allocation_config,
        cluster_label_key=protocol.L_IS_PRE_ALLOCATABLE,
        cluster_priority_annotation_key=protocol.A_PRE_ALLOCATABLE_PRIORITY,
    )
    args = msgspec.structs.replace(args, pre_allocation_config=pre)
    args = fill_none(args, enable_preemption=False, controller_workers=1)
    args = fill_none(args, min_candidate_nodes_percentage=10, min_candidate_nodes_absolute=100)
    return fill_empty(args, gc_duration_seconds=86400, gc_interval_seconds=60, resync_interval_seconds=60)


def validate_reservation(args: ReservationArgs) -> list[FieldError]:
    errors = [
        *range_errors("minCandidateNodesPercentage", args.min_candidate_nodes_percentage, low=0, high=100),
        *range_errors("minCandidateNodesAbsolute", args.min_candidate_nodes_absolute, low=0),
        *range_errors("controllerWorkers", args.controller_workers, low=1),
        *range_errors("gcDurationSeconds", args.gc_duration_seconds, low=0),
        *range_errors("gcIntervalSeconds", args.gc_interval_seconds, low=0),
        *range_errors("resyncIntervalSeconds", args.resync_interval_seconds, low=0),
    ]
    for index, name in enumerate(args.ignored_resources):
        prefix, slash, _ = name.partition("/")
        if not slash or prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io"):
            rule = "must be an extended resource name, with a domain that is not Kubernetes' own"
            errors.append(FieldError(f"ignoredResources[{index}]", name, rule))
    for index, group in enumerate(args.ignored_resource_groups):
        if "/" in group or dns1123_subdomain(group) or group == "kubernetes.io" or group.endswith(".kubernetes.io"):
            rule = "must be a domain without '/', and not Kubernetes' own"
            errors.append(FieldError(f"ignoredResourceGroups[{index}]", group, rule))
    return errors


DEFAULT_WEIGHTS = {CPU: 1, MEMORY: 1}
DEFAULT_THRESHOLDS = {CPU: 65, MEMORY: 95}
DEFAULT_SCALING_FACTORS = {CPU: 85, MEMORY: 70}


# What becomes of a pod when load alone keeps it off every node. Not in Koordinator, which always refuses.
REFUSE = "Refuse"
LEAST_LOADED = "LeastLoaded"
WHEN_ALL_HOT_CHOICES = (REFUSE, LEAST_LOADED)


class LoadAwareAggregatedArgs(Model, frozen=True, kw_only=True):
    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: Duration | None = None
    score_aggregation_type: str = ""
    score_aggregated_duration: Duration | None = None


class LoadAwareSchedulingArgs(SchedulerPluginArgs, frozen=True, kw_only=True):
    filter_expired_node_metrics: bool | None = None
    enable_schedule_when_node_metrics_expired: bool | None = None
    node_metric_expiration_seconds: int | None = None
    resource_weights: dict[str, int] = {}
    dominant_resource_weight: int = 0
    usage_thresholds: dict[str, int] = {}
    prod_usage_thresholds: dict[str, int] = {}
    prod_usage_include_sys: bool = False
    score_according_prod_usage: bool | None = None
    estimator: str = ""
    estimated_scaling_factors: dict[str, int] = {}
    estimated_seconds_after_pod_scheduled: int | None = None
    estimated_seconds_after_initialized: int | None = None
    allow_customize_estimation: bool = False
    aggregated: LoadAwareAggregatedArgs | None = None
    supported_resources: tuple[str, ...] = ()
    # Koord's own, so it is never filled in: a file without it can be read by Koordinator too. None refuses.
    when_all_hot: str | None = None


def defaulted_load_aware(args: LoadAwareSchedulingArgs) -> LoadAwareSchedulingArgs:
    """Fill in defaults. A stated threshold of 0 disables its resource, so only an empty map is filled."""
    weights = args.resource_weights
    if not weights and args.dominant_resource_weight == 0:
        weights = DEFAULT_WEIGHTS
    args = fill_none(
        args,
        filter_expired_node_metrics=True,
        enable_schedule_when_node_metrics_expired=False,
        node_metric_expiration_seconds=180,
    )
    return msgspec.structs.replace(
        args,
        resource_weights=dict(weights),
        usage_thresholds=args.usage_thresholds or dict(DEFAULT_THRESHOLDS),
        estimated_scaling_factors={**DEFAULT_SCALING_FACTORS, **args.estimated_scaling_factors},
    )


def validate_load_aware(args: LoadAwareSchedulingArgs) -> list[FieldError]:
    """Validate defaulted arguments."""
    errors = range_errors("nodeMetricExpirationSeconds", args.node_metric_expiration_seconds, above=0)
    errors += each_range_errors("resourceWeights", args.resource_weights, low=1, high=100)
    errors += range_errors("dominantResourceWeight", args.dominant_resource_weight, low=0, high=100)
    errors += each_range_errors("usageThresholds", args.usage_thresholds, low=0, high=100)
    errors += each_range_errors("estimatedScalingFactors", args.estimated_scaling_factors, low=1, high=100)
    errors += enum_errors("whenAllHot", args.when_all_hot, WHEN_ALL_HOT_CHOICES)
    for name in args.resource_weights:
        if name not in args.estimated_scaling_factors:
            errors.append(FieldError(f"resourceWeights[{name}]", name, "must have an entry in estimatedScalingFactors"))
    return errors + _aggregated_errors(args.aggregated)


def _aggregated_errors(args: LoadAwareAggregatedArgs | None) -> list[FieldError]:
    if args is None:
        return []
    kinds = ("", *AGGREGATIONS)
    errors = each_range_errors("aggregated.usageThresholds", args.usage_thresholds, low=0, high=100)
    errors += enum_errors("aggregated.usageAggregationType", args.usage_aggregation_type, kinds)
    errors += enum_errors("aggregated.scoreAggregationType", args.score_aggregation_type, kinds)
    errors += duration_errors("aggregated.usageAggregatedDuration", args.usage_aggregated_duration)
    errors += duration_errors("aggregated.scoreAggregatedDuration", args.score_aggregated_duration)
    return errors
