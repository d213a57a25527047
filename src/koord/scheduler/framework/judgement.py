"""Keep every node's filter verdict for one class of equal pods, updated row by row.

    codes[f][row]               the code of filter f for a row: 0 passes
    first_rejection[row]        -1 no node, 0 feasible, else 1 + index of the first filter that rejected: it is reported
    nominated_rejections[row]   the verdict while nominated pods must be counted there (kept by `nominated_pods`)
    node_views                  rows that this class sees differently; they are filtered one by one, as it sees them

A filter whose verdicts depend on one row is run again for rows that changed; one that looks across nodes is run for
all rows when its epoch moves; one that does not declare a scope is always run for all.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import PRE_FILTER
from koord.scheduler.framework.plugin import Codes, Plugin, overrides
from koord.scheduler.framework.profile import Filter, Profile
from koord.scheduler.framework.verdict import ALWAYS, CLUSTER, ROW, Reject, unresolvable
from koord.scheduler.framework.view import Views
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import EVERY, NodeTable, RowList

NO_NODE = -1
FEASIBLE = 0

# Up to this many changed rows the per-node form is cheaper than starting NumPy for them.
FEW_ROWS = 6
# What is said of nodes that PreFilter left out.
_LEFT_OUT = 1
# Per-node verdicts have no code of their own: they are numbered as they are met, from here on.
_FIRST_MET = 1 << 20


class Epochs:
    """Remember each plugin's epoch, to tell which of them moved."""

    def __init__(self, *, scores: bool = False) -> None:
        self._scores = scores
        self._seen: dict[str, Hashable] = {}

    def moved(self, plugin: Plugin, cycle: Cycle) -> bool:
        if plugin.scope is ALWAYS:
            return True
        if plugin.scope is not CLUSTER:
            return False
        epoch = plugin.score_epoch(cycle) if self._scores else plugin.epoch(cycle)
        if self._seen.get(plugin.name, self) == epoch:
            return False
        self._seen[plugin.name] = epoch
        return True


class _Narrowed(Plugin):
    """Reject the nodes that PreFilter plugins left out; no other filter is run for them."""

    name = PRE_FILTER
    scope = ROW

    def __init__(self, cycle: Cycle) -> None:
        self._only = cycle.only
        restored = cycle.restored
        self._restored = restored if restored is not None and restored.exclusive else None
        self._verdict = unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(cycle.narrowed_by)}]")

    @staticmethod
    def of_class(cycle: Cycle) -> _Narrowed | None:
        held = cycle.restored is not None and cycle.restored.exclusive
        return _Narrowed(cycle) if held or cycle.only is not None else None

    def rows(self, table: NodeTable) -> Collection[int]:
        """Return the rows of the allowed nodes; rows that are allowed because they are restored may change."""
        if self._only is None:
            return self._restored.rows() if self._restored is not None else ()
        rows = frozenset(node.row for name in self._only if (node := table.index.get(name)) is not None)
        return rows if self._restored is None else rows.intersection(self._restored.rows())

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        out = self._only is not None and node.name not in self._only
        out = out or (self._restored is not None and node.row not in self._restored.rows())
        return self._verdict if out else None

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return self._verdict


class Judgement:
    """Keep the codes of all filters for all rows of one class, and explain them."""
    def __init__(self, profile: Profile, cycle: Cycle, pod: PodInfo) -> None:
        """Take a cycle state whose PreFilter has run; nothing is filtered before `filter_all`."""
        self._cycle = cycle
        self._pod = pod
        self._table: NodeTable = cycle.state.table
        self.filters: tuple[Filter, ...] = tuple(f for f in profile.filters if f.plugin.name not in cycle.skip_filter)
        self._narrowed = _Narrowed.of_class(cycle)
        self._left_in: Collection[int] = frozenset()  # rows that count when the search is narrowed
        if self._narrowed is not None:
            self.filters = (Filter(self._narrowed, columnar=False), *self.filters)
        self._epochs = Epochs()
        self._met: list[dict[Reject, int]] = [{} for _ in self.filters]
        self._words: list[list[Reject]] = [[] for _ in self.filters]
        self._codes: list[Codes] = []
        self.first: npt.NDArray[np.int16] = np.zeros(0, np.int16)
        self.promised: dict[int, tuple[str, Reject]] = {}
        self.views = Views.of_class(profile, cycle, pod)
        self.moved = False  # whether some filter was asked about more than the rows that changed

    # Promises ----------------------------------------------------------------------------------------------------

    def promise(self, row: int, said: tuple[str, Reject]) -> None:
        """Reject a row because of the pods nominated to it."""
        self.promised[row] = said
        if self.first[row] == FEASIBLE:
            self.first[row] = self._blocked

    def lift(self, rows: Iterable[int] | None = None) -> set[int]:
        """Remove the rejections for nominated pods from these rows, or all; return the rows that become feasible."""
        if not self.promised:
            return set()
        closed = set()
        for row in list(self.promised) if rows is None else rows:
            if self.promised.pop(row, None) is not None and self.first[row] == self._blocked:
                self.first[row] = FEASIBLE
                closed.add(row)
        return closed

    def blocked_rows(self) -> set[int]:
        return {row for row in self.promised if self.first[row] == self._blocked}

    @property
    def _blocked(self) -> int:
        return len(self.filters) + 1

    def looks_at(self, row: int) -> bool:
        """Return whether PreFilter allows the row."""
        return self._narrowed is None or row in self._left_in

    # Judging -----------------------------------------------------------------------------------------------------

    def judge_all(self) -> None:
        for judge in self.filters:
            self._epochs.moved(judge.plugin, self._cycle)  # from here on only later moves count
        if self._narrowed is None:
            self._codes = [self._ask_all(i) for i in range(len(self.filters))]
            self._combine()
            self._judge_seen()
            return
        size = self._table.size
        self._left_in = self._narrowed.rows(self._table)
        self._codes = [np.zeros(size, np.int32) for _ in self.filters]
        self._codes[0][:] = _LEFT_OUT
        self.first = np.where(self._table.alive, np.int16(1), np.int16(NO_NODE))
        self._judge_rows(sorted(self._left_in))

    def judge_again(self, changed: Sequence[int]) -> bool:
        """Filter these changed rows again; return True when feasibility may have changed outside of them too."""
        across = [i for i, judge in enumerate(self.filters) if self._epochs.moved(judge.plugin, self._cycle)]
        self.moved = bool(across)
        if self._narrowed is not None:
            self._left_in = self._narrowed.rows(self._table)
            for row in changed:
                if row not in self._left_in:
                    self._leave_out(row)
            changed = [row for row in (self._left_in if across else changed) if row in self._left_in]
            self._judge_rows(changed)
            return bool(across)
        self._judge_rows(changed)
        flips = [self._ask_across(i, changed) for i in across]  # all of them: each brings its own column up to date
        return self._judge_seen() | any(flips) if across else False

    def _leave_out(self, row: int) -> None:
        for codes in self._codes:
            codes[row] = 0
        self._codes[0][row] = _LEFT_OUT
        self.first[row] = 1 if self._table.alive[row] else NO_NODE

    def _judge_seen(self) -> bool:
        """Filter the rows again that this class sees differently, because columns show what everyone sees."""
        rows = self.views.rows() if self.views is not None else ()
        for row in rows:
            self._judge_one(row)
        return bool(rows)

    def _ask_across(self, i: int, judged: Sequence[int]) -> bool:
        """Run a filter again for the rows that it names; only where its verdict changed can another filter come first.

        """
        asked = self.filters[i].plugin.moved_rows(self._cycle)
        if asked is not None and len(asked) <= FEW_ROWS and all(row in judged for row in asked.tolist()):
            return False
        codes = self._codes[i]
        if asked is None:
            after = self._codes[i] = self._ask_all(i)
            rows = np.flatnonzero((after != 0) != (codes != 0))
        else:
            after = self._ask(i, asked)
            rows = asked[(after != 0) != (codes[asked] != 0)]
            codes[asked] = after
        if not len(rows):
            return False
        refuses = self._codes[i][rows] != 0
        refused, freed = rows[refuses], rows[~refuses]
        first = self.first[refused]
        self.first[refused[(first == FEASIBLE) | (first > i + 1)]] = i + 1
        freed = freed[self.first[freed] == i + 1]
        first = np.zeros(len(freed), np.int16)
        for j in range(len(self.filters) - 1, i, -1):
            first[self._codes[j][freed] != 0] = j + 1
        self.first[freed] = first
        return True

    def _judge_rows(self, rows: Sequence[int]) -> None:
        if self.views is not None:
            apart = self.views.rows()
            for row in rows:
                if row in apart:
                    self._judge_one(row)
            rows = [row for row in rows if row not in apart]
        if len(rows) > FEW_ROWS:
            self._judge_many(np.asarray(rows, np.intp))
        else:
            for row in rows:
                self._judge_one(row)

    def _judge_one(self, row: int) -> None:
        node = self._table.nodes[row]
        if node is None or node.node is None:
            self.first[row] = NO_NODE
            return
        cycle = self._cycle
        if self.views is not None and (seen := self.views.of(row)) is not None:
            cycle, node = seen
        first = FEASIBLE
        for i, judge in enumerate(self.filters):
            code = self._ask_node(i, judge.plugin, cycle, node)
            self._codes[i][row] = code
            if code and not first:
                first = i + 1
        self.first[row] = first

    def _judge_many(self, rows: RowList) -> None:
        self.first[rows] = NO_NODE
        rows = rows[self._table.alive[rows]]
        first = np.zeros(len(rows), np.int16)
        for i in range(len(self.filters) - 1, -1, -1):
            codes = self._codes[i][rows] = self._ask(i, rows)
            first[codes != 0] = i + 1
        self.first[rows] = first

    def _ask_all(self, i: int) -> Codes:
        plugin = self.filters[i].plugin
        if self.filters[i].columnar:
            return plugin.filter_columns(self._cycle, self._pod, self._table, EVERY)
        codes = np.zeros(self._table.size, np.int32)
        rows = self._table.live_rows()
        codes[rows] = self._ask(i, rows)
        return codes

    def _ask(self, i: int, rows: RowList) -> Codes:
        judge = self.filters[i]
        if judge.columnar:
            return judge.plugin.filter_columns(self._cycle, self._pod, self._table, rows)
        found = (self._ask_node(i, judge.plugin, self._cycle, self._table.nodes[row]) for row in rows)
        return np.fromiter(found, np.int32, len(rows))

    def _ask_node(self, i: int, plugin: Plugin, cycle: Cycle, node: NodeInfo | None) -> int:
        assert node is not None
        verdict = plugin.filter(cycle, self._pod, node)
        if verdict is None:
            return 0
        met = self._met[i]
        code = met.get(verdict)
        if code is None:
            code = met[verdict] = _FIRST_MET + len(self._words[i])
            self._words[i].append(verdict)
        return code

    def _combine(self) -> None:
        alive = self._table.alive
        first = np.full(self._table.size, NO_NODE, np.int16)
        first[alive] = FEASIBLE
        for i in range(len(self.filters) - 1, -1, -1):
            codes = self._codes[i]
            if codes.any():
                first[(codes != 0) & alive] = i + 1
        self.first = first

    # Telling -----------------------------------------------------------------------------------------------------

    def feasible_rows(self) -> RowList:
        return np.flatnonzero(self.first == FEASIBLE)

    def verdict(self, row: int) -> tuple[str, Reject] | None:
        """Return the first plugin that rejected a node and its verdict; None when the node is feasible."""
        if row in self.promised:
            return self.promised[row]
        first = int(self.first[row])
        if first <= 0:
            return None
        return self.filters[first - 1].plugin.name, self._word(first - 1, int(self._codes[first - 1][row]))

    def _word(self, i: int, code: int) -> Reject:
        if code >= _FIRST_MET:
            return self._words[i][code - _FIRST_MET]
        return self.filters[i].plugin.explain_code(self._cycle, self._pod, code)

    def objections(self, row: int) -> tuple[str, ...]:
        """Return all reasons against a node; the one that is reported hides the others."""
        if row in self.promised:
            return self.promised[row][1].reasons
        codes = ((i, int(self._codes[i][row])) for i in range(len(self.filters)))
        return tuple(reason for i, code in codes if code for reason in self._word(i, code).reasons)

    def objectors(self, rows: RowList) -> npt.NDArray[np.int16]:
        """Count the filters that reject each row."""
        counts = np.zeros(len(rows), np.int16)
        for codes in self._codes:
            counts += codes[rows] != 0
        return counts

    def near_misses(self, node: NodeInfo) -> list[tuple[float, str]]:
        """Return what the rejecting plugins say about how much is missing on a node, where they say anything."""
        found = []
        for i, judge in enumerate(self.filters):
            if overrides(judge.plugin, "near_miss") and self._codes[i][node.row]:
                miss = judge.plugin.near_miss(self._cycle, self._pod, node)
                if miss is not None:
                    found.append(miss)
        return found

    def codes_of(self, plugin: str) -> Codes:
        """Return the codes of a filter for every row that PreFilter allows: 0 passes."""
        return self._codes[self._place(plugin)]

    def word_of(self, plugin: str, code: int) -> Reject:
        return self._word(self._place(plugin), code)

    def _place(self, plugin: str) -> int:
        return next(i for i, judge in enumerate(self.filters) if judge.plugin.name == plugin)

    def resolvable_rows(self) -> RowList:
        """Return the rows whose rejection might be resolved if pods left the node; decided once per distinct verdict.

        """
        found = np.zeros(len(self.first), np.bool_)
        for i in range(len(self.filters)):
            rows = np.flatnonzero(self.first == i + 1)
            codes = self._codes[i][rows]
            for code in np.unique(codes):
                if self._word(i, int(code)).resolvable:
                    found[rows[codes == code]] = True
        for row, (_, verdict) in self.promised.items():
            found[row] = verdict.resolvable
        return np.flatnonzero(found)

    def refused_only_by(self, plugin: str) -> RowList:
        """Return the rows that only this plugin rejects and that are not blocked by nominated pods."""
        if all(judge.plugin.name != plugin for judge in self.filters):
            return np.zeros(0, np.intp)
        place = self._place(plugin)
        found = self.first == place + 1  # it comes first; those after it must have no objection either
        for codes in self._codes[place + 1 :]:
            found &= codes == 0
        found[list(self.promised)] = False
        return np.flatnonzero(found)

    def refusals(self) -> dict[tuple[str, Reject], list[str]]:
        """Return the nodes by rejecting plugin and verdict; computed once per distinct verdict."""
        found: dict[tuple[str, Reject], list[str]] = {}
        promised, nodes = self.promised, self._table.nodes
        for i, judge in enumerate(self.filters):
            rows = np.flatnonzero(self.first == i + 1)
            codes = self._codes[i][rows]
            for code in np.unique(codes):
                of_code = rows[codes == code]
                if promised:
                    of_code = np.asarray([row for row in of_code if row not in promised], np.intp)
                names = [node.name for row in of_code if (node := nodes[row]) is not None]
                if names:
                    found.setdefault((judge.plugin.name, self._word(i, int(code))), []).extend(names)
        for row, said in promised.items():
            if (node := nodes[row]) is not None:
                found.setdefault(said, []).append(node.name)
        return found
