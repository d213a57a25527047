"""This module holds the arguments of LoadAwareScheduling."""

from __future__ import annotations

import msgspec

from koord.api.config.field_error import FieldError, duration_errors, each_range_errors, enum_errors, range_errors
from koord.api.config.scheduler.plugin_args import SchedulerPluginArgs
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.slo import AGGREGATIONS
from koord.api.model import Model
from koord.api.schema_markers import Duration

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


def defaulted(args: LoadAwareSchedulingArgs) -> LoadAwareSchedulingArgs:
    """Fill in defaults. A stated threshold of 0 disables its resource, so only an empty map is filled."""
    weights = args.resource_weights
    if not weights and args.dominant_resource_weight == 0:
        weights = DEFAULT_WEIGHTS
    expiry = args.node_metric_expiration_seconds
    return msgspec.structs.replace(
        args,
        filter_expired_node_metrics=True
        if args.filter_expired_node_metrics is None
        else args.filter_expired_node_metrics,
        enable_schedule_when_node_metrics_expired=args.enable_schedule_when_node_metrics_expired or False,
        node_metric_expiration_seconds=180 if expiry is None else expiry,
        resource_weights=dict(weights),
        usage_thresholds=args.usage_thresholds or dict(DEFAULT_THRESHOLDS),
        estimated_scaling_factors={**DEFAULT_SCALING_FACTORS, **args.estimated_scaling_factors},
    )


def validate(args: LoadAwareSchedulingArgs) -> list[FieldError]:
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
