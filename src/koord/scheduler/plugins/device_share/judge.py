"""This module filters and scores nodes by their devices: one node exactly, or all of them as a column.

A column counts the cards that would fit, which decides most nodes at once. Where it matters which cards
these are, a trial allocation runs once for all nodes in the same situation.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from koord.api import device as wire
from koord.policy.device.eligibility import eligible
from koord.policy.device.gpu import NodeFacts, node_facts
from koord.policy.device.refusal import NO_GPU, NO_GPU_IN_SCOPE, Refusal, insufficient
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.device_share.asking import Asking, rejection
from koord.scheduler.plugins.device_share.cards import Fleet
from koord.scheduler.plugins.device_share.site import Site
from koord.scheduler.plugins.device_share.trial import Trial
from koord.scheduler.state.column import Coded
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import Bools, NodeTable, RowList, Rows

_FACTS = "device facts"


class Judge:
    """Decides whether nodes have the devices that a pod requests."""
    def __init__(self, table: NodeTable, fleet: Fleet, unsupported: Collection[tuple[str, str]]) -> None:
        """Make a filter. `unsupported`: vendor and model of the cards that cannot be shared."""
        self._table = table
        self._fleet = fleet
        self._unsupported = unsupported

    def told(self) -> Coded:
        """Return the facts about GPUs that node labels state, as a coded column."""
        return self._table.coded(_FACTS, _facts_of)

    def facts(self, node: NodeInfo) -> NodeFacts:
        table, row = self._table, node.row
        live = table.nodes[row] if row < table.size else None
        if live is None or live.node is not node.node:  # not the node as it is now
            return _facts_of(node)
        told = self.told()
        found: NodeFacts = told.words[told.codes[row]]
        return found

    # One node ----------------------------------------------------------------------------------------------------

    def unfit(self, asking: Asking, facts: NodeFacts) -> Reject | None:
        """Return the rejection that follows from the node's labels alone, whatever devices it has."""
        found = eligible(asking.demand, facts, self._unsupported)
        return None if found is None else rejection(found)

    def verdict(self, asking: Asking, site: Site, facts: NodeFacts) -> Reject | None:
        """Return the rejection without regard to reservations, computed once for all nodes in the same situation."""
        key = (site.situation, facts)
        try:
            return asking.verdicts[key]
        except KeyError:
            found = Trial(site=site, asking=asking, facts=facts).allocation()
            verdict = rejection(found) if isinstance(found, Refusal) else None
            asking.remember(key, verdict)
            return verdict

    # All of them -------------------------------------------------------------------------------------------------

    def codes(self, asking: Asking, rows: Rows, numbers: RowList) -> Codes:
        """Return the verdict codes of many rows; `numbers` are their row numbers."""
        fleet = self._fleet
        fleet.refresh()
        codes = self._unfit_codes(asking, rows, len(numbers))
        there = fleet.known[rows] & (codes == 0)
        if asking.counts is None:
            exact = there
        else:
            exact = there & self._special(asking, rows)
            counted = there & ~exact
            self._count(asking, rows, counted, codes)
            if not asking.settled:
                exact |= counted & (codes == 0)
        places = np.flatnonzero(exact)
        if len(places):
            codes[places] = fleet.by_situation(
                numbers[places],
                self.told(),
                lambda site, facts: asking.code(self.verdict(asking, site, facts)),
            )
        return codes

    def _unfit_codes(self, asking: Asking, rows: Rows, size: int) -> Codes:
        gpu = asking.demand.gpu
        if gpu is None or not gpu.shared:
            return np.zeros(size, np.int32)
        return self.told().spread(rows, lambda facts: asking.code(self.unfit(asking, facts))).astype(np.int32)

    def _special(self, asking: Asking, rows: Rows) -> Bools:
        """Return the rows where it matters which cards fit, not only how many."""
        fleet, demand = self._fleet, asking.demand
        special = np.zeros(len(fleet.known[rows]), np.bool_)
        if demand.gpu is not None and not demand.gpu.shared:
            labelled = self.told().spread(rows, lambda facts: int(facts.honours_partitions))
            special |= fleet.parted[rows] | (~fleet.tabled[rows] & (labelled != 0))
        if demand.trusts_plan:
            special |= fleet.planned[rows]
        if demand.gpu is not None and demand.hint(wire.GPU).scope:
            special |= ~fleet.placed[rows]
        return special

    def _count(self, asking: Asking, rows: Rows, counted: Bools, codes: Codes) -> None:
        """Set the codes of rows with too few cards. The messages and the order of types are those of the allocator."""
        assert asking.counts is not None
        fleet, demand = self._fleet, asking.demand
        for kind in demand.requests:
            none = counted & (codes == 0) & (fleet.types[kind].count[rows] == 0)
            if none.any():
                codes[none] = asking.code(Reject((insufficient(kind),), resolvable=False))
        for kind, (each, count) in asking.counts.items():
            short = counted & (codes == 0) & (fleet.types[kind].fitting(rows, each) < count)
            scope = demand.hint(kind).scope
            if short.any():
                if kind == wire.GPU and not (demand.gpu is not None and demand.gpu.shared and count > 1):
                    codes[short & fleet.placed[rows]] = asking.code(Reject((NO_GPU_IN_SCOPE if scope else NO_GPU,)))
                    short &= ~fleet.placed[rows]
                codes[short] = asking.code(Reject((insufficient(kind),)))
            if scope:  # enough cards may still be too far apart, which is reported before the types that follow
                return


def _facts_of(node: NodeInfo) -> NodeFacts:
    return node_facts(node.labels)
