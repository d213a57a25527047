"""This module holds the arguments of LoadAwareScheduling."""

from __future__ import annotations

import msgspec

from koord.api.config.field_error import FieldError, duration_at_least, each_within, one_of, within
from koord.api.config.scheduler.args import PluginArgs
from koord.api.marker import Duration
from koord.api.model import Model
from koord.api.resource_name import CPU, MEMORY
from koord.api.slo import AGGREGATIONS

DEFAULT_WEIGHTS = {CPU: 1, MEMORY: 1}
DEFAULT_THRESHOLDS = {CPU: 65, MEMORY: 95}
DEFAULT_SCALING_FACTORS = {CPU: 85, MEMORY: 70}


# What becomes of a pod when load alone keeps it off every node. Not in Koordinator, which always refuses.
REFUSE = "Refuse"
LEAST_LOADED = "LeastLoaded"
WHEN_ALL_HOT = (REFUSE, LEAST_LOADED)


class LoadAwareAggregatedArgs(Model, frozen=True, kw_only=True):
    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: Duration | None = None
    score_aggregation_type: str = ""
    score_aggregated_duration: Duration | None = None


class LoadAwareSchedulingArgs(PluginArgs, frozen=True, kw_only=True):
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
    errors = within("nodeMetricExpirationSeconds", args.node_metric_expiration_seconds, above=0)
    errors += each_within("resourceWeights", args.resource_weights, low=1, high=100)
    errors += within("dominantResourceWeight", args.dominant_resource_weight, low=0, high=100)
    errors += each_within("usageThresholds", args.usage_thresholds, low=0, high=100)
    errors += each_within("estimatedScalingFactors", args.estimated_scaling_factors, low=1, high=100)
    errors += one_of("whenAllHot", args.when_all_hot, WHEN_ALL_HOT)
    for name in args.resource_weights:
        if name not in args.estimated_scaling_factors:
            errors.append(FieldError(f"resourceWeights[{name}]", name, "must have an entry in estimatedScalingFactors"))
    return errors + _aggregated(args.aggregated)


def _aggregated(args: LoadAwareAggregatedArgs | None) -> list[FieldError]:
    if args is None:
        return []
    kinds = ("", *AGGREGATIONS)
    errors = each_within("aggregated.usageThresholds", args.usage_thresholds, low=0, high=100)
    errors += one_of("aggregated.usageAggregationType", args.usage_aggregation_type, kinds)
    errors += one_of("aggregated.scoreAggregationType", args.score_aggregation_type, kinds)
    errors += duration_at_least("aggregated.usageAggregatedDuration", args.usage_aggregated_duration)
    errors += duration_at_least("aggregated.scoreAggregatedDuration", args.score_aggregated_duration)
    return errors
