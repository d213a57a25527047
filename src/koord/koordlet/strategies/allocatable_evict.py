"""Free what batch and mid pods hold beyond what the node still lends: requests against allocatable."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.qos_class import BATCH, MID
from koord.api.resource_name import TIERS
from koord.koordlet.pod import PodView
from koord.koordlet.strategies.eviction import REQUESTED, EvictView, Idle, Release, Task
from koord.koordlet.strategies.ranking import by_priority

# A kubelet that registers its node anew sets extended resources to zero until the manager writes them again.
SETTLED_S = 60.0
HIGHEST_PRIORITY = 7999  # prod pods are never evicted for what was lent to others


def allocatable_task(
    seen: EvictView, rule: str, resource: str, percent: int | None, lower: int | None, priority: int | None
) -> Task | Idle:
    """Return the task of freeing what batch and mid pods request beyond the node's batch and mid allocatable.

    `resource` is cpu or memory; the tiers' own resource names follow from it.
    """
    if percent is None or lower is None or priority is None:
        return Idle(rule, "a threshold, a lower percent and a priority are needed")
    if percent < 0 or lower >= percent or priority > HIGHEST_PRIORITY:
        return Idle(rule, f"threshold {percent}, lower {lower} and priority {priority} can never work together")
    requests = requested(seen.pods, resource, priority)
    release = {name: amount for name, amount in excess(requests, seen.allocatable, percent, lower).items() if amount}
    if not release:
        return Idle(rule, f"requests {requests} are within {percent}%")
    if seen.lent_for_s < SETTLED_S and any(seen.allocatable.get(name, 0) <= 0 for name in release):
        return Idle(rule, f"nothing is lent any more, but only for {seen.lent_for_s:.0f}s")

    def size(pod: PodView) -> int | None:
        name = tier_resource(pod, resource)
        measured = seen.used_milli if resource == "cpu" else seen.used_bytes
        return pod.requests.get(name, 0) if name in release and pod.uid in measured else None

    lent = {name: seen.allocatable.get(name) for name in release}
    return Task(
        release=Release(
            rule=rule,
            amounts={REQUESTED + name: amount for name, amount in release.items()},
            measured=f"requests {requests} of allocatable {lent}",
            threshold=f"more than {percent}%, down to {lower}%",
        ),
        ranked=by_priority(seen, rule, priority, size),
    )


def tier_resource(pod: PodView, resource: str) -> str | None:
    """Return the name of the resource in the pod's tier; None for pods of other tiers."""
    return TIERS[pod.priority_class][resource] if pod.priority_class in (BATCH, MID) else None


def requested(pods: tuple[PodView, ...], resource: str, priority: int) -> dict[str, int]:
    """Return the requests by tier, of pods up to that priority."""
    total: dict[str, int] = {}
    for pod in pods:
        name = tier_resource(pod, resource)
        if name is not None and pod.is_alive and pod.priority_value <= priority:
            total[name] = total.get(name, 0) + max(0, pod.requests.get(name, 0))
    return total


def excess(requests: Mapping[str, int], allocatable: Mapping[str, int], percent: int, lower: int) -> dict[str, int]:
    """Return the requests above the allocatable; all of them where there is no allocatable any more."""
    found: dict[str, int] = {}
    for name, asked in requests.items():
        lent = allocatable.get(name, 0)
        if lent <= 0:
            found[name] = asked
        else:
            found[name] = max(0, (100 * asked - lower * lent) // 100) if 100 * asked > percent * lent else 0
    return found
