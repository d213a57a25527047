"""Validation of the NodeSLO documents as they are written, before defaults: ranges and enumerated values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from koord.api.config.field_error import (
    FieldError,
    FieldLimit,
    FieldOrder,
    enum_errors,
    limit_errors,
    percent_limit,
    range_errors,
)
from koord.api.config.slo import defaults, slo_documents
from koord.api.koordinator import slo
from koord.api.koordinator.protocol import PRIORITY_CLASSES, QOS_CLASSES
from koord.api.koordinator.slo import MEMORY_COLLECT_POLICIES
from koord.api.schema import unwrap_annotated
from koord.api.schema_markers import SchemaRule
from koord.values.quantity import Quantity, QuantityError

S = TypeVar("S", bound=msgspec.Struct)

_SWITCH = {"low": 0.0, "high": 1.0}

# A level of 0 starts at once, or never stops: what was meant as off suppresses or evicts every batch pod of the node.
THRESHOLD_LIMITS = (
    FieldLimit(
        fields=(
            *("cpu_suppress_threshold_percent", "memory_evict_threshold_percent", "memory_evict_lower_percent"),
            *("cpu_evict_be_usage_threshold_percent", "cpu_evict_threshold_percent", "cpu_evict_lower_percent"),
        ),
        low=1,
        high=100,
    ),
    FieldLimit(
        fields=(
            "memory_allocatable_evict_threshold_percent",
            "memory_allocatable_evict_lower_percent",
            "cpu_allocatable_evict_threshold_percent",
            "cpu_allocatable_evict_lower_percent",
        ),
        low=1,
    ),
    percent_limit(
        "cpu_suppress_min_percent", "cpu_evict_be_satisfaction_upper_percent", "cpu_evict_be_satisfaction_lower_percent"
    ),
    FieldLimit(fields=("cpu_evict_time_window_seconds",), above=0),
    FieldLimit(fields=("allocatable_evict_priority_threshold",), low=0, high=7999),
)
THRESHOLD_PAIRS = (
    FieldOrder(lower="memory_evict_lower_percent", upper="memory_evict_threshold_percent"),
    FieldOrder(lower="memory_allocatable_evict_lower_percent", upper="memory_allocatable_evict_threshold_percent"),
    FieldOrder(lower="cpu_evict_be_satisfaction_lower_percent", upper="cpu_evict_be_satisfaction_upper_percent"),
    FieldOrder(lower="cpu_evict_lower_percent", upper="cpu_evict_threshold_percent"),
    FieldOrder(lower="cpu_allocatable_evict_lower_percent", upper="cpu_allocatable_evict_threshold_percent"),
)
CPU_QOS_LIMITS = (FieldLimit(fields=("group_identity",), low=-1, high=2), FieldLimit(fields=("sched_idle",), **_SWITCH))
MEMORY_QOS_LIMITS = (
    percent_limit(
        "min_limit_percent", "low_limit_percent", "throttling_percent", "wmark_ratio", "page_cache_limit_percent"
    ),
    FieldLimit(fields=("wmark_scale_permill",), low=1, high=1000),
    FieldLimit(fields=("wmark_min_adj",), low=-25, high=50),
    FieldLimit(fields=("priority_enable", "oom_kill_group"), **_SWITCH),
    FieldLimit(fields=("priority",), low=0, high=12),
)
RESCTRL_QOS_LIMITS = (percent_limit("cat_range_start_percent", "cat_range_end_percent", "mba_percent"),)
RESCTRL_QOS_PAIRS = (FieldOrder(lower="cat_range_start_percent", upper="cat_range_end_percent"),)
CPU_BURST_LIMITS = (
    FieldLimit(fields=("cpu_burst_percent",), low=1, high=10000),
    FieldLimit(fields=("cfs_quota_burst_percent",), low=100),
    FieldLimit(fields=("cfs_quota_burst_period_seconds",), low=-1),
    percent_limit("share_pool_threshold_percent"),
)
SYSTEM_LIMITS = (
    FieldLimit(fields=("min_free_kbytes_factor",), above=0),
    FieldLimit(fields=("watermark_scale_factor",), low=1, high=400),
    FieldLimit(fields=("memcg_reap_back_ground", "page_cache_limit_enabled"), **_SWITCH),
)

# What Koordinator's webhook does not check. The limits of the schema are on the fields of the models.
_UNCHECKED_MEMORY_LIMITS = (FieldLimit(fields=("page_cache_limit_size",), low=0),)
_IO_LIMITS = (FieldLimit(fields=("read_latency", "write_latency"), low=0),)
_UNCHECKED_SYSTEM_LIMITS = (
    FieldLimit(fields=("sched_group_identity_enabled",), **_SWITCH),
    FieldLimit(fields=("sched_idle_saver_wmark",), low=0),
)
_LIMITS: tuple[tuple[type[msgspec.Struct], Sequence[FieldLimit]], ...] = (
    (slo.ResourceThresholdStrategy, THRESHOLD_LIMITS),
    (slo.CPUQOS, CPU_QOS_LIMITS),
    (slo.MemoryQOS, (*MEMORY_QOS_LIMITS, *_UNCHECKED_MEMORY_LIMITS)),
    (slo.ResctrlQOS, RESCTRL_QOS_LIMITS),
    (slo.IOConfig, _IO_LIMITS),
    (slo.CPUBurstStrategy, CPU_BURST_LIMITS),
    (slo.SystemStrategy, (*SYSTEM_LIMITS, *_UNCHECKED_SYSTEM_LIMITS)),
    (slo_documents.InterferenceStrategy, slo_documents.INTERFERENCE_LIMITS),
)
_SHARE_PERCENT = 100


def strategy_errors(value: msgspec.Struct, path: str = "") -> list[FieldError]:
    """Return every value that the schema of NodeSLO refuses or no node can use, in whatever strategy it stands.

    Whether two values fit each other is not looked at: Koordinator's controllers take any pair.
    """
    found: dict[str, FieldError] = {}
    for error in _strategy_errors(value, path):
        found.setdefault(error.field, error)
    return list(found.values())


def _strategy_errors(value: Any, path: str) -> Iterator[FieldError]:
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _strategy_errors(item, f"{path}[{index}]")
    if not isinstance(value, msgspec.Struct):
        return
    below = f"{path}." if path else ""
    for kind, limits in _LIMITS:
        if isinstance(value, kind):
            yield from limit_errors(value, limits, (), below)
    for field in msgspec.structs.fields(value):
        inner, here = getattr(value, field.name), f"{below}{field.encode_name}"
        yield from _value_errors(inner, here, unwrap_annotated(field.type)[1], FIELD_CHOICES.get(field.encode_name))
        yield from _strategy_errors(inner, here)


def _value_errors(value: Any, path: str, rule: SchemaRule, choices: Sequence[str] | None) -> Iterator[FieldError]:
    if isinstance(value, str) and value and (allowed := rule.enum or choices) is not None:
        yield from enum_errors(path, value, allowed)
    elif rule.quantity or (rule.int_or_string and isinstance(value, str)):
        try:
            if Quantity.parse(value).sign() < 0:
                yield FieldError(path, value, "must not be negative")
        except QuantityError:
            either = "a percentage or a quantity" if rule.int_or_string else "a quantity"
            yield FieldError(path, value, f"must be {either}")
    elif isinstance(value, int) and not isinstance(value, bool):
        low, high = (0, _SHARE_PERCENT) if rule.int_or_string else (rule.minimum, rule.maximum)
        yield from range_errors(path, value, low=low, high=high)


def unusable_values(config: msgspec.Struct) -> list[FieldError]:
    """Return every value of a document that is not what it may be, whatever the other values are."""
    if isinstance(config, slo_documents.ColocationConfig):
        return unknown_choices(config)
    if isinstance(config, slo_documents.CPUNormalizationConfig | slo_documents.ResourceAmplificationConfig):
        return ratio_errors(config)
    return strategy_errors(config)


def ratio_errors(config: Any) -> list[FieldError]:
    """Return the CPU normalization and amplification ratios that no node can have."""
    flaws: list[FieldError] = []
    if isinstance(config, slo_documents.CPUNormalizationConfig):
        for path, normalization in (("", config), *_with_paths(config.node_configs)):
            flaws += _check_ratio(f"{path}defaultRatio", normalization.default_ratio)
            for cpu, of_model in normalization.ratio_model.items():
                for field in msgspec.structs.fields(of_model):
                    here = f"{path}ratioModel[{cpu}].{field.encode_name}"
                    flaws += _check_ratio(here, getattr(of_model, field.name))
    elif isinstance(config, slo_documents.ResourceAmplificationConfig):
        for path, amplification in (("", config), *_with_paths(config.node_configs)):
            for resource, ratio in amplification.resource_amplification_ratio.items():
                flaws += range_errors(f"{path}resourceAmplificationRatio[{resource}]", ratio, low=1)
    return flaws


def _with_paths(given: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(f"nodeConfigs[{index}].", entry) for index, entry in enumerate(given)]


def _check_ratio(path: str, ratio: float | None) -> list[FieldError]:
    return range_errors(
        path, ratio, low=slo_documents.MIN_CPU_NORMALIZATION_RATIO, high=slo_documents.MAX_CPU_NORMALIZATION_RATIO
    )


def validate_threshold(config: slo_documents.ThresholdConfig) -> list[FieldError]:
    every = _strategies_with_paths(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in limit_errors(strategy, THRESHOLD_LIMITS, THRESHOLD_PAIRS, path)]


def validate_cpu_burst(config: slo_documents.CPUBurstConfig) -> list[FieldError]:
    every = _strategies_with_paths(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in limit_errors(strategy, CPU_BURST_LIMITS, (), path)]


def validate_system(config: slo_documents.SystemConfig) -> list[FieldError]:
    every = _strategies_with_paths(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in limit_errors(strategy, SYSTEM_LIMITS, (), path)]


def validate_qos(config: slo_documents.QOSConfig) -> list[FieldError]:
    """Validate the ranges of every block. Network shares need system-config beside them: the webhook sums them."""
    every = _strategies_with_paths(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in _qos_errors(strategy, path)]


def _qos_errors(strategy: slo.ResourceQOSStrategy, path: str) -> Iterator[FieldError]:
    blocks: tuple[tuple[str, slo.ResourceQOS | None], ...] = (
        ("lsrClass", strategy.lsr_class),
        ("lsClass", strategy.ls_class),
        ("beClass", strategy.be_class),
        ("systemClass", strategy.system_class),
        ("cgroupRoot", strategy.cgroup_root),
    )
    for name, block in blocks:
        if block is None:
            continue
        if block.cpu_qos is not None:
            yield from limit_errors(block.cpu_qos, CPU_QOS_LIMITS, (), f"{path}{name}.cpuQOS.")
        if block.memory_qos is not None:
            yield from limit_errors(block.memory_qos, MEMORY_QOS_LIMITS, (), f"{path}{name}.memoryQOS.")
        if block.resctrl_qos is not None:
            yield from limit_errors(
                block.resctrl_qos, RESCTRL_QOS_LIMITS, RESCTRL_QOS_PAIRS, f"{path}{name}.resctrlQOS."
            )


def _strategies_with_paths(cluster: S | None, nodes: Sequence[S]) -> list[tuple[str, S]]:
    """Return every strategy of a document with the path to its fields."""
    found: list[tuple[str, S]] = []
    if cluster is not None:
        found.append(("clusterStrategy.", cluster))
    return found + [(f"nodeStrategies[{i}].", node) for i, node in enumerate(nodes)]


# By wire name, in whatever struct it appears.
FIELD_CHOICES: dict[str, tuple[str, ...]] = {
    "cpuSuppressPolicy": (defaults.CPUSET, defaults.CFS_QUOTA, defaults.IDLE_CPUSET),
    "cpuEvictPolicy": (defaults.EVICT_BY_REAL_LIMIT, defaults.EVICT_BY_ALLOCATABLE),
    "cpuPolicy": (defaults.GROUP_IDENTITY, defaults.CORE_SCHED),
    "netQOSPolicy": (defaults.TC, defaults.TERWAY_QOS),
    "policy": (defaults.BURST_NONE, defaults.BURST_CPU_ONLY, defaults.BURST_QUOTA_ONLY, defaults.BURST_AUTO),
    "cpuCalculatePolicy": (slo_documents.CALCULATE_BY_USAGE, slo_documents.CALCULATE_BY_MAX_USAGE_REQUEST),
    "memoryCalculatePolicy": (
        slo_documents.CALCULATE_BY_USAGE,
        slo_documents.CALCULATE_BY_REQUEST,
        slo_documents.CALCULATE_BY_MAX_USAGE_REQUEST,
    ),
    "metricMemoryCollectPolicy": MEMORY_COLLECT_POLICIES,
    "midReclaimMode": (slo_documents.MID_RECLAIM_STATIC,),
    "qos": QOS_CLASSES,
    "priority": PRIORITY_CLASSES,  # of a host application; that of memoryQOS is a number
    "action": slo_documents.ACTIONS,
    "base": ("CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"),
    "type": ("device", "volumegroup", "podvolume"),  # of a block device
}


def unknown_choices(config: msgspec.Struct) -> list[FieldError]:
    """Return an error for every enumerated value in the document that is unknown, with the known ones."""
    return list(_unknown_choices_in(config, ""))


def _unknown_choices_in(value: Any, path: str) -> Iterator[FieldError]:
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            inner = getattr(value, field.name)
            here = f"{path}.{field.encode_name}" if path else field.encode_name
            allowed = FIELD_CHOICES.get(field.encode_name)
            if allowed is not None and isinstance(inner, str) and inner:
                yield from enum_errors(here, inner, allowed)
            yield from _unknown_choices_in(inner, here)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _unknown_choices_in(item, f"{path}[{index}]")
