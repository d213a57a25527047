"""Who goes, when something must be freed: one choice for all rules, with a line for the ledger per victim.

Rules say what must be freed and rank the pods that they may evict. What pods on their way out will free counts first,
so a victim that hangs does not drag others along. Nobody goes who would free nothing that is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from koord.api.protocol import KOORDLET_EVICTION_PREFIX
from koord.api.qos_class import BATCH, MID
from koord.api.resource_name import CPU, MEMORY, TIERS
from koord.koordlet.plan import Evict, EvictionRecord, Plan
from koord.koordlet.pod import PodView

ACTOR = "koordlet"
REASON = "evicted"
USED = "podUsed/"
REQUESTED = "podResourceRequest/"
LEDGER_TIERS = (BATCH, MID)


class EvictView(msgspec.Struct, frozen=True, kw_only=True):
    """What all rules observe. `enabled` is None until a NodeSLO was seen.

    A pod in `leaving` was evicted by koordlet and still exists; `barred` tells why a pod must stay for now (a
    disruption budget, say). Usage is the last measured, by uid; a missing pod was not measured.
    """

    enabled: bool | None = None
    features: frozenset[str] = frozenset()
    since_last_s: float = 0.0  # since the last eviction, or the start
    pods: tuple[PodView, ...] = ()
    used_milli: Mapping[str, int] = {}
    used_bytes: Mapping[str, int] = {}
    allocatable: Mapping[str, int] = {}
    lent_for_s: float = math.inf  # how long batch and mid allocatable have been what they are
    leaving: frozenset[str] = frozenset()
    barred: Mapping[str, str] = {}


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule wants freed: amounts by USED or REQUESTED and the name of a resource."""

    rule: str
    amounts: Mapping[str, int]
    measured: str
    threshold: str


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule wants freed, and the pods that it may evict in order."""
    release: Release
    ranked: tuple[tuple[PodView, str], ...]  # whom the rule may evict, first to go first, and why in that place


class Idle(msgspec.Struct, frozen=True):
    """Why a rule wants nothing."""

    rule: str
    why: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.why}"


def frees(seen: EvictView, pod: PodView) -> dict[str, int | None]:
    """Return what the end of this pod frees. None is unknown; only requests of its own tier are freed."""
    freed: dict[str, int | None] = {
        USED + CPU: seen.used_milli.get(pod.uid),
        USED + MEMORY: seen.used_bytes.get(pod.uid),
    }
    tier = TIERS.get(pod.priority_class, {}) if pod.priority_class in LEDGER_TIERS else {}
    return freed | {REQUESTED + name: max(0, pod.requests.get(name, 0)) for name in tier.values()}


def choose(seen: EvictView, wanted: Sequence[Task | Idle]) -> Plan:
    """Select victims until every rule's target is met, and explain each rule in the plan."""
    released: dict[str, int] = {}
    gone: set[str] = set()
    victims: list[Evict] = []
    said = [str(one) for one in wanted if isinstance(one, Idle)]
    for task in wanted:
        if isinstance(task, Idle):
            continue
        credited = _credit(seen, task)
        missing = {
            key: left
            for key, amount in task.release.amounts.items()
            if (left := amount - credited.get(key, 0) - released.get(key, 0)) > 0
        }
        said.append(f"{task.release.rule}: {task.release.measured}, {task.release.threshold}; missing {missing}")
        for pod, place in task.ranked:
            if not missing:
                break
            if pod.uid in gone or pod.uid in seen.barred or _is_leaving(seen, pod):
                continue
            brings = frees(seen, pod)
            unknown = [key for key in missing if brings.get(key, 0) is None]
            if not unknown and not any(brings.get(key) for key in missing):
                continue
            victims.append(_evict(task, credited, pod, place, brings))
            gone.add(pod.uid)
            for key, amount in brings.items():
                released[key] = released.get(key, 0) + (amount or 0)
            missing = {key: left for key, old in missing.items() if (left := old - (brings.get(key) or 0)) > 0}
            if unknown:
                break  # what it brought shows at the next look; guessing on would empty the node
    return Plan(effects=tuple(victims), why="; ".join(said))


def _is_leaving(seen: EvictView, pod: PodView) -> bool:
    return pod.terminating or pod.uid in seen.leaving


def _credit(seen: EvictView, task: Task) -> dict[str, int]:
    """Return what will be freed anyway: by koordlet's victims, and by pods of this rule that somebody else deletes.

    Other pods that are being deleted may take their time; the node cannot wait for them.
    """
    own = {pod.uid for pod, _ in task.ranked if pod.terminating}
    total: dict[str, int] = {}
    for pod in seen.pods:
        if pod.uid in seen.leaving or pod.uid in own:
            for key, amount in frees(seen, pod).items():
                if key in task.release.amounts and amount:
                    total[key] = total.get(key, 0) + amount
    return total


def _evict(
    task: Task, credited: Mapping[str, int], pod: PodView, place: str, brings: Mapping[str, int | None]
) -> Evict:
    release = task.release
    return Evict(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        reason=REASON,
        message=f"{KOORDLET_EVICTION_PREFIX}{release.rule}, kill pod: {pod.name}",
        record=EvictionRecord(
            actor=ACTOR,
            rule=release.rule,
            measured=release.measured,
            threshold=release.threshold,
            release=dict(release.amounts),
            credited=dict(credited),
            frees={key: brings.get(key) or 0 for key in release.amounts},
            why_this_pod=place,
        ),
    )
