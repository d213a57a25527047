"""LoadAwareScheduling rejects nodes whose measured load would exceed a threshold with the pod, and prefers
idle nodes.

It reads NodeMetric. What pending pods will add is in the cache; what follows from it is in `evaluation`.

LoadAwareCache keeps the load of every node in line with NodeMetrics and placements, one node at a change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar, Literal

import numpy as np

from koord.api.config.scheduler.koordinator_args import LEAST_LOADED, LoadAwareSchedulingArgs
from koord.api.koordinator.protocol import A_RESERVE_POD
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, Reject
from koord.scheduler.plugins.load_aware.estimator import PodEstimate, PodEstimator, ResourceAxes
from koord.scheduler.plugins.load_aware.evaluation import (
    PASSES,
    FreeColumns,
    HeadroomColumns,
    LoadEvaluator,
    LoadExplanation,
    NodeLoadProfile,
    NodeLoadProfiles,
)
from koord.scheduler.plugins.load_aware.node_load import (
    NEVER,
    NODE_METRICS,
    AssignedPod,
    LoadNodeMetric,
    LoadReport,
    NodeLoadEstimate,
    load_summary,
)

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


class LoadQueueingHint:
    """The queueing hints: decide whether an event turns a rejection for load.

    All caches show the event already, so the state before it has to be reconstructed.
    """

    def __init__(
        self,
        evaluator: LoadEvaluator,
        estimator: PodEstimator,
        load_cache: LoadAwareCache,
        profiles: NodeLoadProfiles,
        state: ClusterState,
    ) -> None:
        self._evaluator = evaluator
        self._estimator = estimator
        self._load_cache = load_cache
        self._profiles = profiles
        self._state = state
        # The account before the last report that was asked about: many sorts of pods ask about one report.
        self._before: tuple[tuple[str, int], LoadNodeMetric | None, NodeLoadEstimate] | None = None

    def should_queue(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        kind = object_event.event.kind
        if kind == "NodeMetric":
            return self._report_helps(pod, object_event.old, object_event.new)
        if kind == "Node":
            return self._node_helps(pod, object_event.old, object_event.new)
        before: PodInfo | None = object_event.old
        now: PodInfo | None = object_event.new
        if now is not None and now.uid == pod.uid:
            return before is None or self._estimator.estimate(before) != self._estimator.estimate(now)
        return before is not None and self._other_helps(pod, before, now)

    def _report_helps(self, pod: PodInfo, old: LoadNodeMetric | None, new: LoadNodeMetric | None) -> bool:
        metric = new if new is not None else old
        node = self._state.node(metric.metadata.name) if metric is not None else None
        return (
            node is not None and self._accepts(pod, node) and not self._accepts(pod, node, self._load_before(node, old))
        )

    def _load_before(self, node: NodeInfo, metric: LoadNodeMetric | None) -> NodeLoadEstimate:
        here = (node.name, self._state.table.position)
        kept = self._before
        if kept is None or kept[0] != here or kept[1] is not metric:
            node_load = self._load_cache.with_report(self._load_cache.node_loads.get(node.name), metric)
            kept = self._before = (here, metric, node_load)
        return kept[2]

    def _other_helps(self, pod: PodInfo, before: PodInfo, now: PodInfo | None) -> bool:
        """Return whether another pod's leaving or shrinking makes its node accept the pod."""
        node = self._state.node(before.node_name) if before.node_name else None
        if node is None or not self._accepts(pod, node):
            return False
        known = self._load_cache.node_loads.get(node.name)
        if known is None or known.report is None:
            return False  # it rejected no pod
        node_load = known.copy()
        if now is not None:
            node_load.remove(now.uid)
        self._load_cache.assign_pod(before, node_load)
        return not self._accepts(pod, node, node_load)

    def _node_helps(self, pod: PodInfo, old: Node | None, new: Node) -> bool:
        node = self._state.node(new.metadata.name)
        if node is None or not self._accepts(pod, node):
            return False
        if old is None:
            return True
        before = NodeInfo(node.name, node.row)
        before.set_node(old)
        profile = NodeLoadProfile(before, self._evaluator.thresholds, self._evaluator.axes)
        node_load = self._load_cache.node_loads.get(node.name)
        return self._evaluator.code(self._estimator.estimate(pod), node_load, profile, self._load_cache.now) != PASSES

    def _accepts(self, pod: PodInfo, node: NodeInfo, node_load: NodeLoadEstimate | None = None) -> bool:
        node_load = node_load if node_load is not None else self._load_cache.node_loads.get(node.name)
        return (
            self._evaluator.code(
                self._estimator.estimate(pod), node_load, self._profiles.for_node(node), self._load_cache.now
            )
            == PASSES
        )


class LoadAwareScheduling(Plugin):
    name = "LoadAwareScheduling"
    scope = ROW  # the cache marks the rows whose load changed
    reads_pods = "nothing"  # pods that a dry run removes do not change the measured load
    wakes_on = (
        ClusterEvent("NodeMetric", ADD),
        ClusterEvent("NodeMetric", UPDATE),
        ClusterEvent("NodeMetric", DELETE),
        ClusterEvent("Pod", DELETE),
        ClusterEvent("Pod", UPDATE, "scale-down"),
        ClusterEvent("Pod", UPDATE, "labels"),
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "allocatable"),
        ClusterEvent("Node", UPDATE, "annotations"),
    )

    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("slo.koordinator.sh", ("nodemetrics",), READ_VERBS),)

    def __init__(self, args: LoadAwareSchedulingArgs, handle: Handle) -> None:
        """Take arguments that are already defaulted."""
        table = handle.state.table
        axes = _axes(args)
        self._evaluator = LoadEvaluator(args, axes)
        self._estimator = PodEstimator(args, axes)
        self._load_cache = LoadAwareCache(args, axes, self._estimator, handle.state, handle.now)
        handle.lister(NODE_METRICS).on_change(self._load_cache.on_node_metric)
        self._profiles = NodeLoadProfiles(self._evaluator.thresholds, axes, table)
        self._hint = LoadQueueingHint(self._evaluator, self._estimator, self._load_cache, self._profiles, handle.state)
        # Of pods that are not prod and of those that are.
        width = len(axes.names)
        self._headroom_columns = tuple(HeadroomColumns(table, width, self._headroom_of(prod)) for prod in (False, True))
        self._free_columns = tuple(FreeColumns(table, width, self._free_of(prod)) for prod in (False, True))

    def signature(self, pod: PodInfo) -> Hashable:
        return self._estimator.signature(pod)

    def note_expired_rows(self) -> None:
        self._load_cache.advance_clock()

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        self._load_cache.advance_clock()
        return self._hint.should_queue(pod, object_event)

    # Filter ------------------------------------------------------------------------------------------------------

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        if pod.is_daemon_pod:
            return None
        load_cache, evaluator, name = self._load_cache, self._evaluator, node.name
        estimate = cycle.plugin_data.get(self.name) or self._pod_estimate(cycle, pod)
        profile = self._profiles.by_node.get(name)
        if profile is None or profile.node is not node.node:
            profile = self._profiles.for_node(node)
        return evaluator.rejections[evaluator.code(estimate, load_cache.node_loads.get(name), profile, load_cache.now)]

    def _pod_estimate(self, cycle: CycleState, pod: PodInfo) -> PodEstimate:
        known: PodEstimate | None = cycle.plugin_data.get(self.name)
        if known is None:
            known = self._estimator.estimate(pod)
            cycle.write(self.name, known)
        return known

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        if pod.is_daemon_pod:
            return np.zeros(len(table.alive[rows]), np.int32)
        estimate = self._pod_estimate(cycle, pod)
        return self._headroom_columns[estimate.prod].codes(rows, estimate.usage)

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        found = self._evaluator.rejections[code]
        assert found is not None
        return found

    # Score -------------------------------------------------------------------------------------------------------

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        load_cache, name = self._load_cache, node.name
        estimate = cycle.plugin_data.get(self.name) or self._pod_estimate(cycle, pod)
        profile = self._profiles.by_node.get(name)
        if profile is None or profile.node is not node.node:
            profile = self._profiles.for_node(node)
        return self._evaluator.score(estimate, load_cache.node_loads.get(name), profile, load_cache.now)

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        estimate = self._pod_estimate(cycle, pod)
        return self._free_columns[self._evaluator.scores_by_prod(estimate)].scores(
            rows, estimate.usage, self._evaluator.weights
        )

    @property
    def stale_code(self) -> int:
        """Return the code of a node whose report is expired; smaller codes are of load."""
        return self._evaluator.expired_code

    # For those who ask -------------------------------------------------------------------------------------------

    def summary(self, node_name: str) -> dict[str, Any]:
        """Return a node's load as Koordinator shows it over HTTP."""
        return load_summary(self._load_cache.node_loads.get(node_name), self._evaluator.axes)

    def explain(self, pod: PodInfo, node: NodeInfo) -> LoadExplanation:
        """Explain with numbers why load lets the node take the pod or not."""
        load_cache = self._load_cache
        load_cache.advance_clock()
        node_load = load_cache.node_loads.get(node.name)
        return self._evaluator.explain(
            self._estimator.estimate(pod), node_load, self._profiles.for_node(node), load_cache.now
        )

    def excess_percent(self, pod: PodInfo, node: NodeInfo) -> float:
        """Return by how many percent the pod would bring a node that load rejects above a threshold."""
        node_load = self._load_cache.node_loads[node.name]
        return self._evaluator.excess(self._estimator.estimate(pod), node_load, self._profiles.for_node(node))

    # Rows --------------------------------------------------------------------------------------------------------

    def _headroom_of(self, prod: bool) -> Any:
        load_cache, evaluator, profiles = self._load_cache, self._evaluator, self._profiles
        return lambda node: evaluator.headroom(
            load_cache.node_loads.get(node.name), profiles.for_node(node), load_cache.now, prod=prod
        )

    def _free_of(self, prod: bool) -> Any:
        load_cache, evaluator, profiles = self._load_cache, self._evaluator, self._profiles
        return lambda node: evaluator.free(
            load_cache.node_loads.get(node.name), profiles.for_node(node), load_cache.now, prod=prod
        )


def _axes(args: LoadAwareSchedulingArgs) -> ResourceAxes:
    aggregated = args.aggregated.usage_thresholds if args.aggregated is not None else {}
    return ResourceAxes.including(
        args.usage_thresholds,
        args.prod_usage_thresholds,
        aggregated,
        args.resource_weights,
        args.estimated_scaling_factors,
        args.supported_resources,
    )


_FALLBACK_REASON = f"AllNodesAboveLoadThreshold(policy={LEAST_LOADED})"


class LeastLoadedFallback(LoadAwareScheduling):
    """Takes the least loaded node when all are above a threshold.

    Nodes whose report is expired are never taken this way: nobody knows how loaded they are.
    """

    def fallback_node(self, cycle: CycleState, pod: PodInfo, rows: RowList) -> tuple[int, str] | None:
        table = cycle.state.table
        codes = self.filter_columns(cycle, pod, table, rows)
        hot = rows[(codes > 0) & (codes < self.stale_code)]
        if not len(hot):
            return None
        scores = self.score_columns(cycle, pod, table, hot)
        best = hot[scores == scores.max()]
        nodes = [node for row in best if (node := table.nodes[row]) is not None]
        # Nodes with nothing left all score 0: there it counts how far above its ceiling each would be.
        return min(nodes, key=lambda node: (self.excess_percent(pod, node), node.name)).row, _FALLBACK_REASON


def new_load_aware(args: LoadAwareSchedulingArgs, handle: Handle) -> LoadAwareScheduling:
    """Build the plugin that defaulted arguments ask for."""
    return LeastLoadedFallback(args, handle) if args.when_all_hot == LEAST_LOADED else LoadAwareScheduling(args, handle)
