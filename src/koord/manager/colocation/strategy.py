"""The co-location strategy of one node: the ConfigMap's, then the node's own annotation, then its labels.

Reading and completing the ConfigMap's part is left to the configuration; here every layer is laid over the one below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from koord.api.annotations import node_codecs
from koord.api.config.decode import decode_lenient
from koord.api.config.field_error import FieldError
from koord.api.config.slo import slo_documents
from koord.api.config.slo.defaults import overlay
from koord.api.koordinator.protocol import A_COLOCATION_STRATEGY
from koord.api.koordinator.slo import MetricCollectPolicy, NodeMetricSpec
from koord.values.selector import Selector

S = TypeVar("S")


class NodeStrategyLayer(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The strategy of the nodes that `selector` matches, complete: already merged over the cluster's."""

    name: str
    selector: Selector
    strategy: S


class LayeredStrategy(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    cluster: S
    nodes: tuple[NodeStrategyLayer[S], ...] = ()

    def matching_layer(self, labels: Mapping[str, str]) -> NodeStrategyLayer[S] | None:
        """Return the first node strategy that matches; it wins alone, whatever follows it."""
        return next((layer for layer in self.nodes if layer.selector.matches(labels)), None)

    def for_node(self, labels: Mapping[str, str]) -> S:
        layer = self.matching_layer(labels)
        return self.cluster if layer is None else layer.strategy


_LABEL_FIELDS = (
    ("cpu_reclaim_threshold_percent", node_codecs.cpu_reclaim_percent),
    ("memory_reclaim_threshold_percent", node_codecs.memory_reclaim_percent),
    ("mid_static_cpu_reserved_percent", node_codecs.mid_static_cpu_percent),
    ("mid_static_memory_reserved_percent", node_codecs.mid_static_memory_percent),
)


class ResolvedStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """A node's strategy, and the layers that it was made from."""

    strategy: slo_documents.ColocationStrategy
    cluster_enabled: bool
    layer: str | None = None  # the name of the node entry that matched
    annotated: bool = False
    labelled: tuple[str, ...] = ()  # the fields that labels set
    ignored: str = ""  # why the annotation has no effect

    @property
    def enabled(self) -> bool:
        """Return whether the node lends. Off for the cluster is off everywhere, whatever a node's own layers say."""
        return self.cluster_enabled and self.strategy.enable is True


def resolve_strategy(
    layers: LayeredStrategy[slo_documents.ColocationStrategy], labels: Mapping[str, str], annotations: Mapping[str, str]
) -> ResolvedStrategy:
    layer = layers.matching_layer(labels)
    strategy = layers.cluster if layer is None else layer.strategy
    ignored, annotated = "", False
    text = annotations.get(A_COLOCATION_STRATEGY)
    if text is not None:
        own = decode_lenient(text, slo_documents.ColocationStrategy)
        if isinstance(own, FieldError):
            ignored = f"{A_COLOCATION_STRATEGY}: {own}"
        else:
            strategy, annotated = overlay(strategy, own), True
    stated = {name: percent for name, ask in _LABEL_FIELDS if (percent := ask(labels)) is not None}
    if stated:
        strategy = msgspec.structs.replace(strategy, **stated)
    return ResolvedStrategy(
        strategy=strategy,
        cluster_enabled=layers.cluster.enable is True,
        layer=None if layer is None else layer.name,
        annotated=annotated,
        labelled=tuple(stated),
        ignored=ignored,
    )


class ColocationRules(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that decisions compute with: a resolved strategy with all defaults filled in."""

    cpu_reclaim_percent: int
    memory_reclaim_percent: int
    cpu_policy: str  # usage, maxUsageRequest
    memory_policy: str  # usage, request, maxUsageRequest
    degrade_minutes: int
    update_seconds: int
    diff_threshold: float
    mid_static: bool
    mid_cpu_percent: int
    mid_memory_percent: int
    mid_unallocated_percent: int
    mid_static_cpu_percent: int
    mid_static_memory_percent: int
    batch_cpu_percent: int | None
    batch_memory_percent: int | None


def colocation_rules(strategy: slo_documents.ColocationStrategy) -> ColocationRules:
    """Complete a strategy. Unknown policies act as usage; `request` is no policy of CPU."""
    full = overlay(slo_documents.DEFAULT_COLOCATION, strategy)
    cpu_policy = full.cpu_calculate_policy
    memory_policy = full.memory_calculate_policy
    return ColocationRules(
        cpu_reclaim_percent=full.cpu_reclaim_threshold_percent or 0,
        memory_reclaim_percent=full.memory_reclaim_threshold_percent or 0,
        cpu_policy=slo_documents.CALCULATE_BY_MAX_USAGE_REQUEST
        if cpu_policy == slo_documents.CALCULATE_BY_MAX_USAGE_REQUEST
        else slo_documents.CALCULATE_BY_USAGE,
        memory_policy=memory_policy
        if memory_policy in (slo_documents.CALCULATE_BY_REQUEST, slo_documents.CALCULATE_BY_MAX_USAGE_REQUEST)
        else slo_documents.CALCULATE_BY_USAGE,
        degrade_minutes=full.degrade_time_minutes or 0,
        update_seconds=full.update_time_threshold_seconds or 0,
        diff_threshold=full.resource_diff_threshold or 0.0,
        mid_static=full.mid_reclaim_mode == slo_documents.MID_RECLAIM_STATIC,
        mid_cpu_percent=full.mid_cpu_threshold_percent or 0,
        mid_memory_percent=full.mid_memory_threshold_percent or 0,
        mid_unallocated_percent=full.mid_unallocated_percent or 0,
        mid_static_cpu_percent=full.mid_static_cpu_reserved_percent or 0,
        mid_static_memory_percent=full.mid_static_memory_reserved_percent or 0,
        batch_cpu_percent=full.batch_cpu_threshold_percent,
        batch_memory_percent=full.batch_memory_threshold_percent,
    )


def decide_metric_collection(strategy: slo_documents.ColocationStrategy) -> NodeMetricSpec:
    """Decide the collect policy. `strategy` is the node's own; while it does not enable co-location, the defaults
    apply.

    Upstream's rule; it looks at the node alone, so a node that is enabled collects as configured even where the
    cluster's switch is off and nothing is lent.
    """
    source = strategy if strategy.enable else slo_documents.DEFAULT_COLOCATION
    policy = MetricCollectPolicy(
        aggregate_duration_seconds=source.metric_aggregate_duration_seconds,
        report_interval_seconds=source.metric_report_interval_seconds,
        node_aggregate_policy=source.metric_aggregate_policy,
        node_memory_collect_policy=source.metric_memory_collect_policy,
    )
    return NodeMetricSpec(metric_collect_policy=policy)
