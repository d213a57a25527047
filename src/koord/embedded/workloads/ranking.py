"""Which pods a ReplicaSet gives up first: those whose loss costs least. Pure."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from koord.api.core import Pod
from koord.embedded.workloads.pod_state import active, ready, ready_since, restarts

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE = {"Pending": 0, "Unknown": 1, "Running": 2}


def deletion_cost(pod: Pod) -> int:
    """0 when the annotation is absent or no 32-bit integer; the server refuses to store the latter."""
    text = pod.metadata.annotations.get(DELETION_COST, "")
    try:
        cost = int(text)
    except ValueError:
        return 0
    return cost if -(1 << 31) <= cost < 1 << 31 else 0


def victims(pods: Sequence[Pod], count: int, related: Iterable[Pod], now: datetime) -> tuple[Pod, ...]:
    """`count` of `pods`; `related` are the pods of all sets of the same Deployment, to spread what remains."""
    if count >= len(pods):
        return tuple(pods)
    crowd = Counter(pod.spec.node_name for pod in related if active(pod) and pod.spec.node_name)

    def compare(one: Pod, other: Pod) -> int:
        return _compare(one, other, crowd, now)

    return tuple(sorted(pods, key=functools.cmp_to_key(compare))[:count])


def _compare(one: Pod, other: Pod, crowd: Counter[str], now: datetime) -> int:
    """Negative when `one` goes first: unassigned, pending, not ready, cheap, crowded, young, in this order."""
    for order in (
        bool(one.spec.node_name) - bool(other.spec.node_name),
        _PHASE.get(one.status.phase, 0) - _PHASE.get(other.status.phase, 0),
        ready(one) - ready(other),
        deletion_cost(one) - deletion_cost(other),
        crowd[other.spec.node_name] - crowd[one.spec.node_name],
    ):
        if order:
            return order
    by_ready = _recency(ready_since(one), ready_since(other), one, other, now)
    if by_ready:
        return by_ready
    if restarts(one) != restarts(other):
        return restarts(other) - restarts(one)
    by_age = _recency(one.metadata.creation_timestamp, other.metadata.creation_timestamp, one, other, now)
    return by_age or _by_uid(one, other)


def _recency(one_at: datetime | None, other_at: datetime | None, one: Pod, other: Pod, now: datetime) -> int:
    """The younger goes first, but ages of one order of magnitude are equal and the UID decides: a random choice."""
    if one_at == other_at:
        return 0
    if one_at is None or other_at is None:
        return -1 if one_at is None else 1
    return _magnitude(one_at, now) - _magnitude(other_at, now) or _by_uid(one, other)


def _magnitude(at: datetime, now: datetime) -> int:
    nanoseconds = (now - at).total_seconds() * 1e9
    return int(math.log2(nanoseconds)) if nanoseconds >= 1 else 0


def _by_uid(one: Pod, other: Pod) -> int:
    return (one.metadata.uid > other.metadata.uid) - (one.metadata.uid < other.metadata.uid)
