"""Select pods that must leave for quotas: those of over-used quotas (revocation), and preemption within one quota."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.koordinator.protocol import DEFAULT_QUOTA, SYSTEM_QUOTA
from koord.scheduler.plugins.elastic_quota.definition import QuotaPod
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.scheduler.plugins.elastic_quota.report import overuse_of
from koord.values.amounts import (
    Amounts,
    Counts,
    add_amounts,
    exceeded_resources,
    subtract_amounts,
)


class OveruseState(msgspec.Struct, frozen=True):
    """Since when each quota has been over-used, and those that have been so for too long."""

    since: Mapping[str, float]
    due: tuple[str, ...] = ()


def overused_quotas(manager: GroupQuotaManager) -> dict[str, Amounts]:
    """Return by how much each quota uses more than its runtime. The system group is never included."""
    found: dict[str, Amounts] = {}
    trees = manager.trees
    for tree in trees.trees.values():
        for name, entitled in tree.all_runtimes().items():
            excess = overuse_of(tree.nodes[name].used, entitled)
            if excess:
                found[name] = excess
    for name, quota_node in trees.builtin_nodes.items():
        excess = overuse_of(quota_node.used, quota_node.definition.max)
        if excess and name != SYSTEM_QUOTA:
            found[name] = excess
    return found


def observe_overuse(before: OveruseState, over_now: Iterable[str], now: float, patience_s: float) -> OveruseState:
    """Update the state. A quota that was within its runtime once, however briefly, starts anew; so does one just
    revoked.
    """
    since: dict[str, float] = {}
    due: list[str] = []
    for name in sorted(over_now):
        start = before.since.get(name, now)
        if now - start > patience_s:
            due.append(name)
            start = now
        since[name] = start
    return OveruseState(since, tuple(due))


def select_revoked_pods(pods: Iterable[QuotaPod], used: Counts, entitled: Counts) -> list[QuotaPod]:
    """Select the assigned pods to revoke so that the quota is within its runtime; the most important stay.

    The least important are counted out until the rest fits; then, from the most important of them down, each
    that fits after all stays. When the rest never fits, all that can leave do. Upstream forgets resources
    that the last pod counted out does not request; every resource counts here to the end.
    """
    left: Amounts = dict(used)
    out: list[QuotaPod] = []
    for pod in sorted(pods, key=lambda pod: (pod.priority, -pod.started_s, pod.uid)):
        if not exceeded_resources(left, entitled):
            break
        if pod.preemptible:
            out.append(pod)
            left = subtract_amounts(left, pod.requests)
    if exceeded_resources(left, entitled):
        return out
    leaving: list[QuotaPod] = []
    for pod in reversed(out):
        back = add_amounts(left, pod.requests)
        if exceeded_resources(back, entitled):
            leaving.append(pod)
        else:
            left = back
    return leaving


def may_preempt(
    manager: GroupQuotaManager, preemptor: QuotaPod, victim: QuotaPod, *, spare_default: bool = True
) -> bool:
    """Return whether the pod may preempt the victim: only members of one existing quota preempt each other.

    `spare_default` is the argument disableDefaultQuotaPreemption.
    """
    if not victim.preemptible or victim.priority >= preemptor.priority:
        return False
    quota = manager.quota_of_pod(victim)
    if quota is None or quota != manager.quota_of_pod(preemptor):
        return False
    return not (spare_default and quota == DEFAULT_QUOTA)
