"""This module holds the arguments of LowNodeLoad: which nodes are overloaded or underused, and how sure it must be."""

from __future__ import annotations

import msgspec

from koord.api.config.component import fill_empty, fill_none
from koord.api.config.descheduler import plugin_args
from koord.api.config.field_error import FieldError, duration_errors, range_errors, selector_errors
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.kubernetes.meta import LabelSelector
from koord.api.model import Model
from koord.api.schema_markers import Duration

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


class LowNodeLoadArgs(plugin_args.DeschedulerPluginArgs, frozen=True, kw_only=True):
    paused: bool | None = None
    dry_run: bool | None = None
    number_of_nodes: int | None = None
    node_metric_expiration_seconds: int | None = None
    evictable_namespaces: plugin_args.NamespaceFilter | None = None
    node_selector: LabelSelector | None = None
    pod_selectors: tuple[plugin_args.DeschedulerPodSelector, ...] = ()
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
    errors += plugin_args.validate_namespaces(args.evictable_namespaces, "evictableNamespaces")
    errors += selector_errors("nodeSelector", args.node_selector)
    errors += plugin_args.validate_pod_selectors(args.pod_selectors)
    errors += duration_errors("detectorCacheTimeout", args.detector_cache_timeout)
    # The top level is the first pool, and is named so.
    errors += _threshold_errors(args, "nodePools[0].")
    for index, pool in enumerate(args.node_pools, 1):
        errors += selector_errors(f"nodePools[{index}].nodeSelector", pool.node_selector)
        errors += _threshold_errors(pool, f"nodePools[{index}].")
    return errors


def _threshold_errors(given: LowNodeLoadArgs | NodePool, path: str) -> list[FieldError]:
    errors = plugin_args.validate_thresholds(
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
