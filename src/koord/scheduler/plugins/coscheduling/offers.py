"""This module computes how many pods of a gang each node takes in their order, and why it does not take the
next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import groupby

import numpy as np

from koord.scheduler.framework.decision import PRE_FILTER
from koord.scheduler.framework.judgement import Judgement
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.trial import Said, Trials
from koord.scheduler.plugins.coscheduling.crew import Crew, kind_of
from koord.scheduler.plugins.coscheduling.crowded import Crowded, Load
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import EVERY, Bools, Ints, NodeTable, RowList


class Kind:
    """Equal pods, with the filters that decide about them.

    `emptied`: nodes are evaluated with fewer pods than they have, so that current verdicts are no bound.
    """

    def __init__(self, profile: Profile, trials: Trials, *, emptied: bool) -> None:
        self.pod = trials.pod
        self._cycle = trials.cycle
        self._judgement = Judgement(profile, trials.cycle, trials.pod)
        self._judgement.judge_all()
        self._sums: list[int] = []
        self._fixed: list[int] = []
        self.unsure = len(self._judgement.filters)  # index of the first filter that columns cannot evaluate
        for place, judge in enumerate(self._judgement.filters):
            if judge.plugin.name == PRE_FILTER or judge.plugin.reads_pods == "nothing":
                self._fixed.append(place)
            elif judge.plugin.reads_pods == "sums" and judge.columnar:
                self._sums.append(place)
            else:
                self.unsure = min(self.unsure, place)
                if not emptied:
                    self._fixed.append(place)
        self.exact = self.unsure == len(self._judgement.filters) and not trials.adding
        self.open: Bools = trials.cycle.state.table.alive.copy()
        for place in self._fixed:
            self.open &= self._codes(place) == 0

    def _codes(self, place: int) -> Codes:
        return self._judgement.codes_of(self._judgement.filters[place].plugin.name)

    def _asked(self, place: int, table: NodeTable) -> Codes:
        return self._judgement.filters[place].plugin.filter_columns(self._cycle, self.pod, table, EVERY)

    def room(self, table: NodeTable, load: Load, limit: int, among: Bools) -> Ints:
        """Return how many of the pods each row takes beside the load, up to the limit, by binary search."""
        found = np.zeros(table.size, np.int64)
        among = among & self.open
        step = 1 << (limit.bit_length() - 1) if limit else 0
        while step:
            more = found + step
            crowded = Crowded(table, load.plus(self.pod, more - 1))
            fits = among & (more <= limit)
            for place in self._sums:
                fits &= self._asked(place, crowded) == 0
            found[fits] = more[fits]
            step >>= 1
        return found

    def refusals(self, table: NodeTable, load: Load, rows: RowList) -> tuple[list[tuple[Said, int]], RowList]:
        """Return the counted rejections of one more pod on these rows, and the rows where only a trial can tell."""
        crowded = Crowded(table, load)
        first = np.full(len(rows), len(self._judgement.filters), np.intp)
        codes_at: dict[int, Codes] = {}
        for place in sorted((*self._sums, *self._fixed), reverse=True):
            codes = codes_at[place] = (self._asked(place, crowded) if place in self._sums else self._codes(place))[rows]
            first[codes != 0] = place
        told: list[tuple[Said, int]] = []
        for place, codes in codes_at.items():
            plugin = self._judgement.filters[place].plugin
            mine = codes[first == place] if place < self.unsure or place in self._fixed else codes[:0]
            for code, times in zip(*np.unique(mine, return_counts=True), strict=True):
                told.append(((plugin.name, self._judgement.word_of(plugin.name, int(code))), int(times)))
        sure = np.isin(first, self._fixed) | (first < self.unsure)
        return told, rows[~sure]


class Offers:
    """The number of pods, in their order, that each row takes.

    `table` is the live one, or what it would be without some pods; `group_trial` makes a trial on a node in the
    same state.
    """

    def __init__(
        self,
        profile: Profile,
        trials: Mapping[Hashable, Trials],
        pods: Sequence[PodInfo],
        table: NodeTable,
        crew: Callable[[NodeInfo], Crew],
        *,
        emptied: bool = False,
    ) -> None:
        self._table = table
        self._pods = pods
        self._crew = crew
        self._kind_of = [kind_of(profile, pod) for pod in pods]
        self.kinds = {key: Kind(profile, held, emptied=emptied) for key, held in trials.items()}
        self._load = Load(table.size)
        self._said: dict[int, Said | None] = {}  # by row, where a dry run rejected
        self.count: Ints = self._counted()
        if not all(kind.exact for kind in self.kinds.values()):
            self._try_out()

    def _counted(self) -> Ints:
        count = np.zeros(self._table.size, np.int64)
        among: Bools = self._table.alive.copy()
        for key, run in groupby(self._kind_of):
            length, kind = sum(1 for _ in run), self.kinds[key]
            came = kind.room(self._table, self._load, length, among)
            self._load = self._load.plus(kind.pod, came)
            count += came
            among &= came == length
            if not among.any():
                break
        return count

    def _try_out(self) -> None:
        for row in np.flatnonzero(self.count).tolist():
            node = self._table.nodes[row]
            assert node is not None
            crew, most = self._crew(node), int(self.count[row])
            for taken, pod in enumerate(self._pods[:most]):
                said = crew.refusal(pod, again=taken > 0 and self._kind_of[taken] == self._kind_of[taken - 1])
                if said is not None:
                    self.count[row] = taken
                    self._said[row] = said
                    break
                crew.add(pod)

    def refusals(self, rows: RowList) -> tuple[Counter[str], set[str]]:
        """Return why these rows do not take all pods, counted by reason, and the plugins that reject them."""
        reasons: Counter[str] = Counter()
        plugins: set[str] = set()
        short = rows[self.count[rows] < len(self._pods)]
        for row in short.tolist():
            if (said := self._said.get(row)) is not None:
                plugins.add(said[0])
                reasons.update(said[1].reasons)
        left = np.asarray([row for row in short.tolist() if row not in self._said], np.intp)
        following = [self._kind_of[taken] for taken in self.count[left].tolist()]
        for key, kind in self.kinds.items():
            mine = left[np.asarray([other == key for other in following], np.bool_)]
            told, unknown = kind.refusals(self._table, self._load, mine)
            told += [(said, 1) for row in unknown.tolist() if (said := self._trial(row)) is not None]
            for (plugin, verdict), times in told:
                plugins.add(plugin)
                for reason in verdict.reasons:
                    reasons[reason] += times
        return reasons, plugins

    def _trial(self, row: int) -> Said | None:
        node, taken = self._table.nodes[row], int(self.count[row])
        assert node is not None
        crew = self._crew(node)
        for pod in self._pods[:taken]:
            crew.add(pod)
        return crew.refusal(self._pods[taken])
