"""Bound from above what preemption could free."""

from __future__ import annotations

from collections import Counter

import numpy as np

from koord.scheduler.framework.decision import Miss
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.preemption.relief import Reliefs, Relieved
from koord.scheduler.state.table import Bools, RowList


class Bound:
    """Run the filters that read only sums over these rows as if all pods of lower priority were gone.

    `without_victims`: there is no pod of lower priority. `passing`: the row is worth a dry run.
    """

    def __init__(self, refused: Refused, rows: RowList, reliefs: type[Reliefs] = Reliefs) -> None:
        self._refused = refused
        self._rows = rows
        below = refused.cycle.state.derived(reliefs).below(refused.pod.priority)
        self.relieved = Relieved(refused.table, below)
        self.nobody: Bools = below.count[rows] == 0
        # The first filter that refuses, by its place among all of them, with its codes; and the first place of one
        # that could refuse earlier for all that is known here.
        self._filters = refused.trials.filters
        self._first = np.full(len(rows), len(self._filters), np.int32)
        self._codes: dict[int, Codes] = {}
        self._unsure = len(self._filters)
        for place in range(len(self._filters) - 1, -1, -1):
            self._ask(place)
        self.passing: Bools = (self._first == len(self._filters)) & ~self.nobody

    def _ask(self, place: int) -> None:
        plugin, refused = self._filters[place], self._refused
        if plugin.reads_pods == "sums":
            codes = plugin.filter_columns(refused.cycle, refused.pod, self.relieved, self._rows)
        elif plugin.reads_pods == "nothing" and refused.judgement is not None:
            codes = refused.judgement.codes_of(plugin.name)[self._rows]
        else:
            self._unsure = place
            return
        self._codes[place] = codes
        self._first[codes != 0] = place

    def reasons(self, chosen: Bools) -> tuple[Counter[str], RowList]:
        """Count the reasons of these nodes; also return the rows where a filter that was not run might reject first."""
        counts: Counter[str] = Counter()
        for place, codes in self._codes.items():
            if place < self._unsure:
                mine = codes[chosen & (self._first == place)]
                for code, times in zip(*np.unique(mine, return_counts=True), strict=True):
                    for reason in self._word(place, int(code)).reasons:
                        counts[reason] += int(times)
        return counts, self._rows[chosen & (self._first >= self._unsure)]

    def _word(self, place: int, code: int) -> Reject:
        plugin, refused = self._filters[place], self._refused
        if plugin.reads_pods == "nothing" and refused.judgement is not None:
            return refused.judgement.word_of(plugin.name, code)
        return plugin.explain_code(refused.cycle, refused.pod, code)

    def nearest(self) -> Miss | None:
        """Return the node that lacks least of those that sums reject, as a share of what the pod requests."""
        asked = {name: amount for name, amount in self._refused.pod.requests.items() if amount}
        places = [i for i, plugin in enumerate(self._filters) if plugin.reads_pods == "sums"]
        short = np.isin(self._first, places) & ~self.nobody
        if not asked or not short.any():
            return None
        rows = self._rows[short]
        table = self.relieved
        lacking = {
            name: np.maximum(amount - (table.allocatable(name)[rows] - table.requested(name)[rows]), 0)
            for name, amount in asked.items()
        }
        share = sum((lacking[name] / amount for name, amount in asked.items()), np.zeros(len(rows)))
        best = int(np.argmin(share))
        node = table.nodes[int(rows[best])]
        assert node is not None
        place = int(self._first[short][best])
        word = self._word(place, int(self._codes[place][short][best]))
        return Miss(node.name, word.reasons, {name: int(n[best]) for name, n in lacking.items() if n[best]})
