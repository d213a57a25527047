"""LowNodeLoad moves pods from overutilized to underutilized nodes by measured usage, after a node was overutilized
several times in a row.

        abnormal more than N times in a row
ok  ------------------------------------------>  anomaly
 ^                                                  |
 +--------------------------------------------------+
   normal more than M times in a row, the timeout is over, or a reset
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from koord.api.config.descheduler import plugin_args
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictionFigures, EvictorHandle
from koord.descheduler.framework.pod_selection import PodFilter, build_selector
from koord.descheduler.framework.snapshot import NodeFitChecker
from koord.descheduler.plugins.low_node_load.balance import (
    BalancePass,
    run_balance_pass,
    sort_by_utilization,
    total_headroom,
)
from koord.descheduler.plugins.low_node_load.node_load import (
    NodeLoad,
    NodeLoadCache,
    UnusableMetric,
    average_usage_percent,
    complete_thresholds,
    is_overutilized,
    is_underutilized,
    threshold_amounts,
    threshold_resources,
    thresholds_around,
)
from koord.values import duration
from koord.values.resources import add_amounts
from koord.values.selector import Selector


class DetectorCondition(msgspec.Struct, frozen=True, kw_only=True):
    abnormal: int  # more than this many marks in a row
    normal: int
    timeout_s: float = 60.0

    @property
    def is_immediate(self) -> bool:
        """Return whether a single abnormality is enough, so that nothing needs to be remembered."""
        return self.abnormal <= 1


class AnomalyDetector:
    """The anomaly detector of one node. Time arrives with each call."""

    def __init__(self, condition: DetectorCondition) -> None:
        self._condition = condition
        self._until_s: float | None = None  # while anomalous
        self._abnormal = 0
        self._normal = 0

    def is_anomalous(self, now_s: float) -> bool:
        if self._until_s is not None and (now_s > self._until_s or self._normal > self._condition.normal):
            self.reset()
        return self._until_s is not None

    def mark(self, now_s: float, *, normal: bool) -> bool:
        """Add one observation; return whether the node is anomalous after it."""
        self.is_anomalous(now_s)  # a time that is over ends before this one counts
        if normal:
            self._normal += 1
            self._abnormal = 0
        else:
            self._abnormal += 1
            self._normal = 0
            if self._until_s is None and self._abnormal > self._condition.abnormal:
                self._until_s = now_s + self._condition.timeout_s
                self._abnormal = self._normal = 0
        return self.is_anomalous(now_s)

    @property
    def abnormal_count(self) -> int:
        """Return the number of abnormal marks in a row."""
        return self._abnormal

    def reset(self) -> None:
        """Return to normal and forget all counts."""
        self._until_s = None
        self._abnormal = self._normal = 0


class AnomalyDetectors:
    """The detectors by node; one is dropped when its node was not abnormal for long enough."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._held: dict[str, tuple[AnomalyDetector, float]] = {}

    def mark_abnormal(self, node: str, condition: DetectorCondition, now_s: float) -> bool:
        held = self._held.get(node)
        detector = held[0] if held is not None and held[1] > now_s else AnomalyDetector(condition)
        self._held[node] = (detector, now_s + self._keep_s)
        return detector.mark(now_s, normal=False)

    def mark_normal(self, node: str, now_s: float) -> None:
        held = self._held.get(node)
        if held is not None and held[1] > now_s:
            held[0].mark(now_s, normal=True)

    def find(self, node: str) -> AnomalyDetector | None:
        """Return the detector of a node, for explanations."""
        return self._held[node][0] if node in self._held else None

    def reset(self, node: str) -> None:
        if node in self._held:
            self._held[node][0].reset()

    def forget(self, now_s: float) -> None:
        """Drop the expired detectors; once a round is enough."""
        self._held = {node: held for node, held in self._held.items() if held[1] > now_s}


DETECTOR_TIMEOUT_S = 60.0


class ClassifiedNodes(msgspec.Struct):
    """The nodes of a pool by class of load."""

    high: list[NodeLoad] = []
    prod_high: list[NodeLoad] = []
    low: list[NodeLoad] = []
    prod_low: list[NodeLoad] = []
    both_low: list[NodeLoad] = []
    calm: list[NodeLoad] = []  # neither

    @property
    def low_count(self) -> int:
        return len(self.low) + len(self.prod_low) + len(self.both_low)


class LowNodeLoadPool:
    """One set of nodes with its own thresholds."""

    def __init__(self, given: plugin_args.NodePool) -> None:
        self.name = given.name
        self.node_selector: Selector | None = build_selector(given.node_selector)
        self.weights: Mapping[str, int] = given.resource_weights
        self.deviation = given.use_deviation_thresholds
        self.resources = threshold_resources(
            given.low_thresholds, given.high_thresholds, given.prod_low_thresholds, given.prod_high_thresholds
        )
        deviation = self.deviation
        self.thresholds = complete_thresholds(
            given.low_thresholds, given.high_thresholds, self.resources, deviation=deviation
        )
        self.prod_thresholds = complete_thresholds(
            given.prod_low_thresholds, given.prod_high_thresholds, self.resources, deviation=deviation
        )
        self.detector_condition = _detector_condition(given.anomaly_condition)
        self.load_cache = NodeLoadCache(self.resources)

    def choose_nodes(self, nodes: Sequence[Node], done: set[str]) -> list[Node]:
        """Return the nodes of the pool: all of them without a selector, else those that no earlier pool has done."""
        chosen = self.node_selector
        if chosen is None:
            return list(nodes)
        return [node for node in nodes if chosen.matches(node.metadata.labels) and node.metadata.name not in done]

    def assign_bounds(self, loads: Sequence[NodeLoad]) -> None:
        """Set the thresholds of every node in amounts."""
        whole, prod = self.thresholds, self.prod_thresholds
        if self.deviation:
            sizes = [load.size for load in loads]
            whole = thresholds_around(average_usage_percent([load.usage for load in loads], sizes), self.thresholds)
            prod = thresholds_around(
                average_usage_percent([load.prod_usage for load in loads], sizes), self.prod_thresholds
            )
        for load in loads:
            load.bounds = threshold_amounts(whole, load.size)
            load.prod_bounds = threshold_amounts(prod, load.size)

    def reported_thresholds(self, *, prod: bool) -> Mapping[str, float]:
        """Return the configured high percentages; for deviation thresholds the distance, as upstream reports it."""
        return (self.prod_thresholds if prod else self.thresholds).high


class LowNodeLoad(DeschedulerPlugin):
    name: ClassVar[str] = "LowNodeLoad"

    def __init__(self, args: plugin_args.LowNodeLoadArgs) -> None:
        """Take defaulted and validated arguments."""
        self._args = args
        self._pod_filter = PodFilter(args.evictable_namespaces, args.pod_selectors)
        self.number_of_nodes = args.number_of_nodes or 0
        self.metric_expiration_s = float(args.node_metric_expiration_seconds or 0)
        self.pools = [LowNodeLoadPool(_default_pool(args)), *(LowNodeLoadPool(pool) for pool in args.node_pools)]
        keep_s = duration.parse_seconds(args.detector_cache_timeout or "5m")
        self.detectors = {
            False: AnomalyDetectors(keep_s),
            True: AnomalyDetectors(keep_s),
        }  # by whether it is of prod pods
        self.unusable_metrics: tuple[UnusableMetric, ...] = ()  # of the last round, for explanations

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        if self._args.paused:
            return None
        done: set[str] = set()
        stale: dict[str, UnusableMetric] = {}
        fit_checker = NodeFitChecker(handle.snapshot)
        for pool in self.pools:
            done.update(self._balance_pool(pool, pool.choose_nodes(nodes, done), handle, fit_checker, stale))
        self.unusable_metrics = tuple(stale.values())
        return None

    def _balance_pool(
        self,
        pool: LowNodeLoadPool,
        nodes: Sequence[Node],
        handle: EvictorHandle,
        fit_checker: NodeFitChecker,
        stale: dict[str, UnusableMetric],
    ) -> list[str]:
        """Balance one pool; return the nodes that no later pool should look at."""
        loads: list[NodeLoad] = []
        for found in pool.load_cache.loads_of(nodes, handle.snapshot, self.metric_expiration_s):
            if isinstance(found, UnusableMetric):
                stale[found.node] = found
            else:
                loads.append(found)
        pool.assign_bounds(loads)
        by = classify_nodes(loads)
        high, prod_high = self._confirm_anomalies(pool, by, handle.snapshot.now_s)
        if not high and not prod_high:
            return []
        few = by.low_count <= self.number_of_nodes
        if not by.low_count or few or by.low_count == len(nodes):
            return []
        self._run_passes(pool, by, high, prod_high, handle, fit_checker)
        return [load.name for load in by.high]

    def _confirm_anomalies(
        self, pool: LowNodeLoadPool, by: ClassifiedNodes, now_s: float
    ) -> tuple[list[NodeLoad], list[NodeLoad]]:
        """Return the overutilized nodes that have been so for long enough."""
        sure: dict[bool, list[NodeLoad]] = {}
        for prod, loads in ((False, by.high), (True, by.prod_high)):
            detectors = self.detectors[prod]
            detectors.forget(now_s)
            full = {load.name for load in loads}
            for load in (*by.low, *by.both_low, *by.prod_low, *by.calm, *by.high, *by.prod_high):
                if load.name not in full:
                    detectors.mark_normal(load.name, now_s)
            sure[prod] = [
                load
                for load in loads
                if pool.detector_condition.is_immediate
                or detectors.mark_abnormal(load.name, pool.detector_condition, now_s)
            ]
        for load in (*by.low, *by.both_low):
            self.detectors[False].reset(load.name)
        for load in by.prod_low:
            self.detectors[True].reset(load.name)
        return sure[False], sure[True]

    def _run_passes(
        self,
        pool: LowNodeLoadPool,
        by: ClassifiedNodes,
        high: list[NodeLoad],
        prod_high: list[NodeLoad],
        handle: EvictorHandle,
        fit_checker: NodeFitChecker,
    ) -> None:
        def removable(pod: Pod) -> bool:
            if not self._pod_filter.matches_namespace(pod.metadata.namespace):
                handle.record_passed_over(pod, "its namespace is not among evictableNamespaces")
            elif handle.filter(pod) is None:
                if self._pod_filter.matches_labels(pod):
                    return True
                handle.record_passed_over(pod, "podSelectors do not select it")
            return False

        def propose(pod: Pod, reason: str, target: str, figures: EvictionFigures) -> str | None:
            return handle.evict(pod, reason, target=target, dry_run=bool(self._args.dry_run), figures=figures)

        both = total_headroom(by.both_low, prod=False)
        budget = add_amounts(total_headroom(by.low, prod=False), both)
        weights, node_fit = pool.weights, bool(self._args.node_fit)
        if by.low or by.both_low:
            balance_pass = BalancePass(
                prod=False,
                sources=sort_by_utilization(high, weights, prod=False),
                targets=[*by.low, *by.both_low],
                budget=budget,
                weights=weights,
                threshold_percents=pool.reported_thresholds(prod=False),
                node_fit=node_fit,
            )
            run_balance_pass(
                balance_pass, fit_checker, removable, propose, self.detectors[False].reset, handle.record_passed_over
            )
        left = {name: min(amount, budget.get(name, 0)) for name, amount in both.items()}
        prod_both = {
            name: min(amount, left.get(name, 0)) for name, amount in total_headroom(by.both_low, prod=True).items()
        }
        if by.prod_low or by.both_low:
            balance_pass = BalancePass(
                prod=True,
                sources=sort_by_utilization(prod_high, weights, prod=True),
                targets=[*by.prod_low, *by.both_low],
                budget=add_amounts(total_headroom(by.prod_low, prod=True), prod_both),
                weights=weights,
                threshold_percents=pool.reported_thresholds(prod=True),
                node_fit=node_fit,
            )
            run_balance_pass(
                balance_pass, fit_checker, removable, propose, self.detectors[True].reset, handle.record_passed_over
            )


def classify_nodes(loads: Sequence[NodeLoad]) -> ClassifiedNodes:
    by = ClassifiedNodes()
    for load in loads:
        prod_over = is_overutilized(load.prod_usage, load.prod_bounds.high)
        open_ = not load.node.spec.unschedulable  # a cordoned node takes nobody
        prod_under = open_ and is_underutilized(load.prod_usage, load.prod_bounds.low)
        if open_ and is_underutilized(load.usage, load.bounds.low):
            (by.prod_high if prod_over else by.both_low if prod_under else by.low).append(load)
        elif is_overutilized(load.usage, load.bounds.high):
            by.high.append(load)
        else:
            (by.prod_high if prod_over else by.prod_low if prod_under else by.calm).append(load)
    return by


def _default_pool(args: plugin_args.LowNodeLoadArgs) -> plugin_args.NodePool:
    return plugin_args.NodePool(
        name=plugin_args.DEFAULT_NODE_POOL,
        node_selector=args.node_selector,
        use_deviation_thresholds=bool(args.use_deviation_thresholds),
        high_thresholds=args.high_thresholds,
        low_thresholds=args.low_thresholds,
        prod_high_thresholds=args.prod_high_thresholds,
        prod_low_thresholds=args.prod_low_thresholds,
        resource_weights=args.resource_weights,
        anomaly_condition=args.anomaly_condition,
    )


def _detector_condition(given: plugin_args.AnomalyCondition | None) -> DetectorCondition:
    if given is None:
        return DetectorCondition(abnormal=1, normal=1)
    timeout_s = duration.parse_seconds(given.timeout) if given.timeout else 0.0
    return DetectorCondition(
        abnormal=given.consecutive_abnormalities,
        normal=given.consecutive_normalities,
        timeout_s=timeout_s or DETECTOR_TIMEOUT_S,
    )
