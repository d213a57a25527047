"""The SystemConfig strategy: kernel settings of the whole machine. Values out of range are not written."""

from __future__ import annotations

import msgspec

from koord.api.koordinator.resource_name import MEMORY
from koord.api.koordinator.slo import SystemStrategy
from koord.host.cgroup import knob
from koord.koordlet.cgroup_writer.effects import WriteSystem
from koord.koordlet.strategies.group_identity import OWNER as IDENTITY
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan

OWNER = "SystemConfigReconcile"
CAUSE = "systemConfig reconcile"
_RANGES = {
    knob.MIN_FREE_KBYTES: (10_240, 10_485_760),
    knob.WATERMARK_SCALE_FACTOR: (10, 400),
    knob.MEMCG_REAP_BACKGROUND: (0, 1),
    knob.PAGE_CACHE_LIMIT_ENABLED: (0, 1),
    knob.GROUP_IDENTITY_ENABLED: (0, 1),
    knob.IDLE_SAVER_WMARK: (0, 2**63 - 1),
}


class SystemConfigView(msgspec.Struct, frozen=True, kw_only=True):
    strategy: SystemStrategy | None  # None until a NodeSLO was seen
    capacity_bytes: int | None
    identity_taken: bool = False  # whether the group identity strategy runs, which then owns the machine's switch


def decide_system_config(view: SystemConfigView) -> StrategyPlan:
    if view.strategy is None:
        return StrategyPlan(why="no NodeSLO was seen yet")
    if not view.capacity_bytes:
        return StrategyPlan(why="the node's memory capacity is not known")
    config = view.strategy
    wanted = {
        knob.MIN_FREE_KBYTES: min_free_kbytes(view.capacity_bytes, config.min_free_kbytes_factor),
        knob.WATERMARK_SCALE_FACTOR: config.watermark_scale_factor,
        knob.MEMCG_REAP_BACKGROUND: config.memcg_reap_back_ground,
        knob.GROUP_IDENTITY_ENABLED: None if view.identity_taken else config.sched_group_identity_enabled,
        knob.IDLE_SAVER_WMARK: config.sched_idle_saver_wmark,
        knob.PAGE_CACHE_LIMIT_ENABLED: config.page_cache_limit_enabled,
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
        writes.append(_write(knob.SCHED_FEATURES, feature if on else f"NO_{feature}"))
    return StrategyPlan(effects=tuple(writes), why="; ".join(said), complete=True)


def min_free_kbytes(capacity_bytes: int, factor: int | None) -> int | None:
    """Return vm.min_free_kbytes; the factor is in ten-thousandths of the node's memory."""
    return None if factor is None else capacity_bytes // 1024 * factor // 10_000


def _write(name: str, value: str) -> WriteSystem:
    return WriteSystem(file=name, value=value, owner=OWNER, cause=CAUSE, why="systemStrategy of the NodeSLO")


def observe_system_config(inputs: StrategyInputs) -> SystemConfigView:
    slo = inputs.slo
    return SystemConfigView(
        strategy=None if slo is None else slo.system_strategy,
        capacity_bytes=inputs.capacity(MEMORY),
        identity_taken=IDENTITY in inputs.gates,
    )
