"""What evictions look at: pressure on CPU and memory, what pods use, and which of them are on their way out already."""

from __future__ import annotations

from typing import Any

from koord.api.resource_name import CPU, MEMORY
from koord.koordlet.observe.scene import Scene
from koord.koordlet.series import kind
from koord.koordlet.strategies.cpu_evict import BeCpu, CpuEvictView, window_s
from koord.koordlet.strategies.feature import (
    BE_CPU_EVICT,
    BE_MEMORY_EVICT,
    CPU_ALLOCATABLE_EVICT,
    CPU_EVICT,
    MEMORY_ALLOCATABLE_EVICT,
    MEMORY_EVICT,
)
from koord.koordlet.strategies.memory_evict import MemoryEvictView

CPU_NAME, MEMORY_NAME = "CPUEvict", "memoryEvict"  # as in the table of strategies
_CPU_FEATURES = frozenset({BE_CPU_EVICT, CPU_ALLOCATABLE_EVICT, CPU_EVICT})
_MEMORY_FEATURES = frozenset({BE_MEMORY_EVICT, MEMORY_ALLOCATABLE_EVICT, MEMORY_EVICT})
_BE_SERIES = (kind.BE_USAGE, kind.BE_REQUEST, kind.BE_REAL_LIMIT)


def observe_cpu_evict(scene: Scene) -> CpuEvictView:
    """Observe CPU pressure, what pods use, and which of them are leaving already."""
    interval_s = scene.settings.collect_interval_s
    length_s = window_s(scene.threshold, interval_s)
    return CpuEvictView(
        **_shared(scene, CPU_NAME, _CPU_FEATURES),
        strategy=scene.threshold,
        capacity_milli=scene.capacity(CPU),
        be_average=_be(scene, length_s),
        be_last=_be_last(scene),
        node_used_milli=scene.average_milli(length_s, kind.NODE_CPU),
        node_last_milli=scene.latest_milli(kind.NODE_CPU),
        interval_s=interval_s,
        cool_s=scene.settings.cpu_evict_cool_s,
    )


def observe_memory_evict(scene: Scene) -> MemoryEvictView:
    """Observe memory pressure, what pods use, and which of them are leaving already."""
    used = scene.store.latest((kind.NODE_MEMORY,), scene.now_s)
    return MemoryEvictView(
        **_shared(scene, MEMORY_NAME, _MEMORY_FEATURES),
        strategy=scene.threshold,
        capacity_bytes=scene.capacity(MEMORY),
        node_used_bytes=None if used is None else int(used),
        cool_s=scene.settings.memory_evict_cool_s,
    )


def _shared(scene: Scene, strategy: str, features: frozenset[str]) -> dict[str, Any]:
    """Return the fields that the views of all evicting strategies share."""
    node = scene.facts.node
    return {
        "enabled": scene.threshold_enabled,
        "features": features & scene.gates,
        "since_last_s": scene.departures.since_s(strategy, scene.now_s),
        "pods": scene.pods,
        "used_milli": scene.pod_used_milli(),
        "used_bytes": scene.pod_used_bytes(),
        "allocatable": {} if node is None else node.allocatable,
        "lent_for_s": scene.lent_for_s,
        "leaving": scene.departures.leaving,
        "barred": scene.departures.barred,
    }


def _be(scene: Scene, length_s: float) -> BeCpu | None:
    windows = [scene.store.window((kind.NODE_BE, name), scene.now_s, length_s) for name in _BE_SERIES]
    used, request, limit = (window.avg for window in windows)
    if used is None or request is None or limit is None:
        return None
    count = min(window.count for window in windows)
    return BeCpu(used=int(used), request=int(request), limit=int(limit), count=count)


def _be_last(scene: Scene) -> BeCpu | None:
    used, request, limit = (scene.store.latest((kind.NODE_BE, name), scene.now_s) for name in _BE_SERIES)
    if used is None or request is None or limit is None:
        return None
    return BeCpu(used=int(used), request=int(request), limit=int(limit))
