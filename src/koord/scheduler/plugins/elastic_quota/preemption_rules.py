"""This module decides which pods a pod may preempt within its quota, and whether the quota admits it without
them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from koord.api.koordinator.protocol import DEFAULT_QUOTA
from koord.scheduler.cache.node_table import RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.decision import MAX_NODE_NAMES
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import Reject, reject
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCache
from koord.scheduler.plugins.elastic_quota.victims import may_preempt
from koord.scheduler.preemption.evaluator import NOT_HELPFUL
from koord.scheduler.preemption.victims import VictimRules


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
    """Return why no node can be freed. `rows` are resolvable nodes; `rows_with_victims` are those among them with
    possible victims.

    A reason names its node, as Koordinator's does, while there are few; of many nodes only their number is
    told.
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
