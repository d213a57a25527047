"""This module holds the documents of slo-controller-config that become a NodeSLO, and those of CPU normalization and
resource amplification. A per-node entry carries its strategy inline, beside a selector.

colocation-config states what of a node is lent and how its load is measured; a node annotation overrides it.

The strategy of interference detection has its settings, their limits and defaults, and its place in a NodeSLO here.
Koordinator has no such strategy. The document `interference-config` of slo-controller-config states it, and NodeSLO
carries it below `extensions`, where other programs leave it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import field

from koord.api.config.field_error import FieldError, FieldLimit, enum_errors, limit_errors, percent_limit, range_errors
from koord.api.config.slo.defaults import overlay
from koord.api.koordinator import slo
from koord.api.koordinator.slo import MEMORY_COLLECT_POLICIES, MEMORY_WITHOUT_PAGE_CACHE, AggregatePolicy, Extensions
from koord.api.kubernetes.meta import LabelSelector
from koord.api.model import Model, Submodel, to_dict

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


EXTENSION_KEY = "interference"
REPORT, THROTTLE, EVICT = "report", "throttle", "evict"
ACTIONS = (REPORT, THROTTLE, EVICT)


class InterferenceStrategy(Submodel, frozen=True, kw_only=True):
    """InterferenceStrategy says when a latency-sensitive container counts as disturbed, and what is done about it."""

    enable: bool | None = None
    action: str = ""  # one of ACTIONS
    sample_seconds: int | None = None  # between two samples of a container
    baseline_samples: int | None = None  # of which mean and deviation are made
    outlier_deviations: float | None = None  # above the mean
    outliers: int | None = None  # of the last five samples, which make an incident
    correlation_threshold: float | None = None  # from which a batch pod is named as the culprit
    throttle_percent: int | None = None  # of the CPU that the culprit used
    throttle_seconds: int | None = None
    action_interval_seconds: int | None = None  # between two actions on a node


DEFAULT_INTERFERENCE = InterferenceStrategy(
    enable=True,
    action=REPORT,
    sample_seconds=60,
    baseline_samples=60,
    outlier_deviations=2.0,
    outliers=3,
    correlation_threshold=0.35,
    throttle_percent=10,
    throttle_seconds=300,
    action_interval_seconds=600,
)

INTERFERENCE_LIMITS = (
    FieldLimit(fields=("sample_seconds",), low=1, high=60),  # series of cycles and stalls are kept for a minute
    FieldLimit(fields=("baseline_samples",), low=20, high=240),
    FieldLimit(fields=("outlier_deviations",), low=1, high=10),
    FieldLimit(fields=("outliers",), low=1, high=5),
    FieldLimit(fields=("correlation_threshold",), low=0.05, high=1),
    FieldLimit(fields=("throttle_percent",), low=1, high=99),
    FieldLimit(fields=("throttle_seconds",), low=10, high=3600),
    FieldLimit(fields=("action_interval_seconds",), low=10, high=86_400),
)


def interference_of_extensions(extensions: Extensions | None) -> InterferenceStrategy | FieldError:
    """Return the strategy of a NodeSLO, laid over the defaults, or the first value that no node can use."""
    stated = ((extensions and extensions.object) or {}).get(EXTENSION_KEY)
    if stated is None:
        return DEFAULT_INTERFERENCE
    path = f"extensions.{EXTENSION_KEY}"
    try:
        strategy = msgspec.convert(stated, InterferenceStrategy)
    except msgspec.ValidationError as error:
        return FieldError(path, stated, str(error))
    errors = limit_errors(strategy, INTERFERENCE_LIMITS, (), f"{path}.")
    errors += enum_errors(f"{path}.action", strategy.action or REPORT, ACTIONS)
    return errors[0] if errors else overlay(DEFAULT_INTERFERENCE, strategy)


def with_interference(extensions: Extensions | None, strategy: InterferenceStrategy) -> Extensions | None:
    """Return the extensions of a NodeSLO with this strategy. One that states nothing is taken out; what others wrote
    stays.
    """
    others: dict[str, Any] = {
        key: value for key, value in ((extensions and extensions.object) or {}).items() if key != EXTENSION_KEY
    }
    stated = to_dict(strategy)
    if stated:
        return Extensions(object={**others, EXTENSION_KEY: stated})
    if extensions is None or EXTENSION_KEY not in (extensions.object or {}):
        return extensions
    return Extensions(object=others or None)


# The data keys.
COLOCATION = "colocation-config"
RESOURCE_THRESHOLD = "resource-threshold-config"
RESOURCE_QOS = "resource-qos-config"
CPU_BURST = "cpu-burst-config"
SYSTEM = "system-config"
HOST_APPLICATION = "host-application-config"
CPU_NORMALIZATION = "cpu-normalization-config"
RESOURCE_AMPLIFICATION = "resource-amplification-config"
INTERFERENCE = "interference-config"  # not Koordinator's
# The keys that the ConfigMap webhook checks, in its order.
VALIDATED_KEYS = (COLOCATION, RESOURCE_THRESHOLD, RESOURCE_QOS, SYSTEM, CPU_BURST)


class NodeThresholdStrategy(slo.ResourceThresholdStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class ThresholdConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: slo.ResourceThresholdStrategy | None = None
    node_strategies: tuple[NodeThresholdStrategy, ...] = ()


class NodeQOSStrategy(slo.ResourceQOSStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class QOSConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: slo.ResourceQOSStrategy | None = None
    node_strategies: tuple[NodeQOSStrategy, ...] = ()


class NodeCPUBurstStrategy(slo.CPUBurstStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class CPUBurstConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: slo.CPUBurstStrategy | None = None
    node_strategies: tuple[NodeCPUBurstStrategy, ...] = ()


class NodeSystemStrategy(slo.SystemStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class SystemConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: slo.SystemStrategy | None = None
    node_strategies: tuple[NodeSystemStrategy, ...] = ()


class NodeInterferenceStrategy(InterferenceStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class InterferenceConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: InterferenceStrategy | None = None
    node_strategies: tuple[NodeInterferenceStrategy, ...] = ()


class NodeHostApplications(Model, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None
    applications: tuple[slo.HostApplicationSpec, ...] = ()


class HostApplicationConfig(Model, frozen=True, kw_only=True):
    """HostApplicationConfig is not merged: the first matching entry replaces the list, even with an empty one."""

    applications: tuple[slo.HostApplicationSpec, ...] = ()
    node_configs: tuple[NodeHostApplications, ...] = ()


MIN_CPU_NORMALIZATION_RATIO, MAX_CPU_NORMALIZATION_RATIO = 1.0, 5.0


class CPUModelRatios(Model, frozen=True, kw_only=True):
    """CPUModelRatios holds the ratios of one CPU model, by what is switched on."""

    base_ratio: float | None = None
    hyper_thread_enabled_ratio: float | None = None
    turbo_enabled_ratio: float | None = None
    hyper_thread_turbo_enabled_ratio: float | None = None


class CPUNormalizationStrategy(Model, frozen=True, kw_only=True):
    """CPUNormalizationStrategy holds the ratios that make CPUs of unequal machines comparable."""

    enable: bool | None = None
    default_ratio: float | None = None
    ratio_model: dict[str, CPUModelRatios] = {}


class NodeCPUNormalization(CPUNormalizationStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class CPUNormalizationConfig(CPUNormalizationStrategy, frozen=True, kw_only=True):
    node_configs: tuple[NodeCPUNormalization, ...] = ()


class ResourceAmplificationStrategy(Model, frozen=True, kw_only=True):
    enable: bool | None = None
    resource_amplification_ratio: dict[str, float] = {}


class NodeResourceAmplification(ResourceAmplificationStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class ResourceAmplificationConfig(ResourceAmplificationStrategy, frozen=True, kw_only=True):
    node_configs: tuple[NodeResourceAmplification, ...] = ()


DEFAULT_CPU_NORMALIZATION = CPUNormalizationStrategy(enable=False)
DEFAULT_RESOURCE_AMPLIFICATION = ResourceAmplificationStrategy(enable=False)


def cpu_normalization_ratio(
    strategy: CPUNormalizationStrategy, cpu_model: str, *, hyper_thread: bool, turbo: bool
) -> float | FieldError:
    """Return the ratio of a node's CPU by model and switches, else the default; an error when neither is stated."""
    known = strategy.ratio_model.get(cpu_model, CPUModelRatios())
    chosen = {
        (True, True): known.hyper_thread_turbo_enabled_ratio,
        (True, False): known.hyper_thread_enabled_ratio,
        (False, True): known.turbo_enabled_ratio,
        (False, False): known.base_ratio,
    }[hyper_thread, turbo]
    if chosen is None:
        chosen = strategy.default_ratio
    if chosen is None:
        return FieldError(f"ratioModel[{cpu_model}]", None, "no ratio for this CPU and no defaultRatio")
    errors = range_errors(
        f"ratioModel[{cpu_model}]", chosen, low=MIN_CPU_NORMALIZATION_RATIO, high=MAX_CPU_NORMALIZATION_RATIO
    )
    return errors[0] if errors else chosen


# The model of the document under each key, in the order in which documents are looked at.
DOCUMENT_MODELS: Mapping[str, type[Any]] = {
    COLOCATION: ColocationConfig,
    RESOURCE_THRESHOLD: ThresholdConfig,
    RESOURCE_QOS: QOSConfig,
    CPU_BURST: CPUBurstConfig,
    SYSTEM: SystemConfig,
    HOST_APPLICATION: HostApplicationConfig,
    CPU_NORMALIZATION: CPUNormalizationConfig,
    RESOURCE_AMPLIFICATION: ResourceAmplificationConfig,
    INTERFERENCE: InterferenceConfig,
}
KEYS = tuple(DOCUMENT_MODELS)


def node_entries(config: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the name of a document's list of node entries, and the entries."""
    if hasattr(config, "node_strategies"):
        return "nodeStrategies", config.node_strategies
    return "nodeConfigs", config.node_configs
