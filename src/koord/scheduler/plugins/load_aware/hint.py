"""LoadAwareScheduling rejects nodes whose measured load would exceed a threshold with the pod, and prefers
idle nodes.

It reads NodeMetric. What pending pods will add is in the cache; what follows from it is in `evaluation`.
"""

from __future__ import annotations

from koord.api.node import Node
from koord.policy.load.wire import NodeMetric
from koord.scheduler.framework.event import Happened
from koord.scheduler.plugins.load_aware.account import Account
from koord.scheduler.plugins.load_aware.guess import Guesses
from koord.scheduler.plugins.load_aware.ledger import Ledger
from koord.scheduler.plugins.load_aware.rules import PASSES, Rules
from koord.scheduler.plugins.load_aware.site import Site, Sites
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


class Hint:
    """The queueing hints: decide whether an event turns a rejection for load.

    All caches show the event already, so the state before it has to be reconstructed.
    """

    def __init__(self, rules: Rules, guesses: Guesses, ledger: Ledger, sites: Sites, state: ClusterState) -> None:
        self._rules = rules
        self._guesses = guesses
        self._ledger = ledger
        self._sites = sites
        self._state = state
        # The account before the last report that was asked about: many sorts of pods ask about one report.
        self._before: tuple[tuple[str, int], NodeMetric | None, Account] | None = None

    def sees_hope(self, pod: PodInfo, happened: Happened) -> bool:
        kind = happened.event.kind
        if kind == "NodeMetric":
            return self._report_helps(pod, happened.old, happened.new)
        if kind == "Node":
            return self._node_helps(pod, happened.old, happened.new)
        before: PodInfo | None = happened.old
        now: PodInfo | None = happened.new
        if now is not None and now.uid == pod.uid:
            return before is None or self._guesses.of(before) != self._guesses.of(now)
        return before is not None and self._other_helps(pod, before, now)

    def _report_helps(self, pod: PodInfo, old: NodeMetric | None, new: NodeMetric | None) -> bool:
        metric = new if new is not None else old
        node = self._state.node(metric.metadata.name) if metric is not None else None
        return node is not None and self._takes(pod, node) and not self._takes(pod, node, self._as_of(node, old))

    def _as_of(self, node: NodeInfo, metric: NodeMetric | None) -> Account:
        here = (node.name, self._state.table.position)
        kept = self._before
        if kept is None or kept[0] != here or kept[1] is not metric:
            account = self._ledger.with_report(self._ledger.accounts.get(node.name), metric)
            kept = self._before = (here, metric, account)
        return kept[2]

    def _other_helps(self, pod: PodInfo, before: PodInfo, now: PodInfo | None) -> bool:
        """Return whether another pod's leaving or shrinking makes its node accept the pod."""
        node = self._state.node(before.node_name) if before.node_name else None
        if node is None or not self._takes(pod, node):
            return False
        known = self._ledger.accounts.get(node.name)
        if known is None or known.report is None:
            return False  # it rejected no pod
        account = known.copy()
        if now is not None:
            account.remove(now.uid)
        self._ledger.enter(before, account)
        return not self._takes(pod, node, account)

    def _node_helps(self, pod: PodInfo, old: Node | None, new: Node) -> bool:
        node = self._state.node(new.metadata.name)
        if node is None or not self._takes(pod, node):
            return False
        if old is None:
            return True
        before = NodeInfo(node.name, node.row)
        before.set_node(old)
        site = Site(before, self._rules.ceilings, self._rules.axes)
        account = self._ledger.accounts.get(node.name)
        return self._rules.code(self._guesses.of(pod), account, site, self._ledger.now) != PASSES

    def _takes(self, pod: PodInfo, node: NodeInfo, account: Account | None = None) -> bool:
        account = account if account is not None else self._ledger.accounts.get(node.name)
        return self._rules.code(self._guesses.of(pod), account, self._sites.of(node), self._ledger.now) == PASSES
