"""Find the nodes where preemption would make a pod fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from koord.scheduler.framework.decision import Miss
from koord.scheduler.framework.refused import Refused
from koord.scheduler.preemption.bound import Bound
from koord.scheduler.preemption.budget import Budgets
from koord.scheduler.preemption.candidate import Candidate
from koord.scheduler.preemption.dry_run import victims_on, without_all
from koord.scheduler.preemption.rules import Rules
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import RowList

NO_VICTIMS = "No preemption victims found for incoming pod"


class Found(msgspec.Struct, frozen=True):
    """Hold the candidates in the order in which they were found, those without budget violations first.

    `without` counts the reasons of the other nodes: of all of them when there are no candidates, else of those that were
    dry-run. `inconsistencies` should not happen: they name nodes that take the pod as they are.
    """

    nodes: int
    candidates: tuple[Candidate, ...]
    without: dict[str, int]
    broken: tuple[str, ...] = ()
    nearest: Miss | None = None


class Enough(msgspec.Struct, frozen=True):
    """Define how many candidates are enough to choose from: a share of the nodes, but at least a number."""

    percent: int = 10
    at_least: int = 100

    def of(self, nodes: int) -> int:
        return min(max(nodes * self.percent // 100, self.at_least), nodes)


def find(refused: Refused, rules: Rules, budgets: Budgets, enough: Enough, among: RowList | None = None) -> Found:
    """Find candidate nodes for the pod among the resolvable rows, or among the rows that the caller names."""
    rows = refused.resolvable_rows() if among is None else among
    if not len(rows):
        return Found(0, (), {})
    if refused.barred_by and refused.barred_by != rules.name:
        return Found(len(rows), (), {NO_VICTIMS: len(rows)})  # nobody is sent away in vain
    rows = np.roll(rows, -int(refused.chance.integers(len(rows))))
    return _Search(refused, rules, budgets, rows).run(enough.of(len(rows)))


class _Search:
    def __init__(self, refused: Refused, rules: Rules, budgets: Budgets, rows: RowList) -> None:
        self._refused = refused
        self._rules = rules
        self._budgets = budgets
        self._rows = rows
        self._promised = _promised_rows(refused)
        self._without: Counter[str] = Counter()
        self._broken: list[str] = []

    def run(self, wanted: int) -> Found:
        reliefs = self._rules.reliefs
        bound = Bound(self._refused, self._rows, reliefs) if reliefs is not None else None
        tried = self._rows if bound is None else self._worth_trying(bound)
        fine: list[Candidate] = []
        violating: list[Candidate] = []
        for node in self._nodes(tried):
            found = self._try(node)
            if found is not None:
                (violating if found.violations else fine).append(found)
                if fine and len(fine) + len(violating) >= wanted:
                    break
        candidates = (*fine[:wanted], *violating[:wanted])
        nearest = None
        if not candidates and bound is not None:
            self._tell(bound)
            nearest = bound.nearest()
        return Found(len(self._rows), candidates, dict(self._without), tuple(self._broken), nearest)

    def _worth_trying(self, bound: Bound) -> RowList:
        passing = bound.passing
        if self._promised:
            passing = passing | np.isin(self._rows, list(self._promised))
        return self._rows[passing]

    def _try(self, node: NodeInfo) -> Candidate | None:
        found = victims_on(self._refused.trials, node, self._ahead(node), self._rules, self._budgets)
        if isinstance(found, Candidate):
            if found.victims:
                return found
            self._broken.append(f'expected at least one victim pod on node "{node.name}"')
        else:
            self._without.update((NO_VICTIMS,) if found is None else found[1].reasons)
        return None

    def _tell(self, bound: Bound) -> None:
        """Count the reasons of the nodes that the upper bound ruled out without a dry run."""
        left = ~bound.passing
        if self._promised:
            left &= ~np.isin(self._rows, list(self._promised))
        self._without.update({NO_VICTIMS: int(np.count_nonzero(left & bound.nobody))})
        known, unknown = bound.reasons(left & ~bound.nobody)
        self._without.update(known)
        for node in self._nodes(unknown):
            said = without_all(self._refused.trials, node, self._ahead(node), self._rules)
            if said is not None:
                self._without.update(said[1].reasons)
        self._without = +self._without

    def _ahead(self, node: NodeInfo) -> Sequence[PodInfo]:
        if not self._promised:
            return ()
        return self._refused.nominator.ahead_of(self._refused.pod, node.name)

    def _nodes(self, rows: RowList) -> list[NodeInfo]:
        nodes = self._refused.table.nodes
        return [node for row in rows.tolist() if (node := nodes[row]) is not None]


def _promised_rows(refused: Refused) -> frozenset[int]:
    """Return the rows where sums do not show what the pod would see: nominated pods, or resources reserved for this
    pod.
    """
    index, nominator = refused.table.index, refused.nominator
    restored = refused.cycle.restored
    held = frozenset(restored.rows()) if restored is not None else frozenset()
    if not nominator:
        return held
    return held | {index[name].row for name in nominator.nodes() if name in index}
