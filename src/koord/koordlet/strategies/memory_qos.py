"""The CgroupReconcile strategy: memory protection (min, low), throttling (high) and page cache limits.

Amounts come from requests, limits and percents alone. A setting that is absent leaves its file untouched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from koord.api.annotations import qos_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.slo import defaults
from koord.api.config.slo.defaults import overlay
from koord.api.koordinator.protocol import BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS, LSR
from koord.api.koordinator.resource_name import BATCH_MEMORY, MEMORY
from koord.api.koordinator.slo import MemoryQOS, ResourceQOSStrategy
from koord.host.cgroup import knob
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.effective_slo import qos_class_settings
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan


def memory_qos_of_pod(strategy: ResourceQOSStrategy, pod: PodMeta) -> MemoryQOS | None:
    """Return the memory QoS of a pod from its class, its annotation or both; None when neither mentions it."""
    block = qos_class_settings(strategy, pod.qos_with_default)
    config = None if block is None or block.memory_qos is None else _plain(block.memory_qos)
    own = qos_codecs.parse_memory_qos(pod.annotations)
    if own is None or isinstance(own, MalformedAnnotation):
        return config
    if own.effective_policy == qos_codecs.MEMORY_QOS_NONE:
        return defaults.NO_MEMORY_QOS
    if own.effective_policy == qos_codecs.MEMORY_QOS_AUTO and pod.qos_with_default:
        config = defaults.memory_qos(pod.qos_with_default)
    return overlay(config or MemoryQOS(), own)


def memory_resource_of(pod: PodMeta) -> str:
    """Return the memory resource of a pod: batch-memory for BE pods by label, memory for all others."""
    return BATCH_MEMORY if pod.qos == BE else MEMORY


def amount_or_none(listed: Mapping[str, int], name: str) -> int | None:
    """Return a listed amount; None when it is absent or negative."""
    value = listed.get(name)
    return None if value is None or value < 0 else value


def pod_memory_limit(pod: PodMeta) -> int | None:
    """Return the memory limit of a pod; None when a container has none and Kubernetes does not add up itself."""
    name = memory_resource_of(pod)
    if name == MEMORY:
        return amount_or_none(pod.limits, name)
    limits = [amount_or_none(container.limits, name) for container in pod.containers]
    known = [limit for limit in limits if limit is not None]
    return sum(known) if known and len(known) == len(limits) else None


def _plain(config: MemoryQOS) -> MemoryQOS:
    return MemoryQOS(**{name: getattr(config, name) for name in MemoryQOS.__struct_fields__})


OWNER = "CgroupReconcile"
CAUSE = "cgroup reconcile"
NO_THROTTLING = 2**63 - 1
_CLASS_OF_DIR = {GUARANTEED: LSR, BURSTABLE: LS, BEST_EFFORT: BE}


class MemoryQosView(msgspec.Struct, frozen=True, kw_only=True):
    strategy: ResourceQOSStrategy | None  # None until a NodeSLO was seen
    allocatable_bytes: int | None
    pods: tuple[PodMeta, ...] = ()
    groups: dict[str, str] = {}  # cgroup by Kubernetes' QoS class; that of Guaranteed holds the other two
    page_bytes: int = 4096


class _Protection(msgspec.Struct, frozen=True, gc=False):
    """The protection that a pod asks of its parents; None where its settings do not mention it."""

    least: int | None
    low: int | None


def decide_memory_qos(view: MemoryQosView) -> StrategyPlan:
    if view.strategy is None:
        return StrategyPlan(why="no NodeSLO was seen yet")
    if not view.allocatable_bytes:
        return StrategyPlan(why="the node's allocatable memory is not known")
    pod_writes: list[WriteCgroup] = []
    container_writes: list[WriteCgroup] = []
    asked: dict[str, list[_Protection]] = {}
    for pod in view.pods:
        config = memory_qos_of_pod(view.strategy, pod) if pod.is_alive and pod.group else None
        if config is None:
            continue
        request = amount_or_none(pod.requests, memory_resource_of(pod)) or 0
        protection = _protection(config, request)
        asked.setdefault(pod.kube_qos, []).append(protection)
        why = f"request {request}, min {config.min_limit_percent}%, low {config.low_limit_percent}%"
        pod_writes += _writes(pod.group, [*_kept(protection), *_marks(config), *_page_cache(config, pod)], why)
        for container in pod.containers:
            if container.id and container.group:
                container_writes += _container(view, config, pod, container, view.allocatable_bytes)
    effects = (*_classes(view, view.strategy, asked), *pod_writes, *container_writes)
    return StrategyPlan(effects=effects, complete=True)


def memory_high_bytes(config: MemoryQOS, request: int, limit: int | None, allocatable: int, page: int) -> int | None:
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
    view: MemoryQosView, config: MemoryQOS, pod: PodMeta, container: ContainerMeta, allocatable: int
) -> list[WriteCgroup]:
    name = memory_resource_of(pod)
    request, limit = amount_or_none(container.requests, name) or 0, amount_or_none(container.limits, name)
    protection = _protection(config, request)
    high = memory_high_bytes(config, request, limit, allocatable, view.page_bytes)
    why = f"request {request}, limit {limit}, throttled from {config.throttling_percent}% between them"
    values = [*_kept(protection), (knob.MEMORY_HIGH, _at_least(high, protection.least)), *_marks(config)]
    return _writes(container.group, values, why)


def _classes(
    view: MemoryQosView, strategy: ResourceQOSStrategy, asked: dict[str, list[_Protection]]
) -> Iterator[WriteCgroup]:
    for kube_qos, qos in _CLASS_OF_DIR.items():
        group = view.groups.get(kube_qos)
        if group is None:
            continue
        # The directory of Guaranteed pods is the parent of the other two, so it keeps what they keep as well.
        below = [one for members in asked.values() for one in members] if kube_qos == GUARANTEED else []
        members = below or asked.get(kube_qos, [])
        block = qos_class_settings(strategy, qos)
        config = None if block is None else block.memory_qos
        # What the last pod of a class was kept must not stay when it is gone.
        idle_least = None if config is None or config.min_limit_percent is None else 0
        idle_low = None if config is None or config.low_limit_percent is None else 0
        kept = _Protection(
            _sum([one.least for one in members], idle_least), _sum([one.low for one in members], idle_low)
        )
        values = [*_kept(kept), *(() if config is None else _priorities(config))]
        yield from _writes(group, values, f"of {len(members)} pods")


def _sum(amounts: list[int | None], of_none: int | None) -> int | None:
    known = [value for value in amounts if value is not None]
    return sum(known) if known else of_none


def _kept(protection: _Protection) -> list[tuple[str, int | None]]:
    return [(knob.MEMORY_MIN, protection.least), (knob.MEMORY_LOW, protection.low)]


def _marks(config: MemoryQOS) -> list[tuple[str, int | None]]:
    return [
        (knob.MEMORY_WMARK_RATIO, config.wmark_ratio),
        (knob.MEMORY_WMARK_SCALE, config.wmark_scale_permill),
        (knob.MEMORY_WMARK_MIN_ADJ, config.wmark_min_adj),
        *_priorities(config),
    ]


def _priorities(config: MemoryQOS) -> list[tuple[str, int | None]]:
    return [
        (knob.MEMORY_PRIORITY, config.priority),
        (knob.MEMORY_USE_PRIORITY_OOM, config.priority_enable),
        (knob.MEMORY_OOM_GROUP, config.oom_kill_group),
    ]


def _page_cache(config: MemoryQOS, pod: PodMeta) -> list[tuple[str, int | None]]:
    limit, size = pod_memory_limit(pod), config.page_cache_limit_size
    if size is not None and limit:
        size = min(size, limit)
    elif size is None and config.page_cache_limit_percent is not None and limit:
        size = limit * config.page_cache_limit_percent // 100
    enable = None if size is None else int(size > 0)
    if config.page_cache_enable is not None:
        enable = int(config.page_cache_enable)
    sync = int(bool(config.page_cache_reclaim_sync)) if size else None
    return [
        (knob.PAGE_CACHE_ENABLE, enable),
        (knob.PAGE_CACHE_SIZE, size),
        (knob.PAGE_CACHE_SYNC, sync),
    ]


def _writes(group: str, values: list[tuple[str, int | None]], why: str) -> list[WriteCgroup]:
    return [
        WriteCgroup(group=group, file=name, value=str(value), owner=OWNER, cause=CAUSE, why=why)
        for name, value in values
        if value is not None
    ]


def observe_memory_qos(inputs: StrategyInputs) -> MemoryQosView:
    """Observe the node's memory and the pods with their groups."""
    shape = inputs.machine.shape
    return MemoryQosView(
        strategy=inputs.resource_qos_strategy,
        allocatable_bytes=inputs.allocatable(MEMORY),
        pods=inputs.pods,
        groups=dict(shape.groups),
        page_bytes=shape.page_bytes,
    )
