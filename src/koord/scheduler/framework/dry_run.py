"""Dry-run the filters on a copy of a node to which pods are added or from which they are removed.

The live state is never touched. Also gives the view of a node without the reserve pods that hold resources for a class
of pods (restored nodes).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState, RestoredNodes
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.runtime import run_filter
from koord.scheduler.framework.verdict import Reject

RejectedBy = tuple[str, Reject]  # who refused, and its words


class DryRuns:
    """Make the dry runs of one pod, or of one class of equal pods, from a cycle state whose PreFilter has run."""

    __slots__ = (
        "add_pod_plugins",
        "cycle",
        "filters",
        "filters_without_nominated",
        "node_copy_syncers",
        "pod",
        "pod_reading_filters",
        "remove_pod_plugins",
    )

    def __init__(self, profile: SchedulerProfile, cycle: CycleState, pod: PodInfo) -> None:
        self.cycle = cycle
        self.pod = pod
        skipped = cycle.skip_filter
        self.add_pod_plugins = tuple(p for p in profile.add_pod_plugins if p.name not in skipped)
        self.remove_pod_plugins = tuple(p for p in profile.remove_pod_plugins if p.name not in skipped)
        self.filters: tuple[Plugin, ...] = tuple(f.plugin for f in profile.filters if f.plugin.name not in skipped)
        # Those whose verdict can change when pods come or go.
        self.pod_reading_filters = tuple(plugin for plugin in self.filters if plugin.reads_pods != "nothing")
        self.node_copy_syncers = profile.node_copy_syncers
        self.filters_without_nominated = profile.filters_without_nominated

    def dry_run_on(self, node: NodeInfo) -> NodeDryRun:
        """Start a dry run on a copy of the node as such a pod sees it."""
        dry_run = NodeDryRun(self, self.cycle.fork(), node.copy())
        if self.cycle.restored_nodes is not None:
            for holder in self.cycle.restored_nodes.holders(node):
                dry_run.remove(holder)
        return dry_run

    def view_of(self, node: NodeInfo) -> tuple[CycleState, NodeInfo]:
        """Return the node as such a pod sees it, to read only; state is copied only where a plugin counts pods."""
        if self.remove_pod_plugins:
            dry_run = self.dry_run_on(node)
            return dry_run.cycle, dry_run.node
        copy = node.copy()
        for holder in self.cycle.restored_nodes.holders(node) if self.cycle.restored_nodes is not None else ():
            copy.remove(holder.uid)
        return self.cycle, copy


class NodeDryRun:
    """Change one copied node; `add` and `remove` tell the plugins that count pods across nodes."""

    __slots__ = ("_dry_runs", "cycle", "node")

    def __init__(self, dry_runs: DryRuns, cycle: CycleState, node: NodeInfo) -> None:
        """Take a forked cycle state and a copied node: both are changed."""
        self._dry_runs = dry_runs
        self.cycle = cycle
        self.node = node

    def add(self, other: PodInfo) -> None:
        self.node.add(other)
        for plugin in self._dry_runs.add_pod_plugins:
            plugin.add_pod(self.cycle, self._dry_runs.pod, other, self.node)
        for plugin in self._dry_runs.node_copy_syncers:
            plugin.sync_node_copy(self.cycle, other, self.node)

    def remove(self, other: PodInfo) -> None:
        self.node.remove(other.uid)
        for plugin in self._dry_runs.remove_pod_plugins:
            plugin.remove_pod(self.cycle, self._dry_runs.pod, other, self.node)
        for plugin in self._dry_runs.node_copy_syncers:
            plugin.sync_node_copy(self.cycle, other, self.node)

    def run_filters(self, nominated_ahead: Sequence[PodInfo] = (), *, again: bool = False) -> RejectedBy | None:
        """Return the first plugin that rejects the node now, and its verdict; None when the pod fits.

        The pod must fit with the pods that are nominated ahead of it (they may come), and without them (they may not),
        unless the profile leaves out the latter.
        `again` leaves out filters that do not read pods: they passed before, and pass now.
        """
        if nominated_ahead:
            with_nominated = NodeDryRun(self._dry_runs, self.cycle.fork(), self.node.copy())
            for other in nominated_ahead:
                if other.uid not in with_nominated.node.pods:
                    with_nominated.add(other)
            rejection = with_nominated.run_filters(again=again)
            if rejection is not None or not self._dry_runs.filters_without_nominated:
                return rejection
        dry_runs = self._dry_runs
        plugins = dry_runs.pod_reading_filters if again else dry_runs.filters
        return run_filter(plugins, self.cycle, dry_runs.pod, self.node)


NodeView = tuple[CycleState, NodeInfo]


class RestoredNodeViews:
    """Cache the copies of restored nodes that one class of pods sees, until their rows change."""

    __slots__ = ("_dry_runs", "_known", "_restored_nodes", "_table")

    def __init__(self, profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, restored: RestoredNodes) -> None:
        """Take a cycle state whose PreFilter has run."""
        self._dry_runs = DryRuns(profile, cycle, pod)
        self._restored_nodes = restored
        self._table: NodeTable = cycle.state.table
        self._known: dict[int, NodeView] = {}

    @staticmethod
    def for_class(profile: SchedulerProfile, cycle: CycleState, pod: PodInfo) -> RestoredNodeViews | None:
        """Return the views of a class; None for nearly every pod, which sees what everyone sees."""
        return None if cycle.restored_nodes is None else RestoredNodeViews(profile, cycle, pod, cycle.restored_nodes)

    def rows(self) -> Collection[int]:
        return self._restored_nodes.rows()

    def view_of_row(self, row: int) -> NodeView | None:
        """Return the node in this row with the cycle state to filter it by; None where it is as everyone sees it."""
        if row not in self._restored_nodes.rows():
            return None
        known = self._known.get(row)
        if known is None:
            node = self._table.nodes[row]
            if node is None or node.node is None:
                return None
            known = self._known[row] = self._dry_runs.view_of(node)
        return known

    def node(self, row: int) -> NodeInfo | None:
        seen = self.view_of_row(row)
        return self._table.nodes[row] if seen is None else seen[1]

    def invalidate(self, rows: Iterable[int] | None) -> None:
        """Drop the views of these rows, None for all; plugins that count across nodes may have changed all of them."""
        if rows is None or self._dry_runs.remove_pod_plugins:
            self._known.clear()
        else:
            for row in rows:
                self._known.pop(row, None)
