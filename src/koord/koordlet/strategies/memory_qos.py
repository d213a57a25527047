"""Memory protection and throttling: what each class, pod and container is kept, and from where it is slowed down.

Amounts come from requests, limits and percents alone. A setting that is absent leaves its file untouched.
"""

from __future__ import annotations

import msgspec

from koord.api.qos_class import BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS, LSR
from koord.api.slo_strategy import MemoryQOS, ResourceQOSStrategy
from koord.koordlet.plan import Plan, WriteCgroup
from koord.koordlet.pod import ContainerView, PodView
from koord.koordlet.strategies import file
from koord.koordlet.strategies.memory_profile import amount, pod_limit, profile, resource_of
from koord.koordlet.strategies.slo import class_of

OWNER = "CgroupReconcile"
CAUSE = "cgroup reconcile"
NO_THROTTLING = 2**63 - 1
_CLASS_OF_DIR = {GUARANTEED: LSR, BURSTABLE: LS, BEST_EFFORT: BE}


class MemoryQosView(msgspec.Struct, frozen=True, kw_only=True):
    """What the strategy observes."""
    strategy: ResourceQOSStrategy | None  # None until a NodeSLO was seen
    allocatable_bytes: int | None
    pods: tuple[PodView, ...] = ()
    groups: dict[str, str] = {}  # cgroup by Kubernetes' QoS class; that of Guaranteed holds the other two
    page_bytes: int = 4096


class _Protection(msgspec.Struct, frozen=True, gc=False):
    """The protection that a pod asks of its parents; None where its settings do not mention it."""

    least: int | None
    low: int | None


def decide_memory_qos(seen: MemoryQosView) -> Plan:
    """Decide the memory files of all classes, pods and containers."""
    if seen.strategy is None:
        return Plan(why="no NodeSLO was seen yet")
    if not seen.allocatable_bytes:
        return Plan(why="the node's allocatable memory is not known")
    pod_writes: list[WriteCgroup] = []
    container_writes: list[WriteCgroup] = []
    asked: dict[str, list[_Protection]] = {}
    for pod in seen.pods:
        config = profile(seen.strategy, pod) if pod.is_alive and pod.group else None
        if config is None:
            continue
        request = amount(pod.requests, resource_of(pod)) or 0
        protection = _protection(config, request)
        asked.setdefault(pod.kube_qos, []).append(protection)
        why = f"request {request}, min {config.min_limit_percent}%, low {config.low_limit_percent}%"
        pod_writes += _writes(pod.group, [*_kept(protection), *_marks(config), *_page_cache(config, pod)], why)
        for container in pod.containers:
            if container.id and container.group:
                container_writes += _container(seen, config, pod, container, seen.allocatable_bytes)
    effects = (*_classes(seen, seen.strategy, asked), *pod_writes, *container_writes)
    return Plan(effects=effects)


def throttled_from(config: MemoryQOS, request: int, limit: int | None, allocatable: int, page: int) -> int | None:
    """Return memory.high: a percentage of the way from the request to the limit, in whole pages."""
    percent = config.throttling_percent
    if percent is None:
        return None
    if percent == 0:
        return NO_THROTTLING
    most = max(limit or allocatable, request)
    return (request + (most - request) * percent // 100) // page * page


def _protection(config: MemoryQOS, request: int) -> _Protection:
    least = None if config.min_limit_percent is None else request * config.min_limit_percent // 100
    low = None if config.low_limit_percent is None else request * config.low_limit_percent // 100
    return _Protection(least, _at_least(low, least))


def _at_least(value: int | None, least: int | None) -> int | None:
    """Raise a softer bound to the harder one, below which it would have no effect; 0 is none and stays."""
    return least if value and least and value < least else value


def _container(
    seen: MemoryQosView, config: MemoryQOS, pod: PodView, container: ContainerView, allocatable: int
) -> list[WriteCgroup]:
    name = resource_of(pod)
    request, limit = amount(container.requests, name) or 0, amount(container.limits, name)
    protection = _protection(config, request)
    high = throttled_from(config, request, limit, allocatable, seen.page_bytes)
    why = f"request {request}, limit {limit}, throttled from {config.throttling_percent}% between them"
    values = [*_kept(protection), (file.MEMORY_HIGH, _at_least(high, protection.least)), *_marks(config)]
    return _writes(container.group, values, why)


def _classes(
    seen: MemoryQosView, strategy: ResourceQOSStrategy, asked: dict[str, list[_Protection]]
) -> list[WriteCgroup]:
    writes: list[WriteCgroup] = []
    for kube_qos, qos in _CLASS_OF_DIR.items():
        group = seen.groups.get(kube_qos)
        if group is None:
            continue
        # The directory of Guaranteed pods is the parent of the other two, so it keeps what they keep as well.
        below = [one for members in asked.values() for one in members] if kube_qos == GUARANTEED else []
        members = below or asked.get(kube_qos, [])
        block = class_of(strategy, qos)
        config = None if block is None else block.memory_qos
        # What the last pod of a class was kept must not stay when it is gone.
        idle_least = None if config is None or config.min_limit_percent is None else 0
        idle_low = None if config is None or config.low_limit_percent is None else 0
        kept = _Protection(
            _sum([one.least for one in members], idle_least), _sum([one.low for one in members], idle_low)
        )
        values = [*_kept(kept), *(() if config is None else _priorities(config))]
        writes += _writes(group, values, f"of {len(members)} pods")
    return writes


def _sum(amounts: list[int | None], of_none: int | None) -> int | None:
    known = [value for value in amounts if value is not None]
    return sum(known) if known else of_none


def _kept(protection: _Protection) -> list[tuple[str, int | None]]:
    return [(file.MEMORY_MIN, protection.least), (file.MEMORY_LOW, protection.low)]


def _marks(config: MemoryQOS) -> list[tuple[str, int | None]]:
    return [
        (file.MEMORY_WMARK_RATIO, config.wmark_ratio),
        (file.MEMORY_WMARK_SCALE, config.wmark_scale_permill),
        (file.MEMORY_WMARK_MIN_ADJ, config.wmark_min_adj),
        *_priorities(config),
    ]


def _priorities(config: MemoryQOS) -> list[tuple[str, int | None]]:
    return [
        (file.MEMORY_PRIORITY, config.priority),
        (file.MEMORY_USE_PRIORITY_OOM, config.priority_enable),
        (file.MEMORY_OOM_GROUP, config.oom_kill_group),
    ]


def _page_cache(config: MemoryQOS, pod: PodView) -> list[tuple[str, int | None]]:
    limit, size = pod_limit(pod), config.page_cache_limit_size
    if size is not None and limit:
        size = min(size, limit)
    elif size is None and config.page_cache_limit_percent is not None and limit:
        size = limit * config.page_cache_limit_percent // 100
    enable = None if size is None else int(size > 0)
    if config.page_cache_enable is not None:
        enable = int(config.page_cache_enable)
    sync = int(bool(config.page_cache_reclaim_sync)) if size else None
    return [(file.PAGE_CACHE_ENABLE, enable), (file.PAGE_CACHE_SIZE, size), (file.PAGE_CACHE_SYNC, sync)]


def _writes(group: str, values: list[tuple[str, int | None]], why: str) -> list[WriteCgroup]:
    return [
        WriteCgroup(group=group, file=name, value=str(value), owner=OWNER, cause=CAUSE, why=why)
        for name, value in values
        if value is not None
    ]
