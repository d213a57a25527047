"""ElasticQuota admits a pod only when its quota has room for it, and preempts within the quota when there is
none.

The cache counts a placement from the moment that the state makes it until the state takes it back, so
nothing is left to do at Reserve. A quota's verdict changes with every placement, so it is computed for each
pod and cached for none; what nodes say of equal pods is cached all the same.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from koord.api.builtin import POD_DISRUPTION_BUDGETS
from koord.api.config.scheduler.elastic_quota import ElasticQuotaArgs
from koord.api.protocol import L_QUOTA_NAME, L_QUOTA_PREEMPTIBLE
from koord.policy.quota.definition import Rules
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import Futile, Preempt
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.verdict import ROW, Fault, Reject, reject, unresolvable
from koord.scheduler.plugins.elastic_quota.ledger import Ledger, Ledgers
from koord.scheduler.plugins.elastic_quota.message import futile
from koord.scheduler.plugins.elastic_quota.rules import WithinQuota
from koord.scheduler.preemption.budget import ListedBudgets
from koord.scheduler.preemption.finder import Enough, find
from koord.scheduler.preemption.plan import barred, concluded
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import RowList

# Of every node that could be freed the best is taken.
_ALL = Enough(percent=100, at_least=0)
# Quota released without a cluster event: a pending pod is gone, or requests less.
_EASED = Event("ElasticQuota", UPDATE)


class ElasticQuota(Plugin):
    name = "ElasticQuota"
    scope = ROW  # admission is never cached; but equal pods of one quota get equal verdicts
    wakes_on = (
        Event("ElasticQuota", ADD),
        _EASED,
        Event("ElasticQuota", DELETE),
        Event("Pod", DELETE),
        Event("Pod", UPDATE, "labels"),
        Event("Pod", UPDATE, "scale-down"),
        Event("Node", ADD),
        Event("Node", UPDATE, "allocatable"),
        Event("Node", UPDATE, "annotations"),
        Event("Node", UPDATE, "taints"),
        Event("Node", UPDATE, "unschedulable"),
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
    ) -> None:
        """Take arguments that are already defaulted."""
        if args.hook_plugins:
            key = args.hook_plugins[0].factory_key
            raise ValueError(f"failed to initialize index-0 hook plugin: factory {key} not found")
        self.args = args
        rules = Rules.of(
            args,
            disable_default_quota=disable_default_quota,
            multi_quota_tree=multi_quota_tree,
            guarantee_usage=guarantee_usage,
        )
        self._handle = handle
        self.ledger: Ledger = handle.state.derived(Ledgers).of(rules, handle, with_overhead=not ignore_overhead)
        self.ledger.on_eased = self._eased
        self._rules = WithinQuota(self.ledger, spare_default=args.disable_default_quota_preemption is not False)
        self._budgets = ListedBudgets(handle.lister(POD_DISRUPTION_BUDGETS))

    def signature(self, pod: PodInfo) -> Hashable:
        labels = pod.labels
        return labels.get(L_QUOTA_NAME), pod.namespace, labels.get(L_QUOTA_PREEMPTIBLE)

    # Letting in --------------------------------------------------------------------------------------------------

    def admit(self, cycle: Cycle, pod: PodInfo) -> Reject | Fault | None:
        refusal = self.ledger.check(pod)
        if refusal is None:
            return None
        self.ledger.refused(pod, refusal, self._handle.now())
        # No eviction gives room to a quota that does not exist or is not part of a tree.
        return unresolvable(refusal.text) if refusal.kind in ("unknown", "adrift") else reject(refusal.text)

    # Waking ------------------------------------------------------------------------------------------------------

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        """Return whether the pod is admitted now, or its rejection message is outdated because its quota was added or
        deleted.
        """
        if happened.event.kind == "ElasticQuota" and happened.event.action != UPDATE:
            quota = happened.old if happened.new is None else happened.new
            if quota.metadata.name == pod.labels.get(L_QUOTA_NAME):
                return True
        return self.ledger.check(pod) is None

    def _eased(self) -> None:
        self._handle.desk.tell(Happened(_EASED))

    # Making room -------------------------------------------------------------------------------------------------

    def post_filter(self, cycle: Cycle, pod: PodInfo, refused: Refused) -> Preempt | Futile | Fault | None:
        against = barred(refused, lambda other: other.deleting and self._rules.may_take(pod, other))
        if against:
            return Futile((f"preemption: {against}",))
        rows = refused.resolvable_rows()
        hosts = self._hosts(pod, refused, rows)
        found = find(refused, self._rules, self._budgets.current(), _ALL, hosts)
        return concluded(refused, self.name, found, lambda: futile(refused, rows, hosts, found.without))

    def _hosts(self, pod: PodInfo, refused: Refused, rows: RowList) -> RowList:
        """Return the rows with possible victims: a quota knows its few pods among those of all nodes."""
        quota = self.ledger.book.quota_of(self.ledger.claim(pod))
        if quota is None or self._rules.spares(quota):
            return rows[:0]
        index = refused.table.index
        hosts = {index[other.node_name].row for other in self.ledger.members(quota) if self._rules.may_take(pod, other)}
        return rows[np.isin(rows, list(hosts))] if hosts else rows[:0]
