"""This module holds the built-in defaults of every NodeSLO strategy, the values that disable a block, and the overlay
of a more specific strategy on a more general one: what it does not state stays as it was.

The overlay is what Koordinator does by writing the one as JSON and reading it onto the other, surprises included.
Structs are overlaid field by field, maps key by key with each value replaced whole. Elements of a list are overlaid
on the old element at the same index, so what they omit keeps the old value; an empty list states nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from koord.api.koordinator import slo
from koord.api.koordinator.protocol import BE, LS, LSE, LSR, SYSTEM

CPUSET = "cpuset"
CFS_QUOTA = "cfsQuota"
IDLE_CPUSET = "idleCpuset"  # not Koordinator's
EVICT_BY_REAL_LIMIT = "evictByRealLimit"
EVICT_BY_ALLOCATABLE = "evictByAllocatable"
GROUP_IDENTITY = "groupIdentity"
CORE_SCHED = "coreSched"
TC = "tc"
TERWAY_QOS = "terway-qos"
BURST_NONE = "none"
BURST_CPU_ONLY = "cpuBurstOnly"
BURST_QUOTA_ONLY = "cfsQuotaBurstOnly"
BURST_AUTO = "auto"

# What koordlet fills in where the strategy is silent.
FALLBACK_EVICT_BAND_PERCENT = 2  # the stop level is the start level less this
FALLBACK_BE_USAGE_THRESHOLD_PERCENT = 90

THRESHOLD = slo.ResourceThresholdStrategy(
    enable=False,
    cpu_suppress_threshold_percent=65,
    cpu_suppress_policy=CPUSET,
    memory_evict_threshold_percent=70,
    cpu_evict_policy=EVICT_BY_REAL_LIMIT,
)

CPU_BURST = slo.CPUBurstStrategy(
    policy=BURST_NONE,
    cpu_burst_percent=1000,
    cfs_quota_burst_percent=300,
    cfs_quota_burst_period_seconds=-1,
    share_pool_threshold_percent=50,
)

SYSTEM_STRATEGY = slo.SystemStrategy(total_network_bandwidth="0")

_CPU = {
    LSR: slo.CPUQOS(group_identity=2, sched_idle=0, core_expeller=True),
    LS: slo.CPUQOS(group_identity=2, sched_idle=0, core_expeller=True),
    BE: slo.CPUQOS(group_identity=-1, sched_idle=0, core_expeller=False),
    SYSTEM: slo.CPUQOS(group_identity=0, sched_idle=0, core_expeller=False),
}
_CAT_END = {LSR: 100, LS: 100, BE: 30, SYSTEM: 100}
_WMARK = {LSR: (95, 20, -25), LS: (95, 20, -25), BE: (95, 20, 50), SYSTEM: (0, 50, 0)}


def _memory(ratio: int, scale_permill: int, min_adj: int) -> slo.MemoryQOS:
    return slo.MemoryQOS(
        min_limit_percent=0,
        low_limit_percent=0,
        throttling_percent=0,
        wmark_ratio=ratio,
        wmark_scale_permill=scale_permill,
        wmark_min_adj=min_adj,
        priority_enable=0,
        priority=0,
        oom_kill_group=0,
    )


# The bodies of a disabled block, for LSR, LS and BE.
NO_CPU_QOS = slo.CPUQOS(group_identity=0, sched_idle=0, core_expeller=False)
NO_MEMORY_QOS = _memory(0, 50, 0)
NO_RESCTRL_QOS = slo.ResctrlQOS(cat_range_start_percent=0, cat_range_end_percent=100, mba_percent=100)


def cpu_qos(qos: str) -> slo.CPUQOS:
    return _CPU[_block(qos)]


def memory_qos(qos: str) -> slo.MemoryQOS:
    return _memory(*_WMARK[_block(qos)])


def resctrl_qos(qos: str) -> slo.ResctrlQOS:
    return slo.ResctrlQOS(cat_range_start_percent=0, cat_range_end_percent=_CAT_END[_block(qos)], mba_percent=100)


def resource_qos(qos: str) -> slo.ResourceQOS:
    """Return the whole default block of one class, everything in it disabled."""
    cpu, memory, resctrl = cpu_qos(qos), memory_qos(qos), resctrl_qos(qos)
    return slo.ResourceQOS(
        cpu_qos=slo.CPUQOSConfig(enable=False, **_fields(cpu)),
        memory_qos=slo.MemoryQOSConfig(enable=False, **_fields(memory)),
        blkio_qos=slo.BlkIOQOSConfig(enable=False),
        resctrl_qos=slo.ResctrlQOSConfig(enable=False, **_fields(resctrl)),
        network_qos=slo.NetworkQOSConfig(
            enable=False, ingress_request=0, ingress_limit=0, egress_request=0, egress_limit=0
        ),
    )


def qos_strategy() -> slo.ResourceQOSStrategy:
    """Return what koordlet merges a NodeSLO over. The manager writes nothing where its ConfigMap says nothing."""
    return slo.ResourceQOSStrategy(
        policies=slo.ResourceQOSPolicies(cpu_policy=GROUP_IDENTITY, net_qos_policy=TC),
        lsr_class=resource_qos(LSR),
        ls_class=resource_qos(LS),
        be_class=resource_qos(BE),
        system_class=resource_qos(SYSTEM),
        cgroup_root=slo.ResourceQOS(blkio_qos=slo.BlkIOQOSConfig(enable=False)),
    )


def _block(qos: str) -> str:
    """Return the class whose block applies: LSE pods have no block of their own."""
    return LSR if qos == LSE else qos


def _fields(block: slo.CPUQOS | slo.MemoryQOS | slo.ResctrlQOS) -> dict[str, Any]:
    return {name: getattr(block, name) for name in block.__struct_fields__}


S = TypeVar("S", bound=msgspec.Struct)


def overlay(old: S, new: msgspec.Struct) -> S:
    """Return `old` with everything that `new` states. Fields that only `new` has (a name, a selector) are ignored."""
    said = {name: getattr(new, name) for name, silent in _unset_values(type(old)) if getattr(new, name) != silent}
    if not said:
        return old
    return msgspec.structs.replace(old, **{name: _value(getattr(old, name), value) for name, value in said.items()})


def _value(old: Any, new: Any) -> Any:
    if isinstance(new, msgspec.Struct):
        return new if old is None else overlay(old, new)
    if isinstance(new, dict):
        return {**(old or {}), **new}
    if isinstance(new, tuple) and new and isinstance(new[0], msgspec.Struct):
        under = old or ()
        return tuple(overlay(under[i], item) if i < len(under) else item for i, item in enumerate(new))
    return new


@lru_cache(maxsize=256)
def _unset_values(tp: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Return each field with the value that states nothing. Fields that are never omitted always state something."""
    return tuple((f.name, f.default) for f in msgspec.structs.fields(tp))
