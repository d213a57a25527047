"""LoadAwareCache keeps the load of every node in line with NodeMetrics and placements, one node at a change."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Literal

from koord.api.config.scheduler.koordinator_args import LoadAwareSchedulingArgs
from koord.api.koordinator.protocol import A_RESERVE_POD
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.plugins.load_aware.estimator import PodEstimator
from koord.scheduler.plugins.load_aware.node_load import NEVER, AssignedPod, NodeLoadEstimate
from koord.scheduler.plugins.load_aware.node_metric import LoadNodeMetric, LoadReport
from koord.scheduler.plugins.load_aware.thresholds import ResourceAxes

_SPARE_EXPIRIES = 64


class LoadAwareCache:
    """The load of all nodes. `now` is the latest time seen, by which reports expire; `advance_clock` advances it."""

    def __init__(
        self,
        args: LoadAwareSchedulingArgs,
        axes: ResourceAxes,
        estimator: PodEstimator,
        state: ClusterState,
        clock: Callable[[], float],
    ) -> None:
        self._axes = axes
        self._zero = axes.zero
        self._estimator = estimator
        self._table = state.table
        self._clock = clock
        self._lifetime_s = args.node_metric_expiration_seconds or 0
        self._with_system = args.prod_usage_include_sys
        self.now = float("-inf")
        self.node_loads: dict[str, NodeLoadEstimate] = {}  # by node name
        self._expiries: list[tuple[float, str]] = []  # a heap; entries that no longer hold are passed over
        state.add_placement_listener(self._on_placement)
        state.add_update_listener(self._on_pod_update)

    # Time --------------------------------------------------------------------------------------------------------

    def advance_clock(self) -> None:
        """Advance the clock and note the rows whose report has expired since."""
        now = self._clock()
        if now > self.now:
            self.now = now
            if self._expiries and self._expiries[0][0] <= now:
                self._expire()

    def _expire(self) -> None:
        expiries = self._expiries
        while expiries and expiries[0][0] <= self.now:
            at, name = heappop(expiries)
            node_load = self.node_loads.get(name)
            if node_load is not None and node_load.expires_at == at:
                self._note_row(name)

    def _schedule_expiry(self, name: str, at: float) -> None:
        if at <= self.now:
            return
        heappush(self._expiries, (at, name))
        if len(self._expiries) > 2 * len(self.node_loads) + _SPARE_EXPIRIES:  # mostly expiries of replaced reports
            self._expiries = [
                (node_load.expires_at, name)
                for name, node_load in self.node_loads.items()
                if node_load.report is not None
            ]
            heapify(self._expiries)

    # Reports -----------------------------------------------------------------------------------------------------

    def on_node_metric(self, old: LoadNodeMetric | None, new: LoadNodeMetric | None) -> None:
        metric = new if new is not None else old
        assert metric is not None
        name = metric.metadata.name
        known = self.node_loads.get(name)
        node_load = self.with_report(known, new)
        if node_load.report is None and not node_load.pods:
            self.node_loads.pop(name, None)
        else:
            self.node_loads[name] = node_load
            if node_load.report is not None:
                self._schedule_expiry(name, node_load.expires_at)
        self._note_row(name)

    def with_report(self, known: NodeLoadEstimate | None, metric: LoadNodeMetric | None) -> NodeLoadEstimate:
        """Return a new load from a NodeMetric with the pods of a known one."""
        if metric is None:
            node_load = NodeLoadEstimate(None, self._zero, NEVER)
        else:
            report = LoadReport(metric, self._axes)
            base = report.system if self._with_system else self._zero
            node_load = NodeLoadEstimate(report, base, report.expires_at(self._lifetime_s))
        for entry in known.pods.values() if known is not None else ():
            node_load.add(entry.pod, entry.estimate, entry.assigned_at, entry.estimate_until)
        return node_load

    # Pods --------------------------------------------------------------------------------------------------------

    def assign_pod(self, pod: PodInfo, node_load: NodeLoadEstimate) -> AssignedPod:
        assigned_at = pod.scheduled_at
        if assigned_at is None:
            assigned_at = self._clock()
        estimator = self._estimator
        estimate_until = estimator.estimate_until(pod, assigned_at) if estimator.has_estimate_window else None
        return node_load.add(pod, estimator.estimate(pod), assigned_at, estimate_until)

    def _on_placement(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        """Handle a placement; the state has noted the row already."""
        node_load = self.node_loads.get(node.name)
        if what == "add":  # every placement runs this, so calls are few
            if A_RESERVE_POD in pod.annotations:  # a reserve pod runs nothing
                return
            if node_load is None:
                node_load = self.node_loads[node.name] = NodeLoadEstimate(None, self._zero, NEVER)
            self.assign_pod(pod, node_load)
        elif node_load is not None:
            node_load.remove(pod.uid)
            if node_load.report is None and not node_load.pods:
                del self.node_loads[node.name]

    def _on_pod_update(self, before: PodInfo, after: PodInfo) -> None:
        """Update a placed pod whose conditions now say when it was scheduled or initialized."""
        if before.scheduled_at == after.scheduled_at and before.initialized_at == after.initialized_at:
            return
        node_load = self.node_loads.get(after.node_name)
        old = node_load.remove(after.uid) if node_load is not None else None
        if node_load is None or old is None:
            return
        new = self.assign_pod(after, node_load)
        if new.node_part != old.node_part or new.prod_part != old.prod_part:
            self._note_row(after.node_name)

    def _note_row(self, name: str) -> None:
        node = self._table.index.get(name)
        if node is not None:
            self._table.mark_changed(node.row)
