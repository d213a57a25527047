"""The SystemConfig strategy: kernel settings of the whole machine. Values out of range are not written."""

from __future__ import annotations

import msgspec

from koord.api.slo_strategy import SystemStrategy
from koord.koordlet.plan import Plan, WriteSystem
from koord.koordlet.strategies import file

OWNER = "SystemConfigReconcile"
CAUSE = "systemConfig reconcile"
_RANGES = {
    file.MIN_FREE_KBYTES: (10_240, 10_485_760),
    file.WATERMARK_SCALE_FACTOR: (10, 400),
    file.MEMCG_REAP_BACKGROUND: (0, 1),
    file.PAGE_CACHE_LIMIT_ENABLED: (0, 1),
    file.GROUP_IDENTITY_ENABLED: (0, 1),
    file.IDLE_SAVER_WMARK: (0, 2**63 - 1),
}


class SystemConfigView(msgspec.Struct, frozen=True, kw_only=True):
    """What the strategy observes."""
    strategy: SystemStrategy | None  # None until a NodeSLO was seen
    capacity_bytes: int | None
    identity_taken: bool = False  # whether the group identity strategy runs, which then owns the machine's switch


def decide_system_config(seen: SystemConfigView) -> Plan:
    """Decide the kernel settings."""
    if seen.strategy is None:
        return Plan(why="no NodeSLO was seen yet")
    if not seen.capacity_bytes:
        return Plan(why="the node's memory capacity is not known")
    config = seen.strategy
    wanted = {
        file.MIN_FREE_KBYTES: min_free_kbytes(seen.capacity_bytes, config.min_free_kbytes_factor),
        file.WATERMARK_SCALE_FACTOR: config.watermark_scale_factor,
        file.MEMCG_REAP_BACKGROUND: config.memcg_reap_back_ground,
        file.GROUP_IDENTITY_ENABLED: None if seen.identity_taken else config.sched_group_identity_enabled,
        file.IDLE_SAVER_WMARK: config.sched_idle_saver_wmark,
        file.PAGE_CACHE_LIMIT_ENABLED: config.page_cache_limit_enabled,
    }
    writes: list[WriteSystem] = []
    said: list[str] = []
    for name, value in wanted.items():
        if value is None:
            continue
        low, high = _RANGES[name]
        if low <= value <= high:
            writes.append(_write(name, str(value)))
        else:
            said.append(f"{name} {value} is not from {low} to {high}")
    for feature, on in sorted(config.sched_features.items()):
        writes.append(_write(file.SCHED_FEATURES, feature if on else f"NO_{feature}"))
    return Plan(effects=tuple(writes), why="; ".join(said))


def min_free_kbytes(capacity_bytes: int, factor: int | None) -> int | None:
    """Return vm.min_free_kbytes; the factor is in ten-thousandths of the node's memory."""
    return None if factor is None else capacity_bytes // 1024 * factor // 10_000


def _write(name: str, value: str) -> WriteSystem:
    return WriteSystem(file=name, value=value, owner=OWNER, cause=CAUSE, why="systemStrategy of the NodeSLO")
