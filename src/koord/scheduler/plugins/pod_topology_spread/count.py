"""This module counts the pods of one constraint in each domain, in line with the counts of its selector."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from koord.scheduler.plugins.pod_topology_spread.constraint import HOSTNAME, Constraint
from koord.scheduler.state.domain import Domains, Ids
from koord.scheduler.state.table import Bools, Ints
from koord.scheduler.state.tally import Clause, Question, Tallies, Tally

NO_COUNTS: Ints = np.zeros(0, np.int64)


class Count:
    """The pods of one constraint per domain; `domains` and `counted` come from CountedNodes."""

    __slots__ = (
        "_tallies",
        "_tally",
        "by_host",
        "constraint",
        "counted",
        "counts",
        "domains",
        "namespace",
        "position",
    )

    def __init__(self, constraint: Constraint, namespace: str, tallies: Tallies) -> None:
        self.constraint = constraint
        self.by_host = constraint.topology_key == HOSTNAME
        self.namespace = namespace
        self._tallies = tallies
        self._tally: Tally | None = None
        self.position = 0
        self.domains: Ids = np.zeros(0, np.intp)
        self.counted: Bools = np.zeros(0, np.bool_)
        self.counts = NO_COUNTS

    def per_row(self, size: int) -> Ints:
        """Return the matching pods per node. An empty selector counts none, unlike anywhere else in Kubernetes."""
        selector = self.constraint.selector
        if selector.is_everything():
            return np.zeros(size, np.int64)
        if self._tally is None or not self._tally.live:
            clause = Clause(frozenset((self.namespace,)), selector)
            self._tally = self._tallies.of(Question((clause,), lasting=True))
        return self._tally.sized(size)

    def recount(self, domains: Domains, counted: Bools) -> None:
        self.domains = domains.ids
        self.counted = counted
        pods = self.per_row(len(domains.ids))
        sums = np.bincount(domains.ids, weights=np.where(counted, pods, 0), minlength=domains.size)
        self.counts = sums.astype(np.int64)
        self.position = self._tally.position if self._tally is not None else 0

    def news(self) -> Iterable[tuple[int, int]] | None:
        """Return the domains that gained (+1) or lost (-1) a pod since the last call; None when all must be counted
        again.
        """
        tally = self._tally
        if tally is None:
            return ()
        if not tally.live:
            return None
        if tally.position == self.position:
            return ()
        log = tally.since(self.position)
        self.position = tally.position
        if log is None:
            return None
        known = len(self.domains)
        return [
            (int(self.domains[row]), 1 if row == entry else -1)
            for entry in log
            if (row := entry if entry >= 0 else ~entry) < known and self.counted[row]
        ]
