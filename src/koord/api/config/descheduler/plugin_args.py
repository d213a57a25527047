"""This module holds the arguments of the descheduler's plugins, and what all arguments share.

MigrationController is the evictor that moves pods through PodMigrationJobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from koord.api.config.component import fill_empty, fill_none
from koord.api.config.field_error import (
    FieldError,
    duplicate_errors,
    duration_errors,
    each_range_errors,
    enum_errors,
    range_errors,
    required_error,
    selector_errors,
)
from koord.api.koordinator.protocol import SCHEDULER
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.scheduling import EVICT_DIRECTLY, RESERVATION_FIRST
from koord.api.kubernetes.meta import DeleteOptions, LabelSelector
from koord.api.model import IntOrString, Model
from koord.api.schema_markers import Duration, never_omitted
from koord.values import int_or_string
from koord.values.go_format import parse_finite_float
from koord.values.names import dns1123_label

API_VERSION = "descheduler/v1alpha2"


class DeschedulerPluginArgs(Model, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""


class NamespaceFilter(Model, frozen=True, kw_only=True):
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class DeschedulerPodSelector(Model, frozen=True, kw_only=True):
    name: str = ""
    selector: LabelSelector | None = None


def validate_namespaces(given: NamespaceFilter | None, path: str) -> list[FieldError]:
    if given is None or not (given.include and given.exclude):
        return []
    return [FieldError(path, [*given.include, *given.exclude], "only one of Include/Exclude namespaces can be set")]


def validate_pod_selectors(given: tuple[DeschedulerPodSelector, ...], path: str = "podSelectors") -> list[FieldError]:
    return [e for i, pod in enumerate(given) for e in selector_errors(f"{path}[{i}].selector", pod.selector)]


def upper_bound_errors(
    lower: Mapping[str, float], upper: Mapping[str, float], path: str, rule: str
) -> list[FieldError]:
    """Return an error for each value of `lower` above the one in `upper`; resources in only one are not compared."""
    return [
        FieldError(f"{path}[{name}]", value, f"{rule} ({upper[name]:g})")
        for name, value in lower.items()
        if name in upper and value > upper[name]
    ]


def validate_thresholds(
    high: Mapping[str, float],
    low: Mapping[str, float],
    prod_high: Mapping[str, float],
    prod_low: Mapping[str, float],
    path: str = "",
) -> list[FieldError]:
    """Validate the four thresholds of load-based plugins against 0 and against each other."""
    named = {
        "highThresholds": high,
        "lowThresholds": low,
        "prodHighThresholds": prod_high,
        "prodLowThresholds": prod_low,
    }
    errors = [e for name, given in named.items() for e in each_range_errors(f"{path}{name}", given, low=0)]
    at_most = "percentage must be less than or equal to"
    errors += upper_bound_errors(low, high, f"{path}lowThresholds", f"low {at_most} highThresholds")
    # In the words of upstream, which names the field with a capital here.
    above = "node percentage must be greater than or equal to prodHighThresholds"
    errors += upper_bound_errors(prod_high, high, f"{path}ProdHighThresholds", above)
    errors += upper_bound_errors(prod_low, prod_high, f"{path}prodLowThresholds", f"low {at_most} prodHighThresholds")
    return errors


BIN_PACK_CALCULATE_ONLY = "CalculateOnly"
BIN_PACK_EVICT_DIRECTLY = "EvictDirectly"


class ScaleDownBinPackArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    """ScaleDownBinPackArgs says which pods should go first when a workload shrinks."""

    paused: bool | None = None
    strategy: str = ""
    max_pods_to_evict: int | None = None
    node_selector: LabelSelector | None = None
    pod_selectors: tuple[DeschedulerPodSelector, ...] = ()
    evictable_namespaces: NamespaceFilter | None = None
    resources: tuple[str, ...] = ()
    resource_weights: dict[str, float] = {}


def defaulted_bin_pack(args: ScaleDownBinPackArgs) -> ScaleDownBinPackArgs:
    resources = args.resources or (CPU, MEMORY)
    return msgspec.structs.replace(
        args,
        paused=args.paused or False,
        strategy=args.strategy or BIN_PACK_CALCULATE_ONLY,
        resources=resources,
        resource_weights={**dict.fromkeys(resources, 1.0), **args.resource_weights},
    )


def validate_bin_pack(args: ScaleDownBinPackArgs) -> list[FieldError]:
    errors = enum_errors("strategy", args.strategy, (BIN_PACK_CALCULATE_ONLY, BIN_PACK_EVICT_DIRECTLY))
    if args.strategy == BIN_PACK_EVICT_DIRECTLY and (args.max_pods_to_evict or 0) <= 0:
        rule = "must be greater than 0 with strategy EvictDirectly"
        errors.append(FieldError("maxPodsToEvict", args.max_pods_to_evict, rule))
    errors += selector_errors("nodeSelector", args.node_selector)
    errors += validate_pod_selectors(args.pod_selectors)
    errors += validate_namespaces(args.evictable_namespaces, "evictableNamespaces")
    errors += [required_error(f"resources[{i}]") for i, name in enumerate(args.resources) if not name]
    errors += duplicate_errors("resources", args.resources)
    for name, weight in args.resource_weights.items():
        if not (math.isfinite(weight) and weight > 0):
            errors.append(FieldError(f"resourceWeights[{name}]", weight, "must be a finite number greater than 0"))
    return errors


CUSTOM_PRIORITY_BEST_EFFORT = "BestEffort"
CUSTOM_PRIORITY_DRAIN_NODE = "DrainNode"


class PriorityLevel(Model, frozen=True, kw_only=True):
    """PriorityLevel is a level of nodes. The two thresholds are part of the shape and without effect."""

    name: str = ""
    node_selector: LabelSelector | None = None
    keep_threshold: dict[str, float] = {}
    reject_threshold: dict[str, float] = {}


class CustomPriorityArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    """CustomPriorityArgs lists levels of nodes, expensive first, off which pods are moved."""

    paused: bool | None = None
    dry_run: bool | None = None
    evictable_namespaces: NamespaceFilter | None = None
    node_selector: LabelSelector | None = None
    pod_selectors: tuple[DeschedulerPodSelector, ...] = ()
    node_fit: bool | None = None
    eviction_order: tuple[PriorityLevel, ...] = ()
    mode: str = ""
    auto_cordon: bool | None = None


def defaulted_custom_priority(args: CustomPriorityArgs) -> CustomPriorityArgs:
    args = fill_none(args, paused=False, dry_run=False, node_fit=True, auto_cordon=False)
    return fill_empty(args, mode=CUSTOM_PRIORITY_BEST_EFFORT)


def validate_custom_priority(args: CustomPriorityArgs) -> list[FieldError]:
    errors = validate_namespaces(args.evictable_namespaces, "evictableNamespaces")
    errors += selector_errors("nodeSelector", args.node_selector)
    errors += enum_errors("mode", args.mode, (CUSTOM_PRIORITY_BEST_EFFORT, CUSTOM_PRIORITY_DRAIN_NODE))
    for index, pod in enumerate(args.pod_selectors):
        errors += _name_errors(f"podSelectors[{index}].name", pod.name)
        errors += selector_errors(f"podSelectors[{index}].selector", pod.selector)
    if len(args.eviction_order) < 2:
        errors.append(FieldError("evictionOrder", len(args.eviction_order), "must have at least 2 levels"))
    errors += duplicate_errors("evictionOrder", (level.name for level in args.eviction_order))
    for index, level in enumerate(args.eviction_order):
        here = f"evictionOrder[{index}]"
        errors += _name_errors(f"{here}.name", level.name)
        errors += [required_error(f"{here}.nodeSelector")] if level.node_selector is None else []
        errors += selector_errors(f"{here}.nodeSelector", level.node_selector)
        errors += each_range_errors(f"{here}.keepThreshold", level.keep_threshold, low=0, high=100)
        errors += each_range_errors(f"{here}.rejectThreshold", level.reject_threshold, low=0, high=100)
    return errors


def _name_errors(field: str, name: str) -> list[FieldError]:
    if not name:
        return [required_error(field)]
    return [FieldError(field, name, why) for why in dns1123_label(name)]


class FragmentationAwareArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    """FragmentationAwareArgs says how uneven a node's allocation may be before a pod is moved off it."""

    paused: bool | None = None
    dry_run: bool | None = None
    node_selector: LabelSelector | None = None
    evictable_namespaces: NamespaceFilter | None = None
    pod_selectors: tuple[DeschedulerPodSelector, ...] = ()
    node_fit: bool | None = None
    resources: tuple[str, ...] = ()
    imbalance_threshold: float | None = None
    min_improvement_threshold: float | None = None


def defaulted_fragmentation(args: FragmentationAwareArgs) -> FragmentationAwareArgs:
    args = fill_none(args, paused=False, dry_run=False, node_fit=True)
    args = fill_none(args, imbalance_threshold=0.15, min_improvement_threshold=0.02)
    return fill_empty(args, resources=(CPU, MEMORY))


def validate_fragmentation(args: FragmentationAwareArgs) -> list[FieldError]:
    return [
        *selector_errors("nodeSelector", args.node_selector),
        *validate_namespaces(args.evictable_namespaces, "evictableNamespaces"),
        *validate_pod_selectors(args.pod_selectors),
        *(required_error(f"resources[{i}]") for i, name in enumerate(args.resources) if not name),
        *duplicate_errors("resources", args.resources),
        *range_errors("imbalanceThreshold", args.imbalance_threshold, low=0),
        *range_errors("minImprovementThreshold", args.min_improvement_threshold, low=0),
    ]


DEFAULT_NODE_POOL = "__default_node_pool__"


class AnomalyCondition(Model, frozen=True, kw_only=True):
    timeout: Duration | None = None
    consecutive_abnormalities: int = 0
    consecutive_normalities: int = 0


class NodePool(Model, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None
    use_deviation_thresholds: bool = False
    high_thresholds: dict[str, float] = {}
    low_thresholds: dict[str, float] = {}
    prod_high_thresholds: dict[str, float] = {}
    prod_low_thresholds: dict[str, float] = {}
    resource_weights: dict[str, int] = {}
    anomaly_condition: AnomalyCondition | None = None


class LowNodeLoadArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    paused: bool | None = None
    dry_run: bool | None = None
    number_of_nodes: int | None = None
    node_metric_expiration_seconds: int | None = None
    evictable_namespaces: NamespaceFilter | None = None
    node_selector: LabelSelector | None = None
    pod_selectors: tuple[DeschedulerPodSelector, ...] = ()
    node_fit: bool | None = None
    use_deviation_thresholds: bool | None = None
    high_thresholds: dict[str, float] = {}
    low_thresholds: dict[str, float] = {}
    prod_high_thresholds: dict[str, float] = {}
    prod_low_thresholds: dict[str, float] = {}
    resource_weights: dict[str, int] = {}
    anomaly_condition: AnomalyCondition | None = None
    detector_cache_timeout: Duration | None = None
    node_pools: tuple[NodePool, ...] = ()


def defaulted(args: LowNodeLoadArgs) -> LowNodeLoadArgs:
    anomaly = _anomaly(args.anomaly_condition)
    made = msgspec.structs.replace(args, resource_weights=_weights(args), anomaly_condition=anomaly)
    made = fill_none(made, paused=False, dry_run=False, node_fit=True, use_deviation_thresholds=False)
    made = fill_none(made, number_of_nodes=0, node_metric_expiration_seconds=180)
    made = fill_empty(made, detector_cache_timeout="5m")
    return msgspec.structs.replace(made, node_pools=tuple(_pool(pool, made, anomaly) for pool in args.node_pools))


def _weights(args: LowNodeLoadArgs) -> dict[str, int]:
    """Return weight 1 for cpu, memory and every resource with a threshold, unless a positive weight is given."""
    named = {CPU, MEMORY, *args.high_thresholds, *args.low_thresholds}
    ones = {name: 1 for name in sorted(named) if args.resource_weights.get(name, 0) <= 0}
    return {**args.resource_weights, **ones}


def _anomaly(given: AnomalyCondition | None) -> AnomalyCondition:
    """Fill in an anomaly condition.

    Only the first counter of a given condition that is zero is filled in, as upstream does; validation reports
    the other. An omitted timeout stays omitted: the detector has its own.
    """
    if given is None:
        return AnomalyCondition(timeout="1m", consecutive_abnormalities=5, consecutive_normalities=3)
    if not given.consecutive_abnormalities:
        # Below zero, so that a second look does not fill in what the first one left out.
        left_out = given.consecutive_normalities or -1
        return msgspec.structs.replace(given, consecutive_abnormalities=5, consecutive_normalities=left_out)
    return fill_empty(given, consecutive_normalities=3)


def _pool(pool: NodePool, args: LowNodeLoadArgs, anomaly: AnomalyCondition) -> NodePool:
    """Fill in a pool from the top level, except for deviation, which each pool states for itself."""
    own = pool.anomaly_condition
    return msgspec.structs.replace(
        pool,
        high_thresholds=pool.high_thresholds or args.high_thresholds,
        low_thresholds=pool.low_thresholds or args.low_thresholds,
        prod_high_thresholds=pool.prod_high_thresholds or args.prod_high_thresholds,
        prod_low_thresholds=pool.prod_low_thresholds or args.prod_low_thresholds,
        resource_weights=pool.resource_weights or args.resource_weights,
        anomaly_condition=anomaly
        if own is None
        else AnomalyCondition(
            timeout=own.timeout or anomaly.timeout,
            consecutive_abnormalities=own.consecutive_abnormalities or anomaly.consecutive_abnormalities,
            consecutive_normalities=own.consecutive_normalities or anomaly.consecutive_normalities,
        ),
    )


def validate(args: LowNodeLoadArgs) -> list[FieldError]:
    """Validate defaulted arguments."""
    errors = range_errors("numberOfNodes", args.number_of_nodes, low=0)
    errors += range_errors("nodeMetricExpirationSeconds", args.node_metric_expiration_seconds, above=0)
    errors += validate_namespaces(args.evictable_namespaces, "evictableNamespaces")
    errors += selector_errors("nodeSelector", args.node_selector)
    errors += validate_pod_selectors(args.pod_selectors)
    errors += duration_errors("detectorCacheTimeout", args.detector_cache_timeout)
    # The top level is the first pool, and is named so.
    errors += _threshold_errors(args, "nodePools[0].")
    for index, pool in enumerate(args.node_pools, 1):
        errors += selector_errors(f"nodePools[{index}].nodeSelector", pool.node_selector)
        errors += _threshold_errors(pool, f"nodePools[{index}].")
    return errors


def _threshold_errors(given: LowNodeLoadArgs | NodePool, path: str) -> list[FieldError]:
    errors = validate_thresholds(
        given.high_thresholds, given.low_thresholds, given.prod_high_thresholds, given.prod_low_thresholds, path
    )
    condition = given.anomaly_condition
    if condition is not None:
        here = f"{path}anomalyDetectionThresholds"  # upstream's name for anomalyCondition in messages
        for name, count in (
            ("consecutiveAbnormalities", condition.consecutive_abnormalities),
            ("consecutiveNormalities", condition.consecutive_normalities),
        ):
            if count <= 0:
                errors.append(FieldError(here, count, f"{name} must be greater than 0 (in anomalyCondition)"))
        errors += duration_errors(f"{here}.timeout", condition.timeout)
    return errors


EVICTION = "Eviction"
DELETE = "Delete"
SOFT_EVICTION = "SoftEviction"
EVICTION_POLICIES = (EVICTION, DELETE, SOFT_EVICTION)

LIMITER_WORKLOAD = "workload"
LIMITER_NAMESPACE = "namespace"

EVICTION_GATES = (
    *("MaxUnavailablePerWorkload", "MaxMigratingPerWorkload", "MaxMigratingPerNode", "MaxMigratingPerNamespace"),
    *("MaxMigratingGlobally", "ExpectedReplicas", "PVC", "BarePods", "LocalStorage", "SystemCritical"),
    *("PriorityThreshold", "LabelSelector", "Namespaces", "NodeFit"),
)


class PriorityThreshold(Model, frozen=True, kw_only=True):
    value: int | None = None
    name: str = ""


class ObjectLimiter(Model, frozen=True, kw_only=True):
    duration: Duration = ""
    max_migrating: IntOrString | None = None
    burst: int = 0


class ArbitrationArgs(Model, frozen=True, kw_only=True):
    enabled: bool = False
    interval: Duration | None = None


class MigrationControllerArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    dry_run: bool = False
    max_concurrent_reconciles: int | None = None
    evict_failed_bare_pods: bool = never_omitted(False)
    evict_all_bare_pods: bool = never_omitted(False)
    evict_local_storage_pods: bool = never_omitted(False)
    evict_system_critical_pods: bool = never_omitted(False)
    ignore_pvc_pods: bool = never_omitted(False)
    priority_threshold: PriorityThreshold | None = None
    label_selector: LabelSelector | None = None
    namespaces: NamespaceFilter | None = None
    node_fit: bool = False
    node_selector: str = ""  # text, not an object
    skip_eviction_gates: tuple[str, ...] = ()
    max_migrating_globally: int | None = None
    max_migrating_per_namespace: int | None = None
    max_migrating_per_node: int | None = None
    max_migrating_per_workload: IntOrString | None = None
    max_unavailable_per_workload: IntOrString | None = None
    skip_check_expected_replicas: bool | None = None
    object_limiters: dict[str, ObjectLimiter] = {}
    default_job_mode: str = ""
    default_job_ttl: Duration | None = msgspec.field(default=None, name="defaultJobTTL")
    scheduler_names: tuple[str, ...] = ()
    evict_qps: float | str | None = msgspec.field(default=None, name="evictQPS")
    evict_burst: int | None = None
    eviction_policy: str = ""
    default_delete_options: DeleteOptions | None = None
    arbitration_args: ArbitrationArgs | None = None


def defaulted_migration(args: MigrationControllerArgs) -> MigrationControllerArgs:
    """Fill in defaults. Arbitration that is given is disabled unless it says otherwise; omitted, enabled."""
    arbitration = fill_empty(args.arbitration_args or ArbitrationArgs(enabled=True), interval="500ms")
    args = msgspec.structs.replace(args, arbitration_args=arbitration)
    args = fill_none(args, max_concurrent_reconciles=1, max_migrating_per_node=2, evict_qps=10.0, evict_burst=1)
    return fill_empty(
        args,
        object_limiters={LIMITER_WORKLOAD: ObjectLimiter(duration="5m")},
        default_job_mode=RESERVATION_FIRST,
        default_job_ttl="5m",
        scheduler_names=(SCHEDULER,),
        eviction_policy=EVICTION,
    )


def evict_qps(args: MigrationControllerArgs) -> float:
    """Return the rate as a number; text that is none counts as 0, which validation then refuses."""
    given = args.evict_qps
    if isinstance(given, str):
        return parse_finite_float(given) or 0.0
    return 0.0 if given is None else float(given)


def validate_migration(args: MigrationControllerArgs) -> list[FieldError]:
    """Validate defaulted arguments."""
    errors = range_errors("maxConcurrentReconciles", args.max_concurrent_reconciles, low=1)
    errors += range_errors("maxMigratingGlobally", args.max_migrating_globally, low=0)
    errors += range_errors("maxMigratingPerNamespace", args.max_migrating_per_namespace, low=0)
    errors += range_errors("maxMigratingPerNode", args.max_migrating_per_node, low=0)
    errors += _count("maxMigratingPerWorkload", args.max_migrating_per_workload)
    errors += _count("maxUnavailablePerWorkload", args.max_unavailable_per_workload)
    errors += [
        msgspec.structs.replace(error, rule="defaultJobTTL should be positive or zero")
        for error in duration_errors("defaultJobTTL", args.default_job_ttl)
    ]
    errors += range_errors("evictBurst", args.evict_burst, above=0)
    if evict_qps(args) <= 0:
        errors.append(FieldError("evictQPS", args.evict_qps, "evictQPS must be greater than 0"))
    errors += enum_errors("defaultJobMode", args.default_job_mode, (RESERVATION_FIRST, EVICT_DIRECTLY))
    errors += enum_errors("evictionPolicy", args.eviction_policy, EVICTION_POLICIES)
    errors += validate_namespaces(args.namespaces, "namespaces")
    errors += selector_errors("labelSelector", args.label_selector)
    for index, gate in enumerate(args.skip_eviction_gates):
        if gate not in EVICTION_GATES:
            rule = f"unknown eviction gate; known are {', '.join(EVICTION_GATES)}"
            errors.append(FieldError(f"skipEvictionGates[{index}]", gate, rule))
    for kind, limiter in args.object_limiters.items():
        errors += enum_errors("objectLimiters", kind, (LIMITER_WORKLOAD, LIMITER_NAMESPACE))
        errors += duration_errors(f"objectLimiters[{kind}].duration", limiter.duration or None)
        errors += _count(f"objectLimiters[{kind}].maxMigrating", limiter.max_migrating)
    if args.arbitration_args is not None:
        errors += duration_errors("arbitrationArgs.interval", args.arbitration_args.interval)
    return errors


def _count(field: str, value: IntOrString | None) -> list[FieldError]:
    return [] if value is None else [FieldError(field, value, why) for why in int_or_string.refusals(value)]
