"""The ResctrlReconcile strategy: shares of last-level cache and memory bandwidth per QoS class, and their threads."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.protocol import A_RESCTRL
from koord.api.qos_class import BE, LS, LSE, LSR
from koord.api.slo_strategy import ResctrlQOSConfig, ResourceQOSStrategy
from koord.koordlet.plan import AddTasks, Effect, Plan, WriteSchemata
from koord.koordlet.pod import PodView
from koord.koordlet.strategies.slo import class_of

OWNER = "ResctrlReconcile"
CAUSE = "UpdateResctrl"
TASKS_CAUSE = "ApplyCatL3GroupTasks"
GROUPS = (LSR, LS, BE)
INTEL, AMD = "GenuineIntel", "AuthenticAMD"
_AMD_FULL, _AMD_UNIT = 2048, 160
_GROUP_OF = {LSE: LSR, LSR: LSR, LS: LS, BE: BE}


class ResctrlView(msgspec.Struct, frozen=True, kw_only=True):
    """What the strategy observes."""
    strategy: ResourceQOSStrategy | None  # None until a NodeSLO was seen
    supported: bool = True
    cache_mask: int = 0  # all ways of the cache
    vendor: str = INTEL
    caches: tuple[int, ...] = ()  # ids, as the root's schemata have them
    pods: tuple[PodView, ...] = ()
    tasks: Mapping[str, tuple[int, ...]] = {}  # threads by a pod's uid
    held: Mapping[str, frozenset[int]] = {}  # threads by group, now


def decide_resctrl(seen: ResctrlView) -> Plan:
    """Decide the schemata of each class, and which threads to move."""
    if seen.strategy is None:
        return Plan(why="no NodeSLO was seen yet")
    if not seen.supported or not seen.caches:
        return Plan(why="this machine cannot divide its cache")
    effects: list[Effect] = []
    said: list[str] = []
    for group in GROUPS:
        config = _config(seen.strategy, group)
        if config is None:
            continue
        effects += _schemata(seen, group, config, said)
    return Plan(effects=(*effects, *_moves(seen, seen.strategy)), why="; ".join(said))


def cache_ways(mask: int, start_percent: int, end_percent: int) -> int | None:
    """Return the mask of cache ways from one percent to another; None when the range or the cache's mask is invalid."""
    if mask <= 0 or mask & (mask + 1) or not 0 <= start_percent < end_percent <= 100:
        return None
    ways = mask.bit_length()
    first, past = -(-ways * start_percent // 100), -(-ways * end_percent // 100)
    return ((1 << past) - (1 << first)) or None


def bandwidth(vendor: str, percent: int | None) -> str | None:
    """Return the MBA value of a percentage: Intel takes tens of percents, AMD eighths of a GB/s."""
    if percent is None or not 0 < percent <= 100:
        return None
    if vendor == INTEL:
        return str(-(-percent // 10) * 10)
    if vendor == AMD:
        return str(_AMD_FULL if percent == 100 else _AMD_UNIT * percent // 100)
    return None


def _config(strategy: ResourceQOSStrategy, qos: str) -> ResctrlQOSConfig | None:
    block = class_of(strategy, qos)
    return None if block is None else block.resctrl_qos


def _schemata(seen: ResctrlView, group: str, config: ResctrlQOSConfig, said: list[str]) -> list[WriteSchemata]:
    lines: list[WriteSchemata] = []
    start, end = config.cat_range_start_percent, config.cat_range_end_percent
    if start is not None and end is not None:
        ways = cache_ways(seen.cache_mask, start, end)
        if ways is None:
            said.append(f"{group}: no cache ways from {start}% to {end}% of {seen.cache_mask:x}")
        else:
            lines.append(_line(seen, group, "L3", f"{ways:x}", f"{start}% to {end}% of {seen.cache_mask:x}"))
    share = bandwidth(seen.vendor, config.mba_percent)
    if share is not None:
        lines.append(_line(seen, group, "MB", share, f"{config.mba_percent}% on {seen.vendor}"))
    return lines


def _line(seen: ResctrlView, group: str, resource: str, value: str, why: str) -> WriteSchemata:
    return WriteSchemata(
        group=group,
        resource="L3" if resource == "L3" else "MB",
        by_cache=tuple((cache, value) for cache in sorted(seen.caches)),
        owner=OWNER,
        cause=CAUSE,
        why=why,
    )


def _moves(seen: ResctrlView, strategy: ResourceQOSStrategy) -> list[AddTasks]:
    wanted: dict[str, list[int]] = {}
    for pod in seen.pods:
        group = _GROUP_OF.get(pod.qos_with_default)
        config = None if group is None else _config(strategy, group)
        if group is None or config is None or not config.enable or not pod.is_alive or A_RESCTRL in pod.annotations:
            continue
        held = seen.held.get(group, frozenset())
        wanted.setdefault(group, []).extend(task for task in seen.tasks.get(pod.uid, ()) if task not in held)
    return [
        AddTasks(group=group, tasks=tuple(sorted(tasks)), owner=OWNER, cause=TASKS_CAUSE, why=f"pods of {group}")
        for group, tasks in wanted.items()
        if tasks
    ]
