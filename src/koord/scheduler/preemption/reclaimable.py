"""Bound from above what preemption could free, from columns alone, to skip nodes where no dry run can succeed.

The sums of what pods below a priority hold are kept for the priorities that are asked for, and updated for rows that
changed. The bound never says no where a dry run would say yes: filters that read more than sums are not run here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

import numpy as np

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_table import Bools, Ints, NodeTable, RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.decision import NearestNode
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import Reject

# Sums are kept for this many priorities; the one asked about longest ago gives way.
PRIORITIES_KEPT = 16


class LowerPriorityPods:
    """Keep per row how many pods have a lower priority, and what they hold by resource."""

    def __init__(self, priority: int, table: NodeTable, may_evict: Callable[[PodInfo], bool]) -> None:
        self._priority = priority
        self._may_evict = may_evict
        self._table = table
        self._layout = -1
        self._position = -1
        self.count: Ints = np.zeros(0, np.int64)
        self._held: dict[str, Ints] = {}

    def held(self, name: str) -> Ints:
        known = self._held.get(name)
        return known if known is not None else np.zeros(self._table.size, np.int64)

    def refresh(self) -> None:
        table = self._table
        changed = table.changed_since(self._position) if self._layout == table.layout else None
        self._layout, self._position = table.layout, table.position
        if changed is None or 4 * len(changed) > table.size:
            self._count_all()
            return
        for row in changed:
            self._count_row(row)

    def _count_row(self, row: int) -> None:
        for column in self._held.values():
            column[row] = 0
        self.count[row] = 0
        node = self._table.nodes[row]
        if node is None:
            return
        for pod in node.pods.values():
            if pod.shape.priority < self._priority and self._may_evict(pod):
                self.count[row] += 1
                for name, amount in pod.requests.items():
                    if name not in self._held:
                        self._held[name] = np.zeros(self._table.size, np.int64)
                    self._held[name][row] += amount

    def _count_all(self) -> None:
        """Sum up all rows: requests are looked up once per shape and added in columns."""
        size, priority, may_evict = self._table.size, self._priority, self._may_evict
        found: list[PodInfo] = []
        rows: list[int] = []
        for row, node in enumerate(self._table.nodes):
            if node is not None and node.pods:
                below = [pod for pod in node.pods.values() if pod.shape.priority < priority and may_evict(pod)]
                found += below
                rows += [row] * len(below)
        self.count = np.bincount(rows, minlength=size).astype(np.int64) if rows else np.zeros(size, np.int64)
        kinds: dict[int, dict[str, int]] = {id(pod.requests): pod.requests for pod in found}
        place = {kind: i for i, kind in enumerate(kinds)}
        kind_of = np.asarray([place[id(pod.requests)] for pod in found], np.intp)
        self._held = {}
        for name in {name for requests in kinds.values() for name in requests}:
            amounts = np.asarray([requests.get(name, 0) for requests in kinds.values()], np.int64)
            column = self._held[name] = np.zeros(size, np.int64)
            np.add.at(column, np.asarray(rows, np.intp), amounts[kind_of])


class ReclaimableResources:
    """Keep the sums for all priorities of one cluster state. Get it with `state.derived(ReclaimableResources)`.

    A kind of preemption that spares some pods overrides `may_evict`.
    """

    def __init__(self, state: ClusterState) -> None:
        self._table = state.table
        self._known: OrderedDict[int, LowerPriorityPods] = OrderedDict()

    def may_evict(self, pod: PodInfo) -> bool:
        """Return whether the pod may be evicted for one of higher priority; must be constant for a pod."""
        return not pod.is_reserve_pod

    def below(self, priority: int) -> LowerPriorityPods:
        known = self._known.get(priority)
        if known is None:
            known = self._known[priority] = LowerPriorityPods(priority, self._table, self.may_evict)
            if len(self._known) > PRIORITIES_KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(priority)
        known.refresh()
        return known


class ReclaimedTable(NodeTable):
    """Show the node table with the sums it would have without those pods, for filters that read only sums of pods."""

    def __init__(self, table: NodeTable, below: LowerPriorityPods) -> None:
        self._real = table
        self._below = below
        self.nodes = table.nodes
        self.index = table.index
        self.alive = table.alive
        self.allowed_pods = table.allowed_pods
        self.pod_count = table.pod_count - below.count

    def allocatable(self, name: str) -> Ints:
        return self._real.allocatable(name)

    def requested(self, name: str) -> Ints:
        return self._real.requested(name) - self._below.held(name)


class ReclaimUpperBound:
    """Run the filters that read only sums over these rows as if all pods of lower priority were gone.

    `without_victims`: there is no pod of lower priority. `passing`: the row is worth a dry run.
    """

    def __init__(
        self, context: PostFilterContext, rows: RowList, reclaimable: type[ReclaimableResources] = ReclaimableResources
    ) -> None:
        self._context = context
        self._rows = rows
        below = context.cycle.state.derived(reclaimable).below(context.pod.priority)
        self.reclaimed_table = ReclaimedTable(context.table, below)
        self.without_victims: Bools = below.count[rows] == 0
        # The first filter that refuses, by its place among all of them, with its codes; and the first place of one
        # that could refuse earlier for all that is known here.
        self._filters = context.dry_runs.filters
        self._first = np.full(len(rows), len(self._filters), np.int32)
        self._codes: dict[int, Codes] = {}
        self._first_unknown = len(self._filters)
        for place in range(len(self._filters) - 1, -1, -1):
            self._run_filter(place)
        self.passing: Bools = (self._first == len(self._filters)) & ~self.without_victims

    def _run_filter(self, place: int) -> None:
        plugin, context = self._filters[place], self._context
        if plugin.reads_pods == "sums":
            codes = plugin.filter_columns(context.cycle, context.pod, self.reclaimed_table, self._rows)
        elif plugin.reads_pods == "nothing" and context.filter_results is not None:
            codes = context.filter_results.codes_of(plugin.name)[self._rows]
        else:
            self._first_unknown = place
            return
        self._codes[place] = codes
        self._first[codes != 0] = place

    def reasons(self, chosen: Bools) -> tuple[Counter[str], RowList]:
        """Count the reasons of these nodes; also return the rows where a filter that was not run might reject first."""
        counts: Counter[str] = Counter()
        for place, codes in self._codes.items():
            if place < self._first_unknown:
                mine = codes[chosen & (self._first == place)]
                for code, times in zip(*np.unique(mine, return_counts=True), strict=True):
                    for reason in self._verdict(place, int(code)).reasons:
                        counts[reason] += int(times)
        return counts, self._rows[chosen & (self._first >= self._first_unknown)]

    def _verdict(self, place: int, code: int) -> Reject:
        plugin, context = self._filters[place], self._context
        if plugin.reads_pods == "nothing" and context.filter_results is not None:
            return context.filter_results.verdict_of_code(plugin.name, code)
        return plugin.explain_code(context.cycle, context.pod, code)

    def nearest(self) -> NearestNode | None:
        """Return the node that lacks least of those that sums reject, as a share of what the pod requests."""
        asked = {name: amount for name, amount in self._context.pod.requests.items() if amount}
        places = [i for i, plugin in enumerate(self._filters) if plugin.reads_pods == "sums"]
        short = np.isin(self._first, places) & ~self.without_victims
        if not asked or not short.any():
            return None
        rows = self._rows[short]
        table = self.reclaimed_table
        lacking = {
            name: np.maximum(amount - (table.allocatable(name)[rows] - table.requested(name)[rows]), 0)
            for name, amount in asked.items()
        }
        share = sum((lacking[name] / amount for name, amount in asked.items()), np.zeros(len(rows)))
        best = int(np.argmin(share))
        node = table.nodes[int(rows[best])]
        assert node is not None
        place = int(self._first[short][best])
        verdict = self._verdict(place, int(self._codes[place][short][best]))
        return NearestNode(node.name, verdict.reasons, {name: int(n[best]) for name, n in lacking.items() if n[best]})
