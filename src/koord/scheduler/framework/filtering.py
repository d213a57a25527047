"""Keep every node's filter verdict for one class of equal pods, updated row by row.

    codes[f][row]               the code of filter f for a row: 0 passes
    first_rejection[row]        -1 no node, 0 feasible, else 1 + index of the first filter that rejected: it is reported
    nominated_rejections[row]   the verdict while nominated pods must be counted there (kept by `nominated_pods`), or
                                of extenders, for the one pod that they were asked about
    nominated_acceptances       rows that are feasible only with the pods nominated to them, where that is enough
    node_views                  rows that this class sees differently; they are filtered one by one, as it sees them

A filter whose verdicts depend on one row is run again for rows that changed; one that looks across nodes is run for all
rows when its epoch moves; one that does not declare a scope is always run for all.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import ALL_ROWS, Bools, NodeTable, RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PRE_FILTER
from koord.scheduler.framework.dry_run import RestoredNodeViews
from koord.scheduler.framework.plugin import Codes, Plugin
from koord.scheduler.framework.plugin_timing import AttemptTimer
from koord.scheduler.framework.profile import FilterPlugin, SchedulerProfile
from koord.scheduler.framework.verdict import ALWAYS, CLUSTER, ROW, Fault, Reject, unresolvable

NO_NODE = -1
FEASIBLE = 0

# Up to this many changed rows the per-node form is cheaper than starting NumPy for them.
FEW_ROWS = 6
# What is said of nodes that PreFilter left out.
_NOT_ALLOWED_CODE = 1
# Per-node verdicts have no code of their own: they are numbered as they are met, from here on.
_FIRST_VERDICT_CODE = 1 << 20


class EpochTracker:
    """Remember each plugin's epoch, to tell which of them moved."""

    def __init__(self, *, scores: bool = False) -> None:
        self._of_scores = scores
        self._seen: dict[str, Hashable] = {}

    def has_moved(self, plugin: Plugin, cycle: CycleState) -> bool:
        if plugin.scope is ALWAYS:
            return True
        if plugin.scope is not CLUSTER:
            return False
        epoch = plugin.score_epoch(cycle) if self._of_scores else plugin.epoch(cycle)
        if self._seen.get(plugin.name, self) == epoch:
            return False
        self._seen[plugin.name] = epoch
        return True


class _NodeRestriction(Plugin):
    """Reject the nodes that PreFilter plugins left out; no other filter is run for them."""

    name = PRE_FILTER
    scope = ROW
    reads_pods = "nothing"

    def __init__(self, cycle: CycleState) -> None:
        self._allowed_nodes = cycle.allowed_nodes
        restored = cycle.restored_nodes
        self._restored_nodes = restored if restored is not None and restored.exclusive else None
        self._verdict = unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(cycle.restricted_by)}]")

    @staticmethod
    def for_class(cycle: CycleState) -> _NodeRestriction | None:
        held = cycle.restored_nodes is not None and cycle.restored_nodes.exclusive
        return _NodeRestriction(cycle) if held or cycle.allowed_nodes is not None else None

    def rows(self, table: NodeTable) -> Collection[int]:
        """Return the rows of the allowed nodes; rows that are allowed because they are restored may change."""
        if self._allowed_nodes is None:
            return self._restored_nodes.rows() if self._restored_nodes is not None else ()
        rows = frozenset(node.row for name in self._allowed_nodes if (node := table.index.get(name)) is not None)
        return rows if self._restored_nodes is None else rows.intersection(self._restored_nodes.rows())

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        out = self._allowed_nodes is not None and node.name not in self._allowed_nodes
        out = out or (self._restored_nodes is not None and node.row not in self._restored_nodes.rows())
        return self._verdict if out else None

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return self._verdict


class FilterResults:
    """Keep the codes of all filters for all rows of one class, and explain them."""

    def __init__(self, profile: SchedulerProfile, cycle: CycleState, pod: PodInfo) -> None:
        """Take a cycle state whose PreFilter has run; nothing is filtered before `filter_all`."""
        self._cycle = cycle
        self._pod = pod
        self._table: NodeTable = cycle.state.table
        self.filters: tuple[FilterPlugin, ...] = tuple(
            f for f in profile.filters if f.plugin.name not in cycle.skip_filter
        )
        self._restriction = _NodeRestriction.for_class(cycle)
        self._allowed_rows: Collection[int] = frozenset()  # rows that count when the search is narrowed
        if self._restriction is not None:
            self.filters = (FilterPlugin(self._restriction, columnar=False), *self.filters)
        self._epochs = EpochTracker()
        self._code_of_verdict: list[dict[Reject, int]] = [{} for _ in self.filters]
        self._verdicts: list[list[Reject]] = [[] for _ in self.filters]
        self._fault_codes: list[list[int]] = [[] for _ in self.filters]  # codes that stand for faults
        self._codes: list[Codes] = []
        self.first_rejection: npt.NDArray[np.int16] = np.zeros(0, np.int16)
        self.nominated_rejections: dict[int, tuple[str, Reject]] = {}
        self.nominated_acceptances: set[int] = set()
        self.node_views = RestoredNodeViews.for_class(profile, cycle, pod)
        self.timer: AttemptTimer | None = None  # of the attempt under way, if it is timed
        self.crossed_rows = False  # whether some filter was asked about more than the rows that changed

    # Nominated pods ----------------------------------------------------------------------------------------------

    def block_row(self, row: int, rejection: tuple[str, Reject]) -> None:
        """Reject a row because of the pods nominated to it, or because extenders do."""
        self.nominated_rejections[row] = rejection
        if self.first_rejection[row] == FEASIBLE:
            self.first_rejection[row] = self._blocked_code

    def accept_row(self, row: int) -> None:
        """Make a row feasible that the filters reject without the pods nominated to it."""
        self.nominated_acceptances.add(row)
        self.first_rejection[row] = FEASIBLE

    def reset_nominated_rows(self, rows: Iterable[int] | None = None) -> set[int]:
        """Give these rows, or all, the verdict that they have without nominated pods; return those that it changes."""
        reset = {row for row in self.nominated_acceptances if rows is None or row in rows}
        self.nominated_acceptances -= reset
        for row in reset:
            self.first_rejection[row] = self._first_rejecting_filter(row)
        if not self.nominated_rejections:
            return reset
        for row in list(self.nominated_rejections) if rows is None else rows:
            if self.nominated_rejections.pop(row, None) is not None and self.first_rejection[row] == self._blocked_code:
                self.first_rejection[row] = FEASIBLE
                reset.add(row)
        return reset

    def nominated_rows(self) -> set[int]:
        """Return the rows whose feasibility is another one because of nominated pods."""
        blocked = {row for row in self.nominated_rejections if self.first_rejection[row] == self._blocked_code}
        return blocked | self.nominated_acceptances

    def _first_rejecting_filter(self, row: int) -> int:
        if not self._table.alive[row]:
            return NO_NODE
        return next((i + 1 for i, codes in enumerate(self._codes) if codes[row]), FEASIBLE)

    @property
    def _blocked_code(self) -> int:
        return len(self.filters) + 1

    def is_row_allowed(self, row: int) -> bool:
        """Return whether PreFilter allows the row."""
        return self._restriction is None or row in self._allowed_rows

    # Judging -----------------------------------------------------------------------------------------------------

    def filter_all(self) -> None:
        for filter_plugin in self.filters:
            self._epochs.has_moved(filter_plugin.plugin, self._cycle)  # from here on only later moves count
        if self._restriction is None:
            self._codes = [self._codes_of_all(i) for i in range(len(self.filters))]
            self._combine()
            self._filter_viewed_rows()
            return
        size = self._table.size
        self._allowed_rows = self._restriction.rows(self._table)
        self._codes = [np.zeros(size, np.int32) for _ in self.filters]
        self._codes[0][:] = _NOT_ALLOWED_CODE
        self.first_rejection = np.where(self._table.alive, np.int16(1), np.int16(NO_NODE))
        self._filter_rows(sorted(self._allowed_rows))

    def filter_changed(self, changed: Sequence[int]) -> bool:
        """Filter these changed rows again; return True when feasibility may have changed outside of them too."""
        across = [
            i
            for i, filter_plugin in enumerate(self.filters)
            if self._epochs.has_moved(filter_plugin.plugin, self._cycle)
        ]
        self.crossed_rows = bool(across)
        if self._restriction is not None:
            self._allowed_rows = self._restriction.rows(self._table)
            for row in changed:
                if row not in self._allowed_rows:
                    self._disallow_row(row)
            changed = [row for row in (self._allowed_rows if across else changed) if row in self._allowed_rows]
            self._filter_rows(changed)
            return bool(across)
        self._filter_rows(changed)
        flips = [
            self._refilter_across_rows(i, changed) for i in across
        ]  # all of them: each brings its own column up to date
        return self._filter_viewed_rows() | any(flips) if across else False

    def _disallow_row(self, row: int) -> None:
        for codes in self._codes:
            codes[row] = 0
        self._codes[0][row] = _NOT_ALLOWED_CODE
        self.first_rejection[row] = 1 if self._table.alive[row] else NO_NODE

    def _filter_viewed_rows(self) -> bool:
        """Filter the rows again that this class sees differently, because columns show what everyone sees."""
        rows = self.node_views.rows() if self.node_views is not None else ()
        for row in rows:
            self._filter_row(row)
        return bool(rows)

    def _refilter_across_rows(self, i: int, judged: Sequence[int]) -> bool:
        """Run a filter again for the rows that it names; only where its verdict changed may another come first."""
        asked = self.filters[i].plugin.moved_rows(self._cycle)
        if asked is not None and len(asked) <= FEW_ROWS and all(row in judged for row in asked.tolist()):
            return False
        codes = self._codes[i]
        if asked is None:
            after = self._codes[i] = self._codes_of_all(i)
            rows = np.flatnonzero((after != 0) != (codes != 0))
        else:
            after = self._codes_of_rows(i, asked)
            rows = asked[(after != 0) != (codes[asked] != 0)]
            codes[asked] = after
        if not len(rows):
            return False
        refuses = self._codes[i][rows] != 0
        refused, freed = rows[refuses], rows[~refuses]
        first = self.first_rejection[refused]
        self.first_rejection[refused[(first == FEASIBLE) | (first > i + 1)]] = i + 1
        freed = freed[self.first_rejection[freed] == i + 1]
        first = np.zeros(len(freed), np.int16)
        for j in range(len(self.filters) - 1, i, -1):
            first[self._codes[j][freed] != 0] = j + 1
        self.first_rejection[freed] = first
        return True

    def _filter_rows(self, rows: Sequence[int]) -> None:
        if self.node_views is not None:
            apart = self.node_views.rows()
            for row in rows:
                if row in apart:
                    self._filter_row(row)
            rows = [row for row in rows if row not in apart]
        if len(rows) > FEW_ROWS:
            self._filter_columns(np.asarray(rows, np.intp))
        else:
            for row in rows:
                self._filter_row(row)

    def _filter_row(self, row: int) -> None:
        node = self._table.nodes[row]
        if node is None or node.node is None:
            self.first_rejection[row] = NO_NODE
            return
        cycle = self._cycle
        if self.node_views is not None and (seen := self.node_views.view_of_row(row)) is not None:
            cycle, node = seen
        first = FEASIBLE
        if (timer := self.timer) is not None:
            timer.lap()
        for i, filter_plugin in enumerate(self.filters):
            code = self._code_of_node(i, filter_plugin.plugin, cycle, node)
            self._codes[i][row] = code
            if code and not first:
                first = i + 1
            if timer is not None:
                timer.plugin_ended(filter_plugin.plugin.name, "Filter", self._verdict(i, code) if code else None)
        self.first_rejection[row] = first

    def _filter_columns(self, rows: RowList) -> None:
        self.first_rejection[rows] = NO_NODE
        rows = rows[self._table.alive[rows]]
        first = np.zeros(len(rows), np.int16)
        for i in range(len(self.filters) - 1, -1, -1):
            codes = self._codes[i][rows] = self._codes_of_rows(i, rows)
            first[codes != 0] = i + 1
        self.first_rejection[rows] = first

    def _codes_of_all(self, i: int) -> Codes:
        if not self.filters[i].columnar:
            codes = np.zeros(self._table.size, np.int32)
            rows = self._table.live_rows()
            codes[rows] = self._codes_of_rows(i, rows)
            return codes
        plugin = self.filters[i].plugin
        if self.timer is not None:
            self.timer.lap()
        codes = plugin.filter_columns(self._cycle, self._pod, self._table, ALL_ROWS)
        if self.timer is not None:
            self.timer.plugin_ended(plugin.name, "Filter", None)
        return codes

    def _codes_of_rows(self, i: int, rows: RowList) -> Codes:
        filter_plugin = self.filters[i]
        if self.timer is not None:
            self.timer.lap()
        if filter_plugin.columnar:
            codes = filter_plugin.plugin.filter_columns(self._cycle, self._pod, self._table, rows)
        else:
            found = (self._code_of_node(i, filter_plugin.plugin, self._cycle, self._table.nodes[row]) for row in rows)
            codes = np.fromiter(found, np.int32, len(rows))
        if self.timer is not None:
            self.timer.plugin_ended(filter_plugin.plugin.name, "Filter", None)
        return codes

    def _code_of_node(self, i: int, plugin: Plugin, cycle: CycleState, node: NodeInfo | None) -> int:
        assert node is not None
        verdict = plugin.filter(cycle, self._pod, node)
        if verdict is None:
            return 0
        refusal = unresolvable(verdict.message) if isinstance(verdict, Fault) else verdict
        met = self._code_of_verdict[i]
        code = met.get(refusal)
        if code is None:
            code = met[refusal] = _FIRST_VERDICT_CODE + len(self._verdicts[i])
            self._verdicts[i].append(refusal)
            if isinstance(verdict, Fault):
                self._fault_codes[i].append(code)
        return code

    def _combine(self) -> None:
        alive = self._table.alive
        first = np.full(self._table.size, NO_NODE, np.int16)
        first[alive] = FEASIBLE
        for i in range(len(self.filters) - 1, -1, -1):
            codes = self._codes[i]
            if codes.any():
                first[(codes != 0) & alive] = i + 1
        self.first_rejection = first

    # Telling -----------------------------------------------------------------------------------------------------

    def fault(self) -> tuple[str, str] | None:
        """Return the plugin whose Filter failed on a node that no earlier one rejects, with its message."""
        for i, codes in enumerate(self._fault_codes):
            filter_plugin = self.filters[i]
            for code in (
                (*codes, *filter_plugin.plugin.fault_codes(self._cycle)) if filter_plugin.has_fault_codes else codes
            ):
                if ((self.first_rejection == i + 1) & (self._codes[i] == code)).any():
                    return self.filters[i].plugin.name, self._verdict(i, code).text
        return None

    def feasible_rows(self) -> RowList:
        return np.flatnonzero(self.first_rejection == FEASIBLE)

    def verdict(self, row: int) -> tuple[str, Reject] | None:
        """Return the first plugin that rejected a node and its verdict; None when the node is feasible."""
        if row in self.nominated_rejections:
            return self.nominated_rejections[row]
        first = int(self.first_rejection[row])
        if first <= 0:
            return None
        return self.filters[first - 1].plugin.name, self._verdict(first - 1, int(self._codes[first - 1][row]))

    def _verdict(self, i: int, code: int) -> Reject:
        if code >= _FIRST_VERDICT_CODE:
            return self._verdicts[i][code - _FIRST_VERDICT_CODE]
        return self.filters[i].plugin.explain_code(self._cycle, self._pod, code)

    def all_reasons(self, row: int) -> tuple[str, ...]:
        """Return all reasons against a node; the one that is reported hides the others."""
        if row in self.nominated_rejections:
            return self.nominated_rejections[row][1].reasons
        codes = ((i, int(self._codes[i][row])) for i in range(len(self.filters)))
        return tuple(reason for i, code in codes if code for reason in self._verdict(i, code).reasons)

    def rejection_counts(self, rows: RowList) -> npt.NDArray[np.int16]:
        """Count the filters that reject each row."""
        counts = np.zeros(len(rows), np.int16)
        for codes in self._codes:
            counts += codes[rows] != 0
        return counts

    def ruled_out(self, rows: RowList) -> Bools:
        """Return per row whether the node is ruled out whatever pods are on it: by its labels, taints or volumes."""
        found = np.zeros(len(rows), np.bool_)
        for i, filter_plugin in enumerate(self.filters):
            if filter_plugin.plugin.reads_pods == "nothing" and (codes := self._codes[i][rows]).any():
                for code in np.unique(codes[codes != 0]):
                    if not self._verdict(i, int(code)).resolvable:
                        found |= codes == code
        return found

    def ruling_out_reasons(self, row: int) -> tuple[str, ...]:
        """Return the reasons for which a node is ruled out whatever pods are on it."""
        codes = ((i, int(self._codes[i][row])) for i, f in enumerate(self.filters) if f.plugin.reads_pods == "nothing")
        verdicts = (self._verdict(i, code) for i, code in codes if code)
        return tuple(reason for verdict in verdicts if not verdict.resolvable for reason in verdict.reasons)

    def near_misses(self, node: NodeInfo) -> list[tuple[float, str]]:
        """Return what the rejecting plugins say about how much is missing on a node, where they say anything."""
        found = []
        for i, filter_plugin in enumerate(self.filters):
            if filter_plugin.near_misses is not None and self._codes[i][node.row]:
                miss = filter_plugin.near_misses.near_miss(self._cycle, self._pod, node)
                if miss is not None:
                    found.append(miss)
        return found

    def codes_of(self, plugin: str) -> Codes:
        """Return the codes of a filter for every row that PreFilter allows: 0 passes."""
        return self._codes[self._filter_index(plugin)]

    def verdict_of_code(self, plugin: str, code: int) -> Reject:
        return self._verdict(self._filter_index(plugin), code)

    def _filter_index(self, plugin: str) -> int:
        return next(i for i, filter_plugin in enumerate(self.filters) if filter_plugin.plugin.name == plugin)

    def resolvable_rows(self) -> RowList:
        """Return the rows whose rejection might be resolved if pods left the node; decided once per verdict."""
        found = np.zeros(len(self.first_rejection), np.bool_)
        for i in range(len(self.filters)):
            rows = np.flatnonzero(self.first_rejection == i + 1)
            codes = self._codes[i][rows]
            for code in np.unique(codes):
                if self._verdict(i, int(code)).resolvable:
                    found[rows[codes == code]] = True
        for row, (_, verdict) in self.nominated_rejections.items():
            found[row] = verdict.resolvable
        return np.flatnonzero(found)

    def rows_rejected_only_by(self, plugin: str) -> RowList:
        """Return the rows that only this plugin rejects and that are not blocked by nominated pods."""
        if all(filter_plugin.plugin.name != plugin for filter_plugin in self.filters):
            return np.zeros(0, np.intp)
        place = self._filter_index(plugin)
        found = self.first_rejection == place + 1  # it comes first; those after it must have no objection either
        for codes in self._codes[place + 1 :]:
            found &= codes == 0
        found[list(self.nominated_rejections)] = False
        return np.flatnonzero(found)

    def rejections(self) -> dict[tuple[str, Reject], list[str]]:
        """Return the nodes by rejecting plugin and verdict; computed once per distinct verdict."""
        found: dict[tuple[str, Reject], list[str]] = {}
        promised, nodes = self.nominated_rejections, self._table.nodes
        for i, filter_plugin in enumerate(self.filters):
            rows = np.flatnonzero(self.first_rejection == i + 1)
            codes = self._codes[i][rows]
            for code in np.unique(codes):
                of_code = rows[codes == code]
                if promised:
                    of_code = np.asarray([row for row in of_code if row not in promised], np.intp)
                names = [node.name for row in of_code if (node := nodes[row]) is not None]
                if names:
                    found.setdefault((filter_plugin.plugin.name, self._verdict(i, int(code))), []).extend(names)
        for row, rejection in promised.items():
            if (node := nodes[row]) is not None:
                found.setdefault(rejection, []).append(node.name)
        return found
