"""Decide how a node's koordlet collects and reports its load: the spec of its NodeMetric."""

from __future__ import annotations

from koord.api.config.slo.colocation import DEFAULT, ColocationStrategy
from koord.api.slo import MetricCollectPolicy, NodeMetricSpec


def decide_collection(strategy: ColocationStrategy) -> NodeMetricSpec:
    """Decide the collect policy. `strategy` is the node's own; while it does not enable co-location, the
    defaults apply.

    Upstream's rule; it looks at the node alone, so a node that is enabled collects as configured even where the
    cluster's switch is off and nothing is lent.
    """
    source = strategy if strategy.enable else DEFAULT
    policy = MetricCollectPolicy(
        aggregate_duration_seconds=source.metric_aggregate_duration_seconds,
        report_interval_seconds=source.metric_report_interval_seconds,
        node_aggregate_policy=source.metric_aggregate_policy,
        node_memory_collect_policy=source.metric_memory_collect_policy,
    )
    return NodeMetricSpec(metric_collect_policy=policy)
