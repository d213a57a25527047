"""LoadAwareCache keeps the load of every node in line with NodeMetrics and placements.

One change touches one node's load and notes one row.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Literal

from koord.api.config.scheduler.load_aware import LoadAwareSchedulingArgs
from koord.api.protocol import A_RESERVE_POD
from koord.policy.load.axes import Axes
from koord.policy.load.report import Report
from koord.policy.load.wire import NodeMetric
from koord.scheduler.plugins.load_aware.account import NEVER, Account, Entry
from koord.scheduler.plugins.load_aware.guess import Guesses
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo

_SPARE = 64


class Ledger:
    """The load of all nodes. `now` is the latest time seen, by which reports expire; only `advance_clock` advances
    it.
    """

    def __init__(
        self,
        args: LoadAwareSchedulingArgs,
        axes: Axes,
        guesses: Guesses,
        state: ClusterState,
        clock: Callable[[], float],
    ) -> None:
        self._axes = axes
        self._zero = axes.zero
        self._guesses = guesses
        self._table = state.table
        self._clock = clock
        self._lifetime_s = args.node_metric_expiration_seconds or 0
        self._with_system = args.prod_usage_include_sys
        self.now = float("-inf")
        self.accounts: dict[str, Account] = {}  # by node name
        self._expiries: list[tuple[float, str]] = []  # a heap; entries that no longer hold are passed over
        state.listen(self._placed)
        state.follow(self._updated)

    # Time --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Advance the clock and note the rows whose report has expired since."""
        now = self._clock()
        if now > self.now:
            self.now = now
            if self._expiries and self._expiries[0][0] <= now:
                self._expire()

    def _expire(self) -> None:
        expiries = self._expiries
        while expiries and expiries[0][0] <= self.now:
            at, name = heappop(expiries)
            account = self.accounts.get(name)
            if account is not None and account.expires_at == at:
                self._note(name)

    def _expect(self, name: str, at: float) -> None:
        if at <= self.now:
            return
        heappush(self._expiries, (at, name))
        if len(self._expiries) > 2 * len(self.accounts) + _SPARE:  # mostly expiries of replaced reports
            self._expiries = [
                (account.expires_at, name) for name, account in self.accounts.items() if account.report is not None
            ]
            heapify(self._expiries)

    # Reports -----------------------------------------------------------------------------------------------------

    def reported(self, old: NodeMetric | None, new: NodeMetric | None) -> None:
        metric = new if new is not None else old
        assert metric is not None
        name = metric.metadata.name
        known = self.accounts.get(name)
        account = self.with_report(known, new)
        if account.report is None and not account.pods:
            self.accounts.pop(name, None)
        else:
            self.accounts[name] = account
            if account.report is not None:
                self._expect(name, account.expires_at)
        self._note(name)

    def with_report(self, known: Account | None, metric: NodeMetric | None) -> Account:
        """Return a new load from a NodeMetric with the pods of a known one."""
        if metric is None:
            account = Account(None, self._zero, NEVER)
        else:
            report = Report(metric, self._axes)
            base = report.system if self._with_system else self._zero
            account = Account(report, base, report.expires_at(self._lifetime_s))
        for entry in known.pods.values() if known is not None else ():
            account.add(entry.pod, entry.guess, entry.assigned_at, entry.holds_until)
        return account

    # Pods --------------------------------------------------------------------------------------------------------

    def enter(self, pod: PodInfo, account: Account) -> Entry:
        assigned_at = pod.scheduled_at
        if assigned_at is None:
            assigned_at = self._clock()
        guesses = self._guesses
        holds_until = guesses.holds_until(pod, assigned_at) if guesses.holds else None
        return account.add(pod, guesses.of(pod), assigned_at, holds_until)

    def _placed(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        """Handle a placement; the state has noted the row already."""
        account = self.accounts.get(node.name)
        if what == "add":  # every placement runs this, so calls are few
            if A_RESERVE_POD in pod.annotations:  # a reserve pod runs nothing
                return
            if account is None:
                account = self.accounts[node.name] = Account(None, self._zero, NEVER)
            self.enter(pod, account)
        elif account is not None:
            account.remove(pod.uid)
            if account.report is None and not account.pods:
                del self.accounts[node.name]

    def _updated(self, before: PodInfo, after: PodInfo) -> None:
        """Update a placed pod whose conditions now say when it was scheduled or initialized."""
        if before.scheduled_at == after.scheduled_at and before.initialized_at == after.initialized_at:
            return
        account = self.accounts.get(after.node_name)
        old = account.remove(after.uid) if account is not None else None
        if account is None or old is None:
            return
        new = self.enter(after, account)
        if new.node_part != old.node_part or new.prod_part != old.prod_part:
            self._note(after.node_name)

    def _note(self, name: str) -> None:
        node = self._table.index.get(name)
        if node is not None:
            self._table.note(node.row)
