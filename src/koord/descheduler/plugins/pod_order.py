"""The order in which pods are evicted: the least important first, and among equals the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from koord.api.qos_class import BATCH, BE, BEST_EFFORT, BURSTABLE, FREE, GUARANTEED, LS, LSE, LSR, MID, PROD, SYSTEM
from koord.descheduler.plugins.standing import Standing, standing
from koord.descheduler.snapshot import by_name
from koord.descheduler.wire import Pod

_CLASS = {FREE: 1, BATCH: 2, MID: 3, PROD: 4}
_KUBE_QOS = {BEST_EFFORT: 1, BURSTABLE: 2, GUARANTEED: 3}
_QOS = {BE: 1, LS: 2, LSR: 3, LSE: 4, SYSTEM: 4}
_LAST = 5


def rank(stands: Standing, usage: float = 0.0) -> tuple[Any, ...]:
    """Return the sort key of a pod; smaller is evicted first. `usage` decides between otherwise equal pods."""
    return (
        _CLASS.get(stands.priority_class, _LAST),
        stands.priority,
        _KUBE_QOS.get(stands.kube_qos, 0),
        _QOS.get(stands.qos, _LAST),
        stands.deletion_cost,
        stands.eviction_cost,
        usage,
        -stands.created_s,
    )


def ordered(pods: Iterable[Pod], usage: Callable[[Pod], float] | None = None) -> list[Pod]:
    """Sort pods in eviction order, the first to be evicted first; equal pods by name."""
    return sorted(pods, key=lambda pod: (*rank(standing(pod), usage(pod) if usage is not None else 0.0), by_name(pod)))
