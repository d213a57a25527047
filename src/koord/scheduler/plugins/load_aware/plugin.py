"""LoadAwareScheduling rejects nodes whose measured load would exceed a threshold, and prefers nodes that are
used least.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from koord.api.config.scheduler.load_aware import LoadAwareSchedulingArgs
from koord.policy.load.axes import Axes
from koord.policy.load.wire import NODE_METRICS
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, Reject
from koord.scheduler.plugins.load_aware.columns import Rooms, Spares
from koord.scheduler.plugins.load_aware.guess import Guess, Guesses
from koord.scheduler.plugins.load_aware.hint import Hint
from koord.scheduler.plugins.load_aware.ledger import Ledger
from koord.scheduler.plugins.load_aware.rules import Outlook, Rules
from koord.scheduler.plugins.load_aware.site import Sites
from koord.scheduler.plugins.load_aware.summary import summary_of
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows


class LoadAwareScheduling(Plugin):
    name = "LoadAwareScheduling"
    scope = ROW  # the cache marks the rows whose load changed
    reads_pods = "nothing"  # pods that a dry run removes do not change the measured load
    wakes_on = (
        Event("NodeMetric", ADD),
        Event("NodeMetric", UPDATE),
        Event("NodeMetric", DELETE),
        Event("Pod", DELETE),
        Event("Pod", UPDATE, "scale-down"),
        Event("Pod", UPDATE, "labels"),
        Event("Node", ADD),
        Event("Node", UPDATE, "allocatable"),
        Event("Node", UPDATE, "annotations"),
    )

    def __init__(self, args: LoadAwareSchedulingArgs, handle: Handle) -> None:
        """Take arguments that are already defaulted."""
        table = handle.state.table
        axes = _axes(args)
        self._rules = Rules(args, axes)
        self._guesses = Guesses(args, axes)
        self._ledger = Ledger(args, axes, self._guesses, handle.state, handle.now)
        handle.lister(NODE_METRICS).on_change(self._ledger.reported)
        self._sites = Sites(self._rules.ceilings, axes, table)
        self._hint = Hint(self._rules, self._guesses, self._ledger, self._sites, handle.state)
        # Of pods that are not prod and of those that are.
        width = len(axes.names)
        self._rooms = tuple(Rooms(table, width, self._standing_of(prod)) for prod in (False, True))
        self._spares = tuple(Spares(table, width, self._free_of(prod)) for prod in (False, True))

    def signature(self, pod: PodInfo) -> Hashable:
        return self._guesses.signature(pod)

    def catch_up(self) -> None:
        self._ledger.tick()

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        self._ledger.tick()
        return self._hint.sees_hope(pod, happened)

    # Filter ------------------------------------------------------------------------------------------------------

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        if pod.daemon:
            return None
        ledger, rules, name = self._ledger, self._rules, node.name
        guess = cycle.kept.get(self.name) or self._guess(cycle, pod)
        site = self._sites.known.get(name)
        if site is None or site.node is not node.node:
            site = self._sites.of(node)
        return rules.words[rules.code(guess, ledger.accounts.get(name), site, ledger.now)]

    def _guess(self, cycle: Cycle, pod: PodInfo) -> Guess:
        known: Guess | None = cycle.kept.get(self.name)
        if known is None:
            known = self._guesses.of(pod)
            cycle.keep(self.name, known)
        return known

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        if pod.daemon:
            return np.zeros(len(table.alive[rows]), np.int32)
        guess = self._guess(cycle, pod)
        return self._rooms[guess.prod].codes(rows, guess.usage)

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        found = self._rules.words[code]
        assert found is not None
        return found

    # Score -------------------------------------------------------------------------------------------------------

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        ledger, name = self._ledger, node.name
        guess = cycle.kept.get(self.name) or self._guess(cycle, pod)
        site = self._sites.known.get(name)
        if site is None or site.node is not node.node:
            site = self._sites.of(node)
        return self._rules.score(guess, ledger.accounts.get(name), site, ledger.now)

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        guess = self._guess(cycle, pod)
        return self._spares[self._rules.by_prod(guess)].scores(rows, guess.usage, self._rules.weights)

    @property
    def stale_code(self) -> int:
        """Return the code of a node whose report is expired; smaller codes are of load."""
        return self._rules.expired

    # For those who ask -------------------------------------------------------------------------------------------

    def summary(self, node_name: str) -> dict[str, Any]:
        """Return a node's load as Koordinator shows it over HTTP."""
        return summary_of(self._ledger.accounts.get(node_name), self._rules.axes)

    def outlook(self, pod: PodInfo, node: NodeInfo) -> Outlook:
        """Explain with numbers why load lets the node take the pod or not."""
        ledger = self._ledger
        ledger.tick()
        account = ledger.accounts.get(node.name)
        return self._rules.outlook(self._guesses.of(pod), account, self._sites.of(node), ledger.now)

    def excess(self, pod: PodInfo, node: NodeInfo) -> float:
        """Return by how many percent the pod would bring a node that load rejects above a threshold."""
        account = self._ledger.accounts[node.name]
        return self._rules.excess(self._guesses.of(pod), account, self._sites.of(node))

    # Rows --------------------------------------------------------------------------------------------------------

    def _standing_of(self, prod: bool) -> Any:
        ledger, rules, sites = self._ledger, self._rules, self._sites
        return lambda node: rules.standing(ledger.accounts.get(node.name), sites.of(node), ledger.now, prod=prod)

    def _free_of(self, prod: bool) -> Any:
        ledger, rules, sites = self._ledger, self._rules, self._sites
        return lambda node: rules.free(ledger.accounts.get(node.name), sites.of(node), ledger.now, prod=prod)


def _axes(args: LoadAwareSchedulingArgs) -> Axes:
    aggregated = args.aggregated.usage_thresholds if args.aggregated is not None else {}
    return Axes.over(
        args.usage_thresholds,
        args.prod_usage_thresholds,
        aggregated,
        args.resource_weights,
        args.estimated_scaling_factors,
        args.supported_resources,
    )
