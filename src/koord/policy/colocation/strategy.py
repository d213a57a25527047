"""Resolve the co-location strategy of one node."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import reclaim_ratio
from koord.api.config.field_error import FieldError
from koord.api.config.lenient import read
from koord.api.config.slo.colocation import DEFAULT, MAX_USAGE_REQUEST, REQUEST, STATIC, USAGE, ColocationStrategy
from koord.api.config.slo.overlay import overlay
from koord.api.protocol import A_COLOCATION_STRATEGY
from koord.policy.layers import Layers

_LABELS = (
    ("cpu_reclaim_threshold_percent", reclaim_ratio.cpu_reclaim_percent),
    ("memory_reclaim_threshold_percent", reclaim_ratio.memory_reclaim_percent),
    ("mid_static_cpu_reserved_percent", reclaim_ratio.mid_static_cpu_percent),
    ("mid_static_memory_reserved_percent", reclaim_ratio.mid_static_memory_percent),
)


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A node's strategy, and the layers that it was made from."""

    strategy: ColocationStrategy
    cluster_enabled: bool
    layer: str | None = None  # the name of the node entry that matched
    annotated: bool = False
    labelled: tuple[str, ...] = ()  # the fields that labels set
    ignored: str = ""  # why the annotation has no effect

    @property
    def enabled(self) -> bool:
        """Return whether the node lends. Off for the cluster is off everywhere, whatever a node's own layers say."""
        return self.cluster_enabled and self.strategy.enable is True


def resolve(layers: Layers[ColocationStrategy], labels: Mapping[str, str], annotations: Mapping[str, str]) -> Resolved:
    layer = layers.layer(labels)
    strategy = layers.cluster if layer is None else layer.strategy
    ignored, annotated = "", False
    text = annotations.get(A_COLOCATION_STRATEGY)
    if text is not None:
        own = read(text, ColocationStrategy)
        if isinstance(own, FieldError):
            ignored = f"{A_COLOCATION_STRATEGY}: {own}"
        else:
            strategy, annotated = overlay(strategy, own), True
    stated = {name: percent for name, ask in _LABELS if (percent := ask(labels)) is not None}
    if stated:
        strategy = msgspec.structs.replace(strategy, **stated)
    return Resolved(
        strategy=strategy,
        cluster_enabled=layers.cluster.enable is True,
        layer=None if layer is None else layer.name,
        annotated=annotated,
        labelled=tuple(stated),
        ignored=ignored,
    )


class Rules(msgspec.Struct, frozen=True, kw_only=True):
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


def rules(strategy: ColocationStrategy) -> Rules:
    """Complete a strategy. Unknown policies act as usage; `request` is no policy of CPU."""
    full = overlay(DEFAULT, strategy)
    cpu_policy = full.cpu_calculate_policy
    memory_policy = full.memory_calculate_policy
    return Rules(
        cpu_reclaim_percent=full.cpu_reclaim_threshold_percent or 0,
        memory_reclaim_percent=full.memory_reclaim_threshold_percent or 0,
        cpu_policy=MAX_USAGE_REQUEST if cpu_policy == MAX_USAGE_REQUEST else USAGE,
        memory_policy=memory_policy if memory_policy in (REQUEST, MAX_USAGE_REQUEST) else USAGE,
        degrade_minutes=full.degrade_time_minutes or 0,
        update_seconds=full.update_time_threshold_seconds or 0,
        diff_threshold=full.resource_diff_threshold or 0.0,
        mid_static=full.mid_reclaim_mode == STATIC,
        mid_cpu_percent=full.mid_cpu_threshold_percent or 0,
        mid_memory_percent=full.mid_memory_threshold_percent or 0,
        mid_unallocated_percent=full.mid_unallocated_percent or 0,
        mid_static_cpu_percent=full.mid_static_cpu_reserved_percent or 0,
        mid_static_memory_percent=full.mid_static_memory_reserved_percent or 0,
        batch_cpu_percent=full.batch_cpu_threshold_percent,
        batch_memory_percent=full.batch_memory_threshold_percent,
    )
