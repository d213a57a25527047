"""colocation-config: what of a node is lent and how its load is measured; and the node annotation that overrides it."""

from __future__ import annotations

from typing import Any

from msgspec import field

from koord.api.config.field_error import FieldError, FieldLimit, enum_errors, limit_errors, percent_limit
from koord.api.koordinator.slo import MEMORY_COLLECT_POLICIES, MEMORY_WITHOUT_PAGE_CACHE, AggregatePolicy
from koord.api.kubernetes.meta import LabelSelector
from koord.api.model import Model

CALCULATE_BY_USAGE = "usage"
CALCULATE_BY_REQUEST = "request"
CALCULATE_BY_MAX_USAGE_REQUEST = "maxUsageRequest"
MID_RECLAIM_STATIC = "static"


class ColocationStrategy(Model, frozen=True, kw_only=True):
    """ColocationStrategy inherits absent fields from the cluster's strategy, and that from the defaults."""

    enable: bool | None = None
    metric_aggregate_duration_seconds: int | None = None
    metric_report_interval_seconds: int | None = None
    metric_aggregate_policy: AggregatePolicy | None = None
    metric_memory_collect_policy: str | None = None
    cpu_reclaim_threshold_percent: int | None = None
    cpu_calculate_policy: str | None = None  # usage, maxUsageRequest; anything else acts as usage
    memory_reclaim_threshold_percent: int | None = None
    memory_calculate_policy: str | None = None  # usage, request, maxUsageRequest
    degrade_time_minutes: int | None = None
    update_time_threshold_seconds: int | None = None
    resource_diff_threshold: float | None = None
    mid_reclaim_mode: str | None = None  # static, else dynamic
    mid_cpu_threshold_percent: int | None = field(default=None, name="midCPUThresholdPercent")
    mid_memory_threshold_percent: int | None = None
    mid_unallocated_percent: int | None = None
    mid_static_cpu_reserved_percent: int | None = field(default=None, name="midStaticCPUReservedPercent")
    mid_static_memory_reserved_percent: int | None = None
    batch_cpu_threshold_percent: int | None = field(default=None, name="batchCPUThresholdPercent")
    batch_memory_threshold_percent: int | None = None
    extensions: dict[str, Any] | None = None


class NodeColocationConfig(ColocationStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class ColocationConfig(ColocationStrategy, frozen=True, kw_only=True):
    node_configs: tuple[NodeColocationConfig, ...] = ()


DEFAULT_COLOCATION = ColocationStrategy(
    enable=False,
    metric_aggregate_duration_seconds=300,
    metric_report_interval_seconds=60,
    metric_aggregate_policy=AggregatePolicy(durations=("5m0s", "10m0s", "30m0s")),
    metric_memory_collect_policy=MEMORY_WITHOUT_PAGE_CACHE,
    cpu_reclaim_threshold_percent=60,
    cpu_calculate_policy=CALCULATE_BY_USAGE,
    memory_reclaim_threshold_percent=65,
    memory_calculate_policy=CALCULATE_BY_USAGE,
    degrade_time_minutes=15,
    update_time_threshold_seconds=300,
    resource_diff_threshold=0.1,
    mid_cpu_threshold_percent=100,
    mid_memory_threshold_percent=100,
    mid_unallocated_percent=0,
    mid_static_cpu_reserved_percent=0,
    mid_static_memory_reserved_percent=0,
)

_SECONDS = (
    "metric_aggregate_duration_seconds",
    "metric_report_interval_seconds",
    "degrade_time_minutes",
    "update_time_threshold_seconds",
)
_SHARES = (
    "cpu_reclaim_threshold_percent",
    "memory_reclaim_threshold_percent",
    "batch_cpu_threshold_percent",
    "batch_memory_threshold_percent",
)
_STATIC = ("mid_static_cpu_reserved_percent", "mid_static_memory_reserved_percent")
_MID = percent_limit("mid_cpu_threshold_percent", "mid_memory_threshold_percent", "mid_unallocated_percent")

# The webhook's ranges: what a new ConfigMap may say.
ADMISSION_LIMITS = (
    FieldLimit(fields=_SECONDS, low=1),
    FieldLimit(fields=_SHARES, low=0),
    FieldLimit(fields=("resource_diff_threshold",), above=0, high=1),
    _MID,
    percent_limit(*_STATIC),
)
# The controllers' ranges: what a strategy must say, or the last good one stays. Wider in two places.
RUNTIME_LIMITS = (
    FieldLimit(fields=_SECONDS, low=1),
    FieldLimit(fields=_SHARES, low=0),
    FieldLimit(fields=("resource_diff_threshold",), above=0),
    _MID,
    FieldLimit(fields=_STATIC, low=0),
)


def validate_admission(config: ColocationConfig) -> list[FieldError]:
    """Return what the ConfigMap webhook refuses in the config as written."""
    errors = limit_errors(config, ADMISSION_LIMITS)
    for index, node in enumerate(config.node_configs):
        errors += limit_errors(node, ADMISSION_LIMITS, path=f"nodeConfigs[{index}].")
    return errors


def validate_runtime(strategy: ColocationStrategy) -> list[FieldError]:
    """Return what makes a merged strategy unusable to the controllers."""
    errors = limit_errors(strategy, RUNTIME_LIMITS)
    # The schema of NodeMetric refuses any other.
    return errors + enum_errors(
        "metricMemoryCollectPolicy", strategy.metric_memory_collect_policy, MEMORY_COLLECT_POLICIES
    )
