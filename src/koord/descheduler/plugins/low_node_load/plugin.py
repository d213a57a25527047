"""LowNodeLoad moves pods from overutilized nodes to underutilized ones, by measured usage, after confirming
anomalies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from koord.api.config.descheduler.low_node_load import (
    DEFAULT_POOL,
    AnomalyCondition,
    LowNodeLoadArgs,
    NodePool,
)
from koord.api.node import Node
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.choice import Choice, selector_of
from koord.descheduler.plugins.low_node_load.anomaly import Condition, Detectors
from koord.descheduler.plugins.low_node_load.load import Load, Readings, Staleness, is_over, is_under
from koord.descheduler.plugins.low_node_load.relief import Pass, relieve, room
from koord.descheduler.plugins.low_node_load.sorting import fullest_first
from koord.descheduler.plugins.low_node_load.threshold import (
    around,
    average,
    bounds,
    completed,
    universe,
)
from koord.descheduler.plugins.node_fit import Fitting
from koord.descheduler.wire import Pod
from koord.values import duration
from koord.values.selector import Selector

DETECTOR_TIMEOUT_S = 60.0


class Sorted(msgspec.Struct):
    """The nodes of a pool by class of load."""

    high: list[Load] = []
    prod_high: list[Load] = []
    low: list[Load] = []
    prod_low: list[Load] = []
    both_low: list[Load] = []
    calm: list[Load] = []  # neither

    @property
    def lows(self) -> int:
        return len(self.low) + len(self.prod_low) + len(self.both_low)


class Pool:
    """One set of nodes with its own thresholds."""

    def __init__(self, given: NodePool) -> None:
        self.name = given.name
        self.nodes: Selector | None = selector_of(given.node_selector)
        self.weights: Mapping[str, int] = given.resource_weights
        self.deviation = given.use_deviation_thresholds
        self.resources = universe(
            given.low_thresholds, given.high_thresholds, given.prod_low_thresholds, given.prod_high_thresholds
        )
        deviation = self.deviation
        self.all = completed(given.low_thresholds, given.high_thresholds, self.resources, deviation=deviation)
        self.prod = completed(
            given.prod_low_thresholds, given.prod_high_thresholds, self.resources, deviation=deviation
        )
        self.condition = _condition(given.anomaly_condition)
        self.readings = Readings(self.resources)

    def bound(self, loads: Sequence[Load]) -> None:
        """Set the thresholds of every node in amounts."""
        whole, prod = self.all, self.prod
        if self.deviation:
            sizes = [load.size for load in loads]
            whole = around(average([load.usage for load in loads], sizes), self.all)
            prod = around(average([load.prod_usage for load in loads], sizes), self.prod)
        for load in loads:
            load.bounds = bounds(whole, load.size)
            load.prod_bounds = bounds(prod, load.size)

    def told(self, *, prod: bool) -> Mapping[str, float]:
        """Return the configured high percentages; for deviation thresholds the distance, as upstream reports it."""
        return (self.prod if prod else self.all).high


class LowNodeLoad(Plugin):
    name: ClassVar[str] = "LowNodeLoad"

    def __init__(self, args: LowNodeLoadArgs) -> None:
        """Take defaulted and validated arguments."""
        self._args = args
        self._choice = Choice(args.evictable_namespaces, args.pod_selectors)
        self.number_of_nodes = args.number_of_nodes or 0
        self.expires_s = float(args.node_metric_expiration_seconds or 0)
        self.pools = [Pool(_default_pool(args)), *(Pool(pool) for pool in args.node_pools)]
        keep_s = duration.parse_seconds(args.detector_cache_timeout or "5m")
        self.detectors = {False: Detectors(keep_s), True: Detectors(keep_s)}  # by whether it is of prod pods
        self.left_out: tuple[Staleness, ...] = ()  # of the last round, for explanations

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        if self._args.paused:
            return None
        done: set[str] = set()
        stale: dict[str, Staleness] = {}
        fitting = Fitting(hand.snapshot)
        for pool in self.pools:
            chosen = [
                node
                for node in nodes
                if pool.nodes is None or (pool.nodes.matches(node.metadata.labels) and node.metadata.name not in done)
            ]
            done.update(self._balance(pool, chosen, hand, fitting, stale))
        self.left_out = tuple(stale.values())
        return None

    def _balance(
        self, pool: Pool, nodes: Sequence[Node], hand: Hand, fitting: Fitting, stale: dict[str, Staleness]
    ) -> list[str]:
        """Balance one pool; return the nodes that no later pool should look at."""
        loads: list[Load] = []
        for found in pool.readings.of(nodes, hand.snapshot, self.expires_s):
            if isinstance(found, Staleness):
                stale[found.node] = found
            else:
                loads.append(found)
        pool.bound(loads)
        by = classified(loads)
        high, prod_high = self._sure(pool, by, hand.snapshot.now_s)
        if not high and not prod_high:
            return []
        few = by.lows <= self.number_of_nodes
        if not by.lows or few or by.lows == len(nodes):
            return []
        self._relieve(pool, by, high, prod_high, hand, fitting)
        return [load.name for load in by.high]

    def _sure(self, pool: Pool, by: Sorted, now_s: float) -> tuple[list[Load], list[Load]]:
        """Return the overutilized nodes that have been so for long enough."""
        sure: dict[bool, list[Load]] = {}
        for prod, loads in ((False, by.high), (True, by.prod_high)):
            detectors = self.detectors[prod]
            detectors.forget(now_s)
            full = {load.name for load in loads}
            for load in (*by.low, *by.both_low, *by.prod_low, *by.calm, *by.high, *by.prod_high):
                if load.name not in full:
                    detectors.normal(load.name, now_s)
            sure[prod] = [
                load for load in loads if pool.condition.at_once or detectors.abnormal(load.name, pool.condition, now_s)
            ]
        for load in (*by.low, *by.both_low):
            self.detectors[False].reset(load.name)
        for load in by.prod_low:
            self.detectors[True].reset(load.name)
        return sure[False], sure[True]

    def _relieve(
        self, pool: Pool, by: Sorted, high: list[Load], prod_high: list[Load], hand: Hand, fitting: Fitting
    ) -> None:
        def removable(pod: Pod) -> bool:
            if not self._choice.takes_namespace(pod.metadata.namespace):
                hand.pass_over(pod, "its namespace is not among evictableNamespaces")
            elif hand.refuses(pod) is None:
                if self._choice.takes_labels(pod):
                    return True
                hand.pass_over(pod, "podSelectors do not select it")
            return False

        def propose(pod: Pod, reason: str, target: str) -> str | None:
            return hand.evict(pod, reason, target=target, dry_run=bool(self._args.dry_run))

        both = room(by.both_low, prod=False)
        budget = _added(room(by.low, prod=False), both)
        weights, node_fit = pool.weights, bool(self._args.node_fit)
        if by.low or by.both_low:
            work = Pass(
                prod=False,
                sources=fullest_first(high, weights, prod=False),
                targets=[*by.low, *by.both_low],
                budget=budget,
                weights=weights,
                told=pool.told(prod=False),
                node_fit=node_fit,
            )
            relieve(work, fitting, removable, propose, self.detectors[False].reset, hand.pass_over)
        left = {name: min(amount, budget.get(name, 0)) for name, amount in both.items()}
        prod_both = {name: min(amount, left.get(name, 0)) for name, amount in room(by.both_low, prod=True).items()}
        if by.prod_low or by.both_low:
            work = Pass(
                prod=True,
                sources=fullest_first(prod_high, weights, prod=True),
                targets=[*by.prod_low, *by.both_low],
                budget=_added(room(by.prod_low, prod=True), prod_both),
                weights=weights,
                told=pool.told(prod=True),
                node_fit=node_fit,
            )
            relieve(work, fitting, removable, propose, self.detectors[True].reset, hand.pass_over)


def classified(loads: Sequence[Load]) -> Sorted:
    by = Sorted()
    for load in loads:
        prod_over = is_over(load.prod_usage, load.prod_bounds.high)
        open_ = not load.node.spec.unschedulable  # a cordoned node takes nobody
        prod_under = open_ and is_under(load.prod_usage, load.prod_bounds.low)
        if open_ and is_under(load.usage, load.bounds.low):
            (by.prod_high if prod_over else by.both_low if prod_under else by.low).append(load)
        elif is_over(load.usage, load.bounds.high):
            by.high.append(load)
        else:
            (by.prod_high if prod_over else by.prod_low if prod_under else by.calm).append(load)
    return by


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _default_pool(args: LowNodeLoadArgs) -> NodePool:
    return NodePool(
        name=DEFAULT_POOL,
        node_selector=args.node_selector,
        use_deviation_thresholds=bool(args.use_deviation_thresholds),
        high_thresholds=args.high_thresholds,
        low_thresholds=args.low_thresholds,
        prod_high_thresholds=args.prod_high_thresholds,
        prod_low_thresholds=args.prod_low_thresholds,
        resource_weights=args.resource_weights,
        anomaly_condition=args.anomaly_condition,
    )


def _condition(given: AnomalyCondition | None) -> Condition:
    if given is None:
        return Condition(abnormal=1, normal=1)
    timeout_s = duration.parse_seconds(given.timeout) if given.timeout else 0.0
    return Condition(
        abnormal=given.consecutive_abnormalities,
        normal=given.consecutive_normalities,
        timeout_s=timeout_s or DETECTOR_TIMEOUT_S,
    )
