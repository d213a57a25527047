"""ElasticQuota admits a pod only when its quota has room for it, and preempts within the quota when there is none.

The cache counts a placement from the moment that the state makes it until the state takes it back, so nothing is
left to do at Reserve. A quota's verdict changes with every placement, so it is computed for each pod and cached for
none; what nodes say of equal pods is cached all the same.

The pods that leave for quotas are selected here: those of over-used quotas (revocation), and preemption within one
quota.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping

import msgspec
import numpy as np

from koord.api.config.scheduler.koordinator_args import ElasticQuotaArgs
from koord.api.koordinator.protocol import DEFAULT_QUOTA, L_QUOTA_NAME, L_QUOTA_PREEMPTIBLE, SYSTEM_QUOTA
from koord.api.kubernetes.builtin_kinds import POD_DISRUPTION_BUDGETS
from koord.scheduler.cache.node_table import RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import MAX_NODE_NAMES, PostFilterRejection, PreemptionPlan
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import ROW, Fault, Reject, reject, unresolvable
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCache, ElasticQuotaCaches
from koord.scheduler.plugins.elastic_quota.definition import QuotaPod, QuotaRules
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.scheduler.plugins.elastic_quota.report import overuse_of
from koord.scheduler.preemption.evaluator import (
    NOT_HELPFUL,
    CandidateLimit,
    conclude_search,
    find_candidates,
    not_eligible_reason,
)
from koord.scheduler.preemption.victims import DisruptionBudgetLister, VictimRules
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
