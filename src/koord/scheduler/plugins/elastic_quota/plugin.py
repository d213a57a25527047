"""ElasticQuota admits a pod only when its quota has room for it, and preempts within the quota when there is none.

The cache counts a placement from the moment that the state makes it until the state takes it back, so nothing is
left to do at Reserve. A quota's verdict changes with every placement, so it is computed for each pod and cached for
none; what nodes say of equal pods is cached all the same.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from koord.api.config.scheduler.koordinator_args import ElasticQuotaArgs
from koord.api.koordinator.protocol import L_QUOTA_NAME, L_QUOTA_PREEMPTIBLE
from koord.api.kubernetes.builtin_kinds import POD_DISRUPTION_BUDGETS
from koord.scheduler.cache.node_table import RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PostFilterRejection, PreemptionPlan
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import ROW, Fault, Reject, reject, unresolvable
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCache, ElasticQuotaCaches
from koord.scheduler.plugins.elastic_quota.definition import QuotaRules
from koord.scheduler.plugins.elastic_quota.victims import QuotaPreemptionRules, preemption_failure_message
from koord.scheduler.preemption.evaluator import CandidateLimit, conclude_search, find_candidates, not_eligible_reason
from koord.scheduler.preemption.victims import DisruptionBudgetLister

# Of every node that could be freed the best is taken.
_ALL_CANDIDATES = CandidateLimit(percent=100, at_least=0)
# Quota released without a cluster event: a pending pod is gone, or requests less.
_QUOTA_RELEASED = ClusterEvent("ElasticQuota", UPDATE)


class ElasticQuotaPlugin(Plugin):
    name = "ElasticQuota"
    idle_by_labels = (Plugin.admit,)
    scope = ROW  # admission is never cached; but equal pods of one quota get equal verdicts
    wakes_on = (
        ClusterEvent("ElasticQuota", ADD),
        _QUOTA_RELEASED,
        ClusterEvent("ElasticQuota", DELETE),
        ClusterEvent("Pod", DELETE),
        ClusterEvent("Pod", UPDATE, "labels"),
        ClusterEvent("Pod", UPDATE, "scale-down"),
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "allocatable"),
        ClusterEvent("Node", UPDATE, "annotations"),
        ClusterEvent("Node", UPDATE, "taints"),
        ClusterEvent("Node", UPDATE, "unschedulable"),
    )

    def __init__(
        self,
        args: ElasticQuotaArgs,
        handle: Handle,
        *,
        disable_default_quota: bool = False,
        multi_quota_tree: bool = False,
        guarantee_usage: bool = False,
        ignore_overhead: bool = False,
        ignore_terminating: bool = False,
        ignore_terminating_immediately: bool = False,
    ) -> None:
        """Take arguments that are already defaulted."""
        if args.hook_plugins:
            key = args.hook_plugins[0].factory_key
            raise ValueError(f"failed to initialize index-0 hook plugin: factory {key} not found")
        self.args = args
        rules = QuotaRules.from_args(
            args,
            disable_default_quota=disable_default_quota,
            multi_quota_tree=multi_quota_tree,
            guarantee_usage=guarantee_usage,
            ignore_terminating=ignore_terminating,
            ignore_terminating_immediately=ignore_terminating_immediately,
        )
        self._handle = handle
        self.quota_cache: ElasticQuotaCache = handle.state.derived(ElasticQuotaCaches).get_or_create(
            rules, handle, with_overhead=not ignore_overhead
        )
        self.quota_cache.on_quota_released = self._announce_released_quota
        self._rules = QuotaPreemptionRules(
            self.quota_cache, spare_default=args.disable_default_quota_preemption is not False
        )
        self._budgets = DisruptionBudgetLister(handle.lister(POD_DISRUPTION_BUDGETS))

    def signature(self, pod: PodInfo) -> Hashable:
        labels = pod.labels
        return labels.get(L_QUOTA_NAME), pod.namespace, labels.get(L_QUOTA_PREEMPTIBLE)

    # Letting in --------------------------------------------------------------------------------------------------

    def is_idle_for(self, pod: PodInfo) -> bool:
        """Return whether pods of this namespace without labels of their own count in a quota without a max."""
        return self.quota_cache.is_unlimited(pod)

    def admit(self, cycle: CycleState, pod: PodInfo) -> Reject | Fault | None:
        refusal = self.quota_cache.check_admission(pod)
        if refusal is None:
            return None
        self.quota_cache.record_refusal(pod, refusal, self._handle.now())
        # No eviction gives room to a quota that does not exist or is not part of a tree.
        return unresolvable(refusal.message) if refusal.kind in ("unknown", "adrift") else reject(refusal.message)

    # Waking ------------------------------------------------------------------------------------------------------

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        """Return whether the pod is admitted now, if only by preemption, or its quota came or went (new message)."""
        if object_event.event.kind == "ElasticQuota" and object_event.event.action != UPDATE:
            quota = object_event.old if object_event.new is None else object_event.new
            if quota.metadata.name == pod.labels.get(L_QUOTA_NAME):
                return True
        return self.quota_cache.check_admission(pod) is None or self._could_preempt(pod)

    def _could_preempt(self, pod: PodInfo) -> bool:
        """Return whether preemption within its quota could admit the pod, as far as the quota is concerned."""
        if pod.shape.spec.preemption_policy == "Never":
            return False
        quota = self.quota_cache.manager.quota_of_pod(self.quota_cache.quota_pod(pod))
        if quota is None or self._rules.is_spared(quota):
            return False
        return self.quota_cache.could_admit_by_preemption(pod)

    def _announce_released_quota(self) -> None:
        self._handle.actions.publish_event(ObjectEvent(_QUOTA_RELEASED))

    # Making room -------------------------------------------------------------------------------------------------

    def post_filter(
        self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext
    ) -> PreemptionPlan | PostFilterRejection | Fault | None:
        against = not_eligible_reason(refused, lambda other: other.deleting and self._rules.may_preempt(pod, other))
        if against:
            return PostFilterRejection((f"preemption: {against}",))
        rows = refused.resolvable_rows()
        rows_with_victims = self._rows_with_victims(pod, refused, rows)
        found = find_candidates(refused, self._rules, self._budgets.current(), _ALL_CANDIDATES, rows_with_victims)
        return conclude_search(
            refused,
            self.name,
            found,
            lambda: preemption_failure_message(refused, rows, rows_with_victims, found.without),
        )

    def _rows_with_victims(self, pod: PodInfo, refused: PostFilterContext, rows: RowList) -> RowList:
        """Return the rows with possible victims: a quota knows its few pods among those of all nodes."""
        quota = self.quota_cache.manager.quota_of_pod(self.quota_cache.quota_pod(pod))
        if quota is None or self._rules.is_spared(quota):
            return rows[:0]
        index = refused.table.index
        rows_with_victims = {
            index[other.node_name].row
            for other in self.quota_cache.pods_in_quota(quota)
            if self._rules.may_preempt(pod, other)
        }
        return rows[np.isin(rows, list(rows_with_victims))] if rows_with_victims else rows[:0]
