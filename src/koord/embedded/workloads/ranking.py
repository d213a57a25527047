"""The order in which a ReplicaSet deletes pods: those whose loss costs least go first. Pure."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from koord.api.core import Pod
from koord.embedded.workloads.pod_state import active, ready, ready_since, restarts

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE = {"Pending": 0, "Unknown": 1, "Running": 2}


def deletion_cost(pod: Pod) -> int:
    """Return the deletion cost; 0 when the annotation is absent or not a 32-bit integer, which the server
    refuses to store.
    """
    text = pod.metadata.annotations.get(DELETION_COST)
    if text is None:
        return 0
    try:
        cost = int(text)
    except ValueError:
        return 0
    return cost if -(1 << 31) <= cost < 1 << 31 else 0


def victims(pods: Sequence[Pod], count: int, related: Iterable[Pod], now: datetime) -> tuple[Pod, ...]:
    """Return `count` of `pods` to delete; `related` are the pods of all ReplicaSets of the same Deployment, to
    spread what remains.
    """
    if count >= len(pods):
        return tuple(pods)
    crowd = Counter(pod.spec.node_name for pod in related if active(pod) and pod.spec.node_name)
    return tuple(heapq.nsmallest(count, pods, key=lambda pod: _worth(pod, crowd, now)))


def _worth(pod: Pod, crowd: Counter[str], now: datetime) -> tuple[bool, int, bool, int, int, int, int, int, str]:
    """Return the deletion rank, lowest first: unassigned, pending, not ready, cheap, crowded, lately ready,
    often restarted, young.

    Ages of one order of magnitude are equal, and in the end the UID decides: between equals the choice is
    random.
    """
    return (
        bool(pod.spec.node_name),
        _PHASE.get(pod.status.phase, 0),
        ready(pod),
        deletion_cost(pod),
        -crowd[pod.spec.node_name],
        _magnitude(ready_since(pod), now),
        -restarts(pod),
        _magnitude(pod.metadata.creation_timestamp, now),
        pod.metadata.uid,
    )


def _magnitude(at: datetime | None, now: datetime) -> int:
    nanoseconds = (now - at).total_seconds() * 1e9 if at is not None else 0.0
    return int(math.log2(nanoseconds)) if nanoseconds >= 1 else 0
