"""ElasticQuotaCache keeps the quotas of one cluster state in line with the watched quotas, pods and nodes.

Requests come from the list of all pods; usage comes from the cluster state, so that an assumed pod counts
from the moment it is assumed and no longer than it is. Nothing else is remembered: a cache made anew from
the same lists and the same state has the same numbers.
"""

from __future__ import annotations

from koord.api.pod_resources import amounts
from koord.api.protocol import A_RESERVE_POD
from koord.policy.quota.amount import Counts
from koord.policy.quota.claimant import Claimant
from koord.scheduler.state.pod import PodInfo

# One that has not started yet is the youngest of all.
_NOT_STARTED = float("inf")


def claim_of(pod: PodInfo, *, with_overhead: bool = True) -> Claimant:
    """Return the pod as quotas count it. Its placement is told apart, so that assumed and bound are the same to
    quotas.
    """
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
    """Return whether the pod counts towards a quota: a reserve pod does not, the owners of its reservation do."""
    return A_RESERVE_POD not in pod.annotations


def _without_overhead(pod: PodInfo) -> Counts:
    extra = amounts(pod.shape.spec.overhead or {})
    if not extra:
        return pod.requests
    return {name: left for name, n in pod.requests.items() if (left := n - extra.get(name, 0)) > 0}
