"""This module validates the NodeSLO documents as they are written, before defaults: ranges and enumerated
values. The ConfigMap webhook refuses more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.config.slo.limit import Limit, Ordered, broken, percent
from koord.api.config.slo.strategies import CPUBurstConfig, QOSConfig, SystemConfig, ThresholdConfig
from koord.api.slo_strategy import ResourceQOS, ResourceQOSStrategy

S = TypeVar("S", bound=msgspec.Struct)

_SWITCH = {"low": 0.0, "high": 1.0}

THRESHOLD_LIMITS = (
    percent(
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
    Limit(
        fields=(
            "memory_allocatable_evict_threshold_percent",
            "memory_allocatable_evict_lower_percent",
            "cpu_allocatable_evict_threshold_percent",
            "cpu_allocatable_evict_lower_percent",
        ),
        low=0,
    ),
    Limit(fields=("cpu_evict_time_window_seconds",), above=0),
    Limit(fields=("allocatable_evict_priority_threshold",), low=0, high=7999),
)
THRESHOLD_PAIRS = (
    Ordered(lower="memory_evict_lower_percent", upper="memory_evict_threshold_percent"),
    Ordered(lower="memory_allocatable_evict_lower_percent", upper="memory_allocatable_evict_threshold_percent"),
    Ordered(lower="cpu_evict_be_satisfaction_lower_percent", upper="cpu_evict_be_satisfaction_upper_percent"),
    Ordered(lower="cpu_evict_lower_percent", upper="cpu_evict_threshold_percent"),
    Ordered(lower="cpu_allocatable_evict_lower_percent", upper="cpu_allocatable_evict_threshold_percent"),
)
CPU_QOS_LIMITS = (
    Limit(fields=("group_identity",), low=-1, high=2),
    Limit(fields=("sched_idle",), **_SWITCH),
)
MEMORY_QOS_LIMITS = (
    percent("min_limit_percent", "low_limit_percent", "throttling_percent", "wmark_ratio", "page_cache_limit_percent"),
    Limit(fields=("wmark_scale_permill",), low=1, high=1000),
    Limit(fields=("wmark_min_adj",), low=-25, high=50),
    Limit(fields=("priority_enable", "oom_kill_group"), **_SWITCH),
    Limit(fields=("priority",), low=0, high=12),
)
RESCTRL_QOS_LIMITS = (percent("cat_range_start_percent", "cat_range_end_percent", "mba_percent"),)
RESCTRL_QOS_PAIRS = (Ordered(lower="cat_range_start_percent", upper="cat_range_end_percent"),)
CPU_BURST_LIMITS = (
    Limit(fields=("cpu_burst_percent",), low=1, high=10000),
    Limit(fields=("cfs_quota_burst_percent",), low=100),
    Limit(fields=("cfs_quota_burst_period_seconds",), low=-1),
    percent("share_pool_threshold_percent"),
)
SYSTEM_LIMITS = (
    Limit(fields=("min_free_kbytes_factor",), above=0),
    Limit(fields=("watermark_scale_factor",), low=1, high=400),
    Limit(fields=("memcg_reap_back_ground", "page_cache_limit_enabled"), **_SWITCH),
)


def validate_threshold(config: ThresholdConfig) -> list[FieldError]:
    every = _strategies(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in broken(strategy, THRESHOLD_LIMITS, THRESHOLD_PAIRS, path)]


def validate_cpu_burst(config: CPUBurstConfig) -> list[FieldError]:
    every = _strategies(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in broken(strategy, CPU_BURST_LIMITS, (), path)]


def validate_system(config: SystemConfig) -> list[FieldError]:
    every = _strategies(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in broken(strategy, SYSTEM_LIMITS, (), path)]


def validate_qos(config: QOSConfig) -> list[FieldError]:
    """Validate the ranges of every block. Network shares, which need system-config beside them, are summed by the
    webhook.
    """
    every = _strategies(config.cluster_strategy, config.node_strategies)
    return [e for path, strategy in every for e in _qos(strategy, path)]


def _qos(strategy: ResourceQOSStrategy, path: str) -> list[FieldError]:
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
            errors += broken(block.cpu_qos, CPU_QOS_LIMITS, (), f"{path}{name}.cpuQOS.")
        if block.memory_qos is not None:
            errors += broken(block.memory_qos, MEMORY_QOS_LIMITS, (), f"{path}{name}.memoryQOS.")
        if block.resctrl_qos is not None:
            errors += broken(block.resctrl_qos, RESCTRL_QOS_LIMITS, RESCTRL_QOS_PAIRS, f"{path}{name}.resctrlQOS.")
    return errors


def _strategies(cluster: S | None, nodes: Sequence[S]) -> list[tuple[str, S]]:
    """Return every strategy of a document with the path to its fields."""
    found: list[tuple[str, S]] = []
    if cluster is not None:
        found.append(("clusterStrategy.", cluster))
    return found + [(f"nodeStrategies[{i}].", node) for i, node in enumerate(nodes)]
