"""Which pods a rule may evict, and which of them first. The same pods in any order give the same ranking."""

from __future__ import annotations

from collections.abc import Callable

from koord.api.annotations import eviction_policy, eviction_priority, sub_priority
from koord.api.protocol import L_EVICTION_ENABLED, TRUE
from koord.api.qos_class import BE
from koord.api.resource_name import BATCH_CPU
from koord.koordlet.pod import PodView
from koord.koordlet.strategies.eviction import EvictView

Ranked = tuple[tuple[PodView, str], ...]


def best_effort_by_cpu(seen: EvictView, rule: str) -> Ranked:
    """Rank BE pods: lowest priority first; among equals the one that uses most of its request."""

    def share(pod: PodView) -> float:
        asked = pod.requests.get(BATCH_CPU, 0)
        return seen.used_milli.get(pod.uid, 0) / asked if asked > 0 else 0.0

    pods = sorted(_best_effort(seen, rule), key=lambda pod: (pod.priority_value, -share(pod), pod.full_name))
    return tuple((pod, f"BE, priority {pod.priority_value}, uses {share(pod):.2f} of its batch-cpu") for pod in pods)


def best_effort_by_memory(seen: EvictView, rule: str) -> Ranked:
    """Rank BE pods: lowest priority first, then the largest; pods that were not measured come last."""

    def key(pod: PodView) -> tuple[int, bool, int, str]:
        used = seen.used_bytes.get(pod.uid)
        return pod.priority_value, used is None, -(used or 0), pod.full_name

    pods = sorted(_best_effort(seen, rule), key=key)
    return tuple(
        (pod, f"BE, priority {pod.priority_value}, uses {seen.used_bytes.get(pod.uid, 'unknown')} bytes")
        for pod in pods
    )


def by_priority(seen: EvictView, rule: str, threshold: int, size: Callable[[PodView], int | None]) -> Ranked:
    """Rank consenting pods up to a priority: by their eviction priority, then by priority, then the largest.

    `size` decides among equals; None excludes a pod, since nobody knows what its end would free.
    """

    def key(pod: PodView) -> tuple[int, int, int, int, str]:
        own, sub = eviction_priority.parse(pod.annotations), sub_priority.parse(pod.labels)
        within = sub if isinstance(sub, int) else pod.priority_value
        return own, pod.priority_value, within, -(size(pod) or 0), pod.full_name

    allowed = [
        pod
        for pod in seen.pods
        if pod.is_alive
        and pod.priority_value <= threshold
        and pod.labels.get(L_EVICTION_ENABLED) == TRUE
        and eviction_policy.allows(pod.annotations, rule)
        and size(pod) is not None
    ]
    return tuple(
        (pod, f"eviction-priority {own}, priority {priority}, sub-priority {within}, size {-negated}")
        for pod in sorted(allowed, key=key)
        for own, priority, within, negated, _ in (key(pod),)
    )


def _best_effort(seen: EvictView, rule: str) -> list[PodView]:
    return [
        pod for pod in seen.pods if pod.qos == BE and pod.is_alive and eviction_policy.allows(pod.annotations, rule)
    ]
