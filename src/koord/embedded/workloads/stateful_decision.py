"""Decide which pod of a StatefulSet is created or deleted next, in order unless its policy says otherwise,
and what becomes of its volume claims. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from koord.api.apps import StatefulSet, StatefulSetStatus
from koord.api.core import Pod
from koord.embedded.workloads.context import seconds_until
from koord.embedded.workloads.history import REVISION_HASH
from koord.embedded.workloads.pod_state import available, finished, ready, ready_since


class View(msgspec.Struct, frozen=True, kw_only=True):
    set: StatefulSet
    pods: tuple[Pod, ...]
    current: str  # revision names
    update: str
    collisions: int | None = None
    now: datetime


class NewPod(msgspec.Struct, frozen=True):
    ordinal: int
    revision: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    create: tuple[NewPod, ...] = ()
    delete: tuple[Pod, ...] = ()
    status: StatefulSetStatus
    look_again_s: float | None = None


def wanted(stateful_set: StatefulSet) -> int:
    replicas = stateful_set.spec.replicas
    return 1 if replicas is None else replicas


def first_ordinal(stateful_set: StatefulSet) -> int:
    return stateful_set.spec.ordinals.start if stateful_set.spec.ordinals is not None else 0


def ordinal_of(stateful_set: StatefulSet, name: str) -> int | None:
    prefix = f"{stateful_set.metadata.name}-"
    digits = name[len(prefix) :]
    if not name.startswith(prefix) or not digits.isdecimal() or str(int(digits)) != digits:
        return None
    return int(digits)


def condemned(stateful_set: StatefulSet, name: str) -> bool:
    """Return whether the pod's ordinal is no longer wanted."""
    ordinal, first = ordinal_of(stateful_set, name), first_ordinal(stateful_set)
    return ordinal is not None and not first <= ordinal < first + wanted(stateful_set)


def partition(stateful_set: StatefulSet) -> int:
    rolling = stateful_set.spec.update_strategy.rolling_update
    return rolling.partition or 0 if rolling is not None else 0


def revision_of(pod: Pod) -> str:
    return pod.metadata.labels.get(REVISION_HASH, "")


def _leaving(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _up(pod: Pod) -> bool:
    return pod.status.phase == "Running" and ready(pod)


def decide(seen: View) -> Plan:
    spec = seen.set.spec
    first, count = first_ordinal(seen.set), wanted(seen.set)
    slots: dict[int, Pod] = {}
    surplus: list[tuple[int, Pod]] = []
    for pod in seen.pods:
        ordinal = ordinal_of(seen.set, pod.metadata.name)
        if ordinal is None:
            continue
        if first <= ordinal < first + count:
            slots[ordinal] = pod
        else:
            surplus.append((ordinal, pod))
    surplus.sort(key=lambda pair: pair[0], reverse=True)
    status = _status(seen, [*slots.values(), *(pod for _, pod in surplus)])
    plan = Plan(status=status, look_again_s=_next_available_s(seen))
    if seen.set.metadata.deletion_timestamp is not None:
        return plan
    ordered = (spec.pod_management_policy or "OrderedReady") == "OrderedReady"
    create, delete, blocked = _fill(seen, slots, range(first, first + count), ordered)
    if not blocked:
        gone, blocked = _shrink([pod for _, pod in surplus], ordered)
        delete += gone
    if not blocked and not create and not delete and (spec.update_strategy.type or "RollingUpdate") == "RollingUpdate":
        delete += _roll(seen, slots, first + partition(seen.set))
    return msgspec.structs.replace(plan, create=tuple(create), delete=tuple(delete))


def _fill(seen: View, slots: dict[int, Pod], ordinals: range, ordered: bool) -> tuple[list[NewPod], list[Pod], bool]:
    """Create missing pods. In order, every pod must be ready before the next is considered."""
    create: list[NewPod] = []
    delete: list[Pod] = []
    for ordinal in ordinals:
        pod = slots.get(ordinal)
        blocked = True
        if pod is None:
            create.append(NewPod(ordinal, _birth_revision(seen, ordinal)))
        elif finished(pod) and not _leaving(pod):
            delete.append(pod)  # a new one takes its place when it is gone
        else:
            healthy = _up(pod) and available(pod, seen.set.spec.min_ready_seconds, seen.now)
            blocked = _leaving(pod) or not healthy
        if ordered and blocked:
            return create, delete, True
    return create, delete, False


def _birth_revision(seen: View, ordinal: int) -> str:
    """Return the revision of a new pod: below the partition, or below what the rollout has reached, the
    current one.
    """
    strategy = seen.set.spec.update_strategy
    if (strategy.type or "RollingUpdate") != "RollingUpdate":
        return seen.update
    reached = partition(seen.set) if strategy.rolling_update is not None else seen.set.status.current_replicas
    return seen.current if ordinal < first_ordinal(seen.set) + reached else seen.update


def _shrink(condemned: Sequence[Pod], ordered: bool) -> tuple[list[Pod], bool]:
    """Delete condemned pods, the highest ordinal first; in order, only when nothing else is in motion."""
    staying = [pod for pod in condemned if not _leaving(pod)]
    if not ordered:
        return staying, False
    if condemned and _leaving(condemned[0]):
        return [], True
    return staying[:1], bool(condemned)


def _roll(seen: View, slots: dict[int, Pod], lowest: int) -> list[Pod]:
    """Return one pod of an old revision, from the highest ordinal; none while a pod above it is not healthy."""
    for ordinal in sorted(slots, reverse=True):
        if ordinal < lowest:
            break
        pod = slots[ordinal]
        if revision_of(pod) != seen.update and not _leaving(pod):
            return [pod]
        healthy = _up(pod) and not _leaving(pod) and available(pod, seen.set.spec.min_ready_seconds, seen.now)
        if not healthy:
            break
    return []


def _status(seen: View, pods: Sequence[Pod]) -> StatefulSetStatus:
    old, wait = seen.set.status, seen.set.spec.min_ready_seconds
    settled = [pod for pod in pods if not _leaving(pod)]
    status = StatefulSetStatus(
        observed_generation=seen.set.metadata.generation,
        replicas=len(pods),
        ready_replicas=sum(_up(pod) for pod in pods),
        available_replicas=sum(_up(pod) and available(pod, wait, seen.now) for pod in pods),
        current_replicas=sum(revision_of(pod) == seen.current for pod in settled),
        updated_replicas=sum(revision_of(pod) == seen.update for pod in settled),
        current_revision=seen.current,
        update_revision=seen.update,
        collision_count=seen.collisions if seen.collisions is not None else 0,
        conditions=old.conditions,
    )
    count = wanted(seen.set)
    rolling = (seen.set.spec.update_strategy.type or "RollingUpdate") == "RollingUpdate"
    if rolling and status.updated_replicas == status.replicas == status.ready_replicas == count:
        return msgspec.structs.replace(status, current_revision=seen.update, current_replicas=status.updated_replicas)
    return status


def _next_available_s(seen: View) -> float | None:
    wait = seen.set.spec.min_ready_seconds
    if not wait:
        return None
    moments = [
        since + timedelta(seconds=wait) for pod in seen.pods if _up(pod) and (since := ready_since(pod)) is not None
    ]
    ahead = [moment for moment in moments if moment > seen.now]
    return seconds_until(min(ahead), seen.now) if ahead else None
