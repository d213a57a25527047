"""Select pods that leave for quotas: those of over-used quotas (revocation), and preemption within one quota."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec
import numpy as np

from koord.api.koordinator.protocol import DEFAULT_QUOTA, SYSTEM_QUOTA
from koord.scheduler.cache.node_table import RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.decision import MAX_NODE_NAMES
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import Reject, reject
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCache
from koord.scheduler.plugins.elastic_quota.definition import QuotaPod
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.scheduler.plugins.elastic_quota.report import overuse_of
from koord.scheduler.preemption.evaluator import NOT_HELPFUL
from koord.scheduler.preemption.victims import VictimRules
from koord.values.resources import Amounts, Counts, add_amounts, exceeded_resources, subtract_amounts


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
    """Update the state. A quota that was within its runtime once, however briefly, or was just revoked, starts anew."""
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


class QuotaPreemptionRules(VictimRules):
    name = "ElasticQuota"

    def __init__(self, quota_cache: ElasticQuotaCache, *, spare_default: bool) -> None:
        super().__init__()
        self._quota_cache = quota_cache
        self._spare_default = spare_default

    def may_preempt(self, pod: PodInfo, victim: PodInfo) -> bool:
        quota_cache = self._quota_cache
        quota_pod, other = quota_cache.quota_pod(pod), quota_cache.quota_pod(victim)
        return may_preempt(quota_cache.manager, quota_pod, other, spare_default=self._spare_default)

    def is_spared(self, quota: str) -> bool:
        """Return whether nobody in that quota may be evicted, whoever preempts."""
        return self._spare_default and quota == DEFAULT_QUOTA

    def objection(self, pod: PodInfo, gone: Collection[PodInfo]) -> Reject | None:
        refusal = self._quota_cache.check_admission_without(pod, gone)
        return None if refusal is None else reject(refusal.message)


def preemption_failure_message(
    refused: PostFilterContext, rows: RowList, rows_with_victims: RowList, without: Mapping[str, int]
) -> str:
    """Return why none of the resolvable `rows` can be freed; only `rows_with_victims` have possible victims.

    A reason names its node, as Koordinator's does, while there are few; of many nodes only their number is told.
    """
    total = refused.decision.node_count
    counts = dict(without)
    if total > len(rows):
        counts[NOT_HELPFUL] = total - len(rows)
    bare = rows[~np.isin(rows, rows_with_victims)]
    if len(bare) <= MAX_NODE_NAMES:
        nodes = (refused.table.nodes[row] for row in bare.tolist())
        for name in (node.name for node in nodes if node is not None):
            counts[f"No victims found on node {name} for preemptor pod {refused.pod.name}"] = 1
    else:
        counts[f"No victims found for preemptor pod {refused.pod.name}"] = len(bare)
    listed = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{total} nodes are available: {', '.join(listed)}."
