"""Select the victims of an eviction: what each rule wants freed, which pods it may evict in which order, and who goes.

One selection serves all rules. What leaving pods will free counts first, so a victim that hangs does not cause others.
Nobody is evicted who would free nothing that is missing. The same pods in any order give the same ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.annotations import pod_codecs
from koord.api.koordinator.protocol import BATCH, BE, KOORDLET_EVICTION_PREFIX, L_EVICTION_ENABLED, MID, TRUE
from koord.api.koordinator.resource_name import BATCH_CPU, CPU, MEMORY, TIER_RESOURCE_NAMES
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan
from koord.policy.eviction import KOORDLET, EvictionRecord

BE_CPU_EVICT = "BECPUEvict"
CPU_ALLOCATABLE_EVICT = "CPUAllocatableEvict"
CPU_EVICT = "CPUEvict"
BE_MEMORY_EVICT = "BEMemoryEvict"
MEMORY_ALLOCATABLE_EVICT = "MemoryAllocatableEvict"
MEMORY_EVICT = "MemoryEvict"


REASON = "evicted"
USED = "podUsed/"
REQUESTED = "podResourceRequest/"
LEDGER_TIERS = (BATCH, MID)


class EvictView(msgspec.Struct, frozen=True, kw_only=True):
    """EvictView holds what all rules observe. `enabled` is None until a NodeSLO was seen. Among the `pods` are the
    containers of other orchestrators.

    A pod in `leaving` was evicted by koordlet and still exists; `barred` tells why a pod must stay for now (a
    disruption budget, say). Usage is the last measured, by uid; a missing pod was not measured.
    """

    enabled: bool | None = None
    features: frozenset[str] = frozenset()
    since_last_s: float = 0.0  # since the last eviction, or the start
    pods: tuple[PodMeta, ...] = ()
    used_milli: Mapping[str, int] = {}
    used_bytes: Mapping[str, int] = {}
    allocatable: Mapping[str, int] = {}
    origin_allocatable: Mapping[str, int] = {}  # batch resources with the share of other orchestrators
    lent_for_s: float = math.inf  # how long batch and mid allocatable have been what they are
    leaving: frozenset[str] = frozenset()
    barred: Mapping[str, str] = {}
    cooldown_s: float = 0.0  # between two evictions

    def idle_reason(self, capacity: int | None, resource: str) -> str:
        """Tell why no rule is looked at; empty when the rules decide. `capacity` is the node's, of the resource."""
        if not self.enabled:
            return "no NodeSLO was seen yet" if self.enabled is None else "eviction is off"
        if not capacity:
            return f"the node's {resource} capacity is not known"
        if self.since_last_s < self.cooldown_s:
            return f"last eviction {self.since_last_s:.0f}s ago, less than {self.cooldown_s:.0f}s"
        return ""


class ReleaseTarget(msgspec.Struct, frozen=True, kw_only=True):
    """ReleaseTarget is what a rule wants freed: amounts by USED or REQUESTED and the name of a resource."""

    rule: str
    amounts: Mapping[str, int]
    measured: str
    threshold: str


class EvictionTask(msgspec.Struct, frozen=True, kw_only=True):
    """EvictionTask holds what a rule wants freed, and the pods that it may evict in order."""

    release: ReleaseTarget
    ranked: tuple[tuple[PodMeta, str], ...]  # whom the rule may evict, first to go first, and why in that place


class IdleRule(msgspec.Struct, frozen=True):
    rule: str
    why: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.why}"


def freed_by(view: EvictView, pod: PodMeta) -> dict[str, int | None]:
    """Return what the end of this pod frees. None is unknown; only requests of its own tier are freed."""
    freed: dict[str, int | None] = {
        USED + CPU: view.used_milli.get(pod.uid),
        USED + MEMORY: view.used_bytes.get(pod.uid),
    }
    tier = TIER_RESOURCE_NAMES.get(pod.priority_class, {}) if pod.priority_class in LEDGER_TIERS else {}
    return freed | {REQUESTED + name: max(0, pod.requests.get(name, 0)) for name in tier.values()}


def select_victims(view: EvictView, wanted: Sequence[EvictionTask | IdleRule]) -> StrategyPlan:
    """Select victims until every rule's target is met, and explain each rule in the plan."""
    released: dict[str, int] = {}
    gone: set[str] = set()
    victims: list[EvictionRequest] = []
    said = [str(one) for one in wanted if isinstance(one, IdleRule)]
    for task in wanted:
        if isinstance(task, IdleRule):
            continue
        credited = _credit(view, task)
        missing = {
            key: left
            for key, amount in task.release.amounts.items()
            if (left := amount - credited.get(key, 0) - released.get(key, 0)) > 0
        }
        said.append(f"{task.release.rule}: {task.release.measured}, {task.release.threshold}; missing {missing}")
        for number, (pod, place) in enumerate(task.ranked, 1):
            if not missing:
                break
            if pod.uid in gone or pod.uid in view.barred or pod.terminating or pod.uid in view.leaving:
                continue
            brings = freed_by(view, pod)
            unknown = [key for key in missing if brings.get(key, 0) is None]
            if not unknown and not any(brings.get(key) for key in missing):
                continue
            victims.append(_eviction_request(task, credited, pod, number, place, brings))
            gone.add(pod.uid)
            for key, amount in brings.items():
                released[key] = released.get(key, 0) + (amount or 0)
            missing = {key: left for key, old in missing.items() if (left := old - (brings.get(key) or 0)) > 0}
            if unknown:
                break  # what it brought shows at the next look; guessing on would empty the node
    return StrategyPlan(effects=tuple(victims), why="; ".join(said))


def _credit(view: EvictView, task: EvictionTask) -> dict[str, int]:
    """Return what will be freed anyway: by koordlet's victims, and by pods of this rule that somebody else deletes.

    Other pods that are being deleted may take their time; the node cannot wait for them.
    """
    own = {pod.uid for pod, _ in task.ranked if pod.terminating}
    total: dict[str, int] = {}
    for pod in view.pods:
        if pod.uid in view.leaving or pod.uid in own:
            for key, amount in freed_by(view, pod).items():
                if key in task.release.amounts and amount:
                    total[key] = total.get(key, 0) + amount
    return total


def _eviction_request(
    task: EvictionTask,
    credited: Mapping[str, int],
    pod: PodMeta,
    number: int,
    place: str,
    brings: Mapping[str, int | None],
) -> EvictionRequest:
    release = task.release
    victim = f"{pod.third_party} container" if pod.third_party else "pod"
    message = f"{KOORDLET_EVICTION_PREFIX}{release.rule}, kill {victim}: {pod.name}"
    return EvictionRequest(
        reason=REASON,
        message=message,
        record=EvictionRecord(
            actor=KOORDLET,
            rule=release.rule,
            reason=message,
            measured=release.measured,
            threshold=release.threshold,
            release=dict(release.amounts),
            credited=dict(credited),
            frees={key: brings.get(key) or 0 for key in release.amounts},
            rank=f"{number} of {len(task.ranked)} that the rule may evict",
            why_this_pod=place,
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            third_party=pod.third_party,
        ),
    )


RankedPods = tuple[tuple[PodMeta, str], ...]


def rank_be_by_cpu(view: EvictView, rule: str) -> RankedPods:
    """Rank BE pods: lowest priority first; among equals the one that uses most of its request."""

    def share(pod: PodMeta) -> float:
        asked = pod.requests.get(BATCH_CPU, 0)
        return view.used_milli.get(pod.uid, 0) / asked if asked > 0 else 0.0

    pods = sorted(_best_effort(view, rule), key=lambda pod: (pod.priority_value, -share(pod), pod.full_name))
    return tuple((pod, f"BE, priority {pod.priority_value}, uses {share(pod):.2f} of its batch-cpu") for pod in pods)


def rank_be_by_memory(view: EvictView, rule: str) -> RankedPods:
    """Rank BE pods: lowest priority first, then the largest; pods that were not measured come last."""

    def key(pod: PodMeta) -> tuple[int, bool, int, str]:
        used = view.used_bytes.get(pod.uid)
        return pod.priority_value, used is None, -(used or 0), pod.full_name

    pods = sorted(_best_effort(view, rule), key=key)
    return tuple(
        (pod, f"BE, priority {pod.priority_value}, uses {view.used_bytes.get(pod.uid, 'unknown')} bytes")
        for pod in pods
    )


def rank_by_priority(view: EvictView, rule: str, threshold: int, size: Callable[[PodMeta], int | None]) -> RankedPods:
    """Rank consenting pods up to a priority: by their eviction priority, then by priority, then the largest.

    `size` decides among equals; None excludes a pod, since nobody knows what its end would free.
    """

    def key(pod: PodMeta) -> tuple[int, int, int, int, str]:
        own, sub = pod_codecs.parse_eviction_priority(pod.annotations), pod_codecs.parse_sub_priority(pod.labels)
        within = sub if isinstance(sub, int) else pod.priority_value
        return own, pod.priority_value, within, -(size(pod) or 0), pod.full_name

    allowed = [
        pod
        for pod in view.pods
        if pod.is_alive
        and pod.priority_value <= threshold
        and pod.labels.get(L_EVICTION_ENABLED) == TRUE
        and pod_codecs.allows_eviction_by(pod.annotations, rule)
        and size(pod) is not None
    ]
    return tuple(
        (pod, f"eviction-priority {own}, priority {priority}, sub-priority {within}, size {-negated}")
        for pod in sorted(allowed, key=key)
        for own, priority, within, negated, _ in (key(pod),)
    )


def _best_effort(view: EvictView, rule: str) -> list[PodMeta]:
    return [
        pod
        for pod in view.pods
        if pod.qos == BE and pod.is_alive and pod_codecs.allows_eviction_by(pod.annotations, rule)
    ]


# A kubelet that registers its node anew sets extended resources to zero until the manager writes them again.
SETTLED_S = 60.0
MAX_EVICTABLE_PRIORITY = 7999  # prod pods are never evicted for what was lent to others


def allocatable_task(
    view: EvictView, rule: str, resource: str, percent: int | None, lower: int | None, priority: int | None
) -> EvictionTask | IdleRule:
    """Return the task of freeing what batch and mid pods request beyond the node's batch and mid allocatable.

    `resource` is cpu or memory; the tiers' own resource names follow from it. Containers of other orchestrators are no
    part of it: what these hold is subtracted from the allocatable, and they give back what is over by themselves.
    """
    if percent is None or lower is None or priority is None:
        return IdleRule(rule, "a threshold, a lower percent and a priority are needed")
    if percent < 0 or lower >= percent or priority > MAX_EVICTABLE_PRIORITY:
        return IdleRule(rule, f"threshold {percent}, lower {lower} and priority {priority} can never work together")
    requests = requested_by_tier(view.pods, resource, priority)
    release = {
        name: amount for name, amount in excess_requests(requests, view.allocatable, percent, lower).items() if amount
    }
    if not release:
        return IdleRule(rule, f"requests {requests} are within {percent}%")
    if view.lent_for_s < SETTLED_S and any(view.allocatable.get(name, 0) <= 0 for name in release):
        return IdleRule(rule, f"nothing is lent any more, but only for {view.lent_for_s:.0f}s")

    def size(pod: PodMeta) -> int | None:
        name = None if pod.third_party else tier_resource(pod, resource)
        measured = view.used_milli if resource == "cpu" else view.used_bytes
        return pod.requests.get(name, 0) if name in release and pod.uid in measured else None

    lent = {name: view.allocatable.get(name) for name in release}
    return EvictionTask(
        release=ReleaseTarget(
            rule=rule,
            amounts={REQUESTED + name: amount for name, amount in release.items()},
            measured=f"requests {requests} of allocatable {lent}",
            threshold=f"more than {percent}%, down to {lower}%",
        ),
        ranked=rank_by_priority(view, rule, priority, size),
    )


def tier_resource(pod: PodMeta, resource: str) -> str | None:
    """Return the name of the resource in the pod's tier; None for pods of other tiers."""
    return TIER_RESOURCE_NAMES[pod.priority_class][resource] if pod.priority_class in (BATCH, MID) else None


def requested_by_tier(pods: tuple[PodMeta, ...], resource: str, priority: int) -> dict[str, int]:
    """Return the requests by tier, of pods up to that priority."""
    total: dict[str, int] = {}
    for pod in pods:
        name = tier_resource(pod, resource)
        if name is not None and not pod.third_party and pod.is_alive and pod.priority_value <= priority:
            total[name] = total.get(name, 0) + max(0, pod.requests.get(name, 0))
    return total


def excess_requests(
    requests: Mapping[str, int], allocatable: Mapping[str, int], percent: int, lower: int
) -> dict[str, int]:
    """Return the requests above the allocatable; all of them where there is no allocatable any more."""
    found: dict[str, int] = {}
    for name, asked in requests.items():
        lent = allocatable.get(name, 0)
        if lent <= 0:
            found[name] = asked
        else:
            found[name] = max(0, (100 * asked - lower * lent) // 100) if 100 * asked > percent * lent else 0
    return found


CPU_EVICT_STRATEGY, MEMORY_EVICT_STRATEGY = "CPUEvict", "memoryEvict"  # as in the table of strategies


def eviction_view_fields(inputs: StrategyInputs, strategy: str, features: frozenset[str]) -> dict[str, Any]:
    """Return the fields that the views of all evicting strategies share."""
    node = inputs.node
    return {
        "enabled": inputs.threshold_enabled,
        "features": features & inputs.gates,
        "since_last_s": inputs.eviction_tracker.since_s(strategy, inputs.now_s),
        "pods": (*inputs.pods, *inputs.third_party),
        "used_milli": inputs.pod_used_milli() | inputs.third_party_used_milli(),
        "used_bytes": inputs.pod_used_bytes() | inputs.third_party_used_bytes(),
        "allocatable": {} if node is None else node.allocatable,
        "origin_allocatable": {} if node is None else node.origin_allocatable,
        "lent_for_s": inputs.lent_for_s,
        "leaving": inputs.eviction_tracker.leaving,
        "barred": inputs.eviction_tracker.barred,
    }
