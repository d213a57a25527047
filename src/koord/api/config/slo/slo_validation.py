"""Validation of the NodeSLO documents as they are written, before defaults: ranges and enumerated values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from koord.api.config.field_error import FieldError, FieldLimit, FieldOrder, enum_errors, limit_errors, percent_limit
from koord.api.config.slo import colocation, defaults
from koord.api.config.slo.slo_documents import CPUBurstConfig, QOSConfig, SystemConfig, ThresholdConfig
from koord.api.koordinator.qos_class import PRIORITY_CLASSES, QOS_CLASSES
from koord.api.koordinator.slo import MEMORY_COLLECT_POLICIES
from koord.api.koordinator.slo_strategy import ResourceQOS, ResourceQOSStrategy

S = TypeVar("S", bound=msgspec.Struct)

_SWITCH = {"low": 0.0, "high": 1.0}

THRESHOLD_LIMITS = (
    percent_limit(
        "cpu_suppress_threshold_percent",
        "cpu_suppress_min_percent",
        "memory_evict_threshold_percent",
        "memory_evict_lower_percent",
        "cpu_evict_be_satisfaction_upper_percent",
        "cpu_evict_be_satisfaction_lower_percent",
        "cpu_evict_be_usage_threshold_percent",
        "cpu_evict_threshold_percent",
        "cpu_evict_lower_percent",
    ),
    FieldLimit(
        fields=(
            "memory_allocatable_evict_threshold_percent",
            "memory_allocatable_evict_lower_percent",
            "cpu_allocatable_evict_threshold_percent",
            "cpu_allocatable_evict_lower_percent",
        ),
        low=0,
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
CPU_QOS_LIMITS = (
    FieldLimit(fields=("group_identity",), low=-1, high=2),
    FieldLimit(fields=("sched_idle",), **_SWITCH),
)
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


def validate_threshold(config: ThresholdConfig) -> list[FieldError]:
    every = _strategies_with_paths(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in limit_errors(strategy, THRESHOLD_LIMITS, THRESHOLD_PAIRS, path)]


def validate_cpu_burst(config: CPUBurstConfig) -> list[FieldError]:
    every = _strategies_with_paths(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in limit_errors(strategy, CPU_BURST_LIMITS, (), path)]


def validate_system(config: SystemConfig) -> list[FieldError]:
    every = _strategies_with_paths(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in limit_errors(strategy, SYSTEM_LIMITS, (), path)]


def validate_qos(config: QOSConfig) -> list[FieldError]:
    """Validate the ranges of every block. Network shares need system-config beside them: the webhook sums them."""
    every = _strategies_with_paths(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in _qos_errors(strategy, path)]


def _qos_errors(strategy: ResourceQOSStrategy, path: str) -> list[FieldError]:
    blocks: tuple[tuple[str, ResourceQOS | None], ...] = (
        ("lsrClass", strategy.lsr_class),
        ("lsClass", strategy.ls_class),
        ("beClass", strategy.be_class),
        ("systemClass", strategy.system_class),
        ("cgroupRoot", strategy.cgroup_root),
    )
    errors: list[FieldError] = []
    for name, block in blocks:
        if block is None:
            continue
        if block.cpu_qos is not None:
            errors += limit_errors(block.cpu_qos, CPU_QOS_LIMITS, (), f"{path}{name}.cpuQOS.")
        if block.memory_qos is not None:
            errors += limit_errors(block.memory_qos, MEMORY_QOS_LIMITS, (), f"{path}{name}.memoryQOS.")
        if block.resctrl_qos is not None:
            errors += limit_errors(
                block.resctrl_qos, RESCTRL_QOS_LIMITS, RESCTRL_QOS_PAIRS, f"{path}{name}.resctrlQOS."
            )
    return errors


def _strategies_with_paths(cluster: S | None, nodes: Sequence[S]) -> list[tuple[str, S]]:
    """Return every strategy of a document with the path to its fields."""
    found: list[tuple[str, S]] = []
    if cluster is not None:
        found.append(("clusterStrategy.", cluster))
    return found + [(f"nodeStrategies[{i}].", node) for i, node in enumerate(nodes)]


# By wire name, in whatever struct it appears.
FIELD_CHOICES: dict[str, tuple[str, ...]] = {
    "cpuSuppressPolicy": (defaults.CPUSET, defaults.CFS_QUOTA),
    "cpuEvictPolicy": (defaults.EVICT_BY_REAL_LIMIT, defaults.EVICT_BY_ALLOCATABLE),
    "cpuPolicy": (defaults.GROUP_IDENTITY, defaults.CORE_SCHED),
    "netQOSPolicy": (defaults.TC, defaults.TERWAY_QOS),
    "policy": (defaults.BURST_NONE, defaults.BURST_CPU_ONLY, defaults.BURST_QUOTA_ONLY, defaults.BURST_AUTO),
    "cpuCalculatePolicy": (colocation.CALCULATE_BY_USAGE, colocation.CALCULATE_BY_MAX_USAGE_REQUEST),
    "memoryCalculatePolicy": (
        colocation.CALCULATE_BY_USAGE,
        colocation.CALCULATE_BY_REQUEST,
        colocation.CALCULATE_BY_MAX_USAGE_REQUEST,
    ),
    "metricMemoryCollectPolicy": MEMORY_COLLECT_POLICIES,
    "midReclaimMode": (colocation.MID_RECLAIM_STATIC,),
    "qos": QOS_CLASSES,
    "priority": PRIORITY_CLASSES,  # of a host application; that of memoryQOS is a number
    "base": ("CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"),
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
