"""Bound from above what preemption could free, from columns alone, to skip nodes where no dry run can succeed.

The sums of what pods below a priority hold are kept for the priorities that are asked for, and updated for rows that
changed. The bound never says no where a dry run would say yes: filters that read more than sums are not run here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import Ints, NodeTable

# Sums are kept for this many priorities; the one asked about longest ago gives way.
PRIORITIES_KEPT = 16


class Below:
    """Keep per row how many pods have a lower priority, and what they hold by resource."""

    def __init__(self, priority: int, table: NodeTable, takes: Callable[[PodInfo], bool]) -> None:
        self._priority = priority
        self._takes = takes
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
            if pod.shape.priority < self._priority and self._takes(pod):
                self.count[row] += 1
                for name, amount in pod.requests.items():
                    if name not in self._held:
                        self._held[name] = np.zeros(self._table.size, np.int64)
                    self._held[name][row] += amount

    def _count_all(self) -> None:
        """Sum up all rows: pods of one shape hold the same, so requests are looked up once per shape and added in
        columns.
        """
        size, priority, takes = self._table.size, self._priority, self._takes
        found: list[PodInfo] = []
        rows: list[int] = []
        for row, node in enumerate(self._table.nodes):
            if node is not None and node.pods:
                below = [pod for pod in node.pods.values() if pod.shape.priority < priority and takes(pod)]
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


class Reliefs:
    """Keep the sums for all priorities of one cluster state. Get it with `state.derived(ReclaimableResources)`.

    A kind of preemption that spares some pods overrides `may_evict`.
    """

    def __init__(self, state: ClusterState) -> None:
        self._table = state.table
        self._known: OrderedDict[int, Below] = OrderedDict()

    def takes(self, pod: PodInfo) -> bool:
        """Return whether the pod may be evicted for one of higher priority; must be constant for a pod."""
        return not pod.reserve

    def below(self, priority: int) -> Below:
        known = self._known.get(priority)
        if known is None:
            known = self._known[priority] = Below(priority, self._table, self.takes)
            if len(self._known) > PRIORITIES_KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(priority)
        known.refresh()
        return known


class Relieved(NodeTable):
    """Show the node table with the sums it would have without those pods, for filters that read only sums of pods."""

    def __init__(self, table: NodeTable, below: Below) -> None:
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
