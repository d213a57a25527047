"""A pod of the scheduler's state as quotas see it."""

from __future__ import annotations

from koord.api.pod_resources import amounts
from koord.api.protocol import A_RESERVE_POD
from koord.policy.quota.amount import Counts
from koord.policy.quota.claimant import Claimant
from koord.scheduler.state.pod import PodInfo

# One that has not started yet is the youngest of all.
_NOT_STARTED = float("inf")


def claim_of(pod: PodInfo, *, with_overhead: bool = True) -> Claimant:
    """Where it is placed is told apart from what it is, so that a promise and a binding are the same to quotas."""
    return Claimant.of(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        labels=pod.labels,
        requests=pod.requests if with_overhead else _without_overhead(pod),
        priority=pod.priority,
        since=_NOT_STARTED if pod.started is None else pod.started.timestamp(),
    )


def is_counted(pod: PodInfo) -> bool:
    """A pod that stands for a reservation holds no quota: those who use the reservation do."""
    return A_RESERVE_POD not in pod.annotations


def _without_overhead(pod: PodInfo) -> Counts:
    extra = amounts(pod.shape.spec.overhead or {})
    if not extra:
        return pod.requests
    return {name: left for name, n in pod.requests.items() if (left := n - extra.get(name, 0)) > 0}
