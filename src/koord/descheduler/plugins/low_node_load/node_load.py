"""The load of nodes from their latest NodeMetric, and the thresholds that it is compared with, in amounts."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koord.api.koordinator.protocol import PROD
from koord.api.koordinator.resource_name import MEMORY, PODS
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.descheduler.framework.pod_selection import pod_rank
from koord.descheduler.framework.snapshot import ClusterSnapshot, namespaced_name, raw_allocatable
from koord.values.quantity import QuantityError

FULL_PERCENT = 100.0


class ThresholdPercentages(msgspec.Struct, frozen=True, kw_only=True):
    """The low and high thresholds of one kind of load (all pods, or prod pods only) in percent."""

    low: Mapping[str, float]
    high: Mapping[str, float]


class ThresholdAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """The low and high thresholds on one node in amounts."""

    low: Mapping[str, int]
    high: Mapping[str, int]


def threshold_resources(*given: Mapping[str, float]) -> tuple[str, ...]:
    """Return every resource that some threshold names, and memory."""
    return tuple(sorted({MEMORY}.union(*given)))


def complete_thresholds(
    low: Mapping[str, float], high: Mapping[str, float], resources: Iterable[str], *, deviation: bool
) -> ThresholdPercentages:
    """Complete both thresholds for every resource.

    A resource without a low threshold never counts; one with a low but no high threshold has a high threshold of zero.
    """
    neutral = 0.0 if deviation else FULL_PERCENT
    lows, highs = {}, {}
    for name in resources:
        counts = name in low
        lows[name] = low[name] if counts else neutral
        highs[name] = high.get(name, 0.0) if counts else neutral
    return ThresholdPercentages(low=lows, high=highs)


def thresholds_around(average: Mapping[str, float], spread: ThresholdPercentages) -> ThresholdPercentages:
    """Return thresholds at a distance from the average. A resource without a lower distance never counts."""
    lows, highs = {}, {}
    for name, below in spread.low.items():
        if below == 0:
            lows[name] = highs[name] = FULL_PERCENT
            continue
        middle = average.get(name, 0.0)
        lows[name] = min(max(middle - below, 0.0), FULL_PERCENT)
        highs[name] = min(max(middle + spread.high[name], 0.0), FULL_PERCENT)
    return ThresholdPercentages(low=lows, high=highs)


def average_usage_percent(used: Sequence[Mapping[str, int]], sizes: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return the average usage in percent over all nodes. A node without the resource counts as unused."""
    found: dict[str, float] = {}
    for usage, size in zip(used, sizes, strict=True):
        for name, amount in usage.items():
            total = size.get(name, 0)
            found[name] = found.get(name, 0.0) + (amount / total * 100 if total else 0.0)
    return {name: summed / len(used) for name, summed in found.items()} if used else {}


def threshold_amounts(percentages: ThresholdPercentages, size: Mapping[str, int]) -> ThresholdAmounts:
    return ThresholdAmounts(
        low=_amounts_of_percentages(percentages.low, size), high=_amounts_of_percentages(percentages.high, size)
    )


def _amounts_of_percentages(percentages: Mapping[str, float], size: Mapping[str, int]) -> dict[str, int]:
    return {name: int(percent * 0.01 * size.get(name, 0)) for name, percent in percentages.items()}


PodKey = tuple[str, str]


class NodeLoad:
    """The load of one node. It changes during a round as pods are moved from and to the node.

    What pods that are on their way out use is not counted: it is about to be free, and nobody else need go for it.
    """

    __slots__ = ("bounds", "node", "pod_usage", "pods", "prod_bounds", "prod_pods", "prod_usage", "size", "usage")

    def __init__(
        self,
        node: Node,
        pods: Sequence[Pod],
        pod_usage: Mapping[PodKey, Mapping[str, int]],
        system: Mapping[str, int],
        resources: Sequence[str],
    ) -> None:
        self.node = node
        self.pods = pods
        self.pod_usage = pod_usage
        self.prod_pods = [pod for pod in pods if pod_rank(pod).priority_class == PROD]
        self.size = raw_allocatable(node)
        leaving = {namespaced_name(pod) for pod in pods if pod.metadata.deletion_timestamp is not None}
        staying_prod = {namespaced_name(pod) for pod in self.prod_pods} - leaving
        used = [usage for key, usage in pod_usage.items() if key not in leaving]
        used_by_prod = [usage for key, usage in pod_usage.items() if key in staying_prod]
        self.usage = _sum_usage((system, *used), resources, len(pods) - len(leaving))
        self.prod_usage = _sum_usage(used_by_prod, resources, len(staying_prod))
        self.bounds = self.prod_bounds = ThresholdAmounts(low={}, high={})

    def copy(self) -> NodeLoad:
        """Return a copy that can be changed on its own."""
        other: NodeLoad = object.__new__(NodeLoad)
        other.node, other.pods, other.pod_usage, other.prod_pods = self.node, self.pods, self.pod_usage, self.prod_pods
        other.size, other.usage, other.prod_usage = self.size, dict(self.usage), dict(self.prod_usage)
        other.bounds, other.prod_bounds = self.bounds, self.prod_bounds
        return other

    @property
    def name(self) -> str:
        return self.node.metadata.name

    def usage_of_pod(self, pod: Pod) -> Mapping[str, int] | None:
        """Return the usage of the pod; None when none was reported."""
        return self.pod_usage.get(namespaced_name(pod))


def _sum_usage(parts: Sequence[Mapping[str, int]], resources: Sequence[str], pods: int) -> dict[str, int]:
    found = {name: sum(part.get(name, 0) for part in parts) for name in resources}
    if PODS in found:
        found[PODS] = pods
    return found


class UnusableMetric(msgspec.Struct, frozen=True):
    """The reason why a node's metric cannot be used."""

    node: str
    why: str


def compute_node_load(
    node: Node, snapshot: ClusterSnapshot, resources: Sequence[str], expires_s: float
) -> NodeLoad | UnusableMetric:
    name = node.metadata.name
    metric = snapshot.metrics.get(name)
    if metric is None:
        return UnusableMetric(name, "it has no NodeMetric")
    status = metric.status
    if status.node_metric is None or status.update_time is None:
        return UnusableMetric(name, "its NodeMetric was never filled")
    age_s = snapshot.now_s - status.update_time.timestamp()
    if age_s >= expires_s:
        return UnusableMetric(name, f"its NodeMetric is {age_s:.0f} s old, and expires after {expires_s:.0f} s")
    try:
        used = {(p.namespace, p.name): resource_amounts(p.pod_usage.resources) for p in status.pods_metric}
        system = resource_amounts(status.node_metric.system_usage.resources)
    except QuantityError as error:
        return UnusableMetric(name, f"its NodeMetric cannot be read: {error}")
    return NodeLoad(node, list(snapshot.iter_pods_on_node(name)), used, system, resources)


class NodeLoadCache:
    """Caches the loads of one pool between rounds, so that only what changed is computed again."""

    def __init__(self, resources: Sequence[str]) -> None:
        self._resources = resources
        self._cached: dict[str, tuple[Node, NodeMetric | None, NodeLoad]] = {}

    def loads_of(
        self, nodes: Sequence[Node], snapshot: ClusterSnapshot, expires_s: float
    ) -> list[NodeLoad | UnusableMetric]:
        """Return the loads of the nodes as copies that the round may change."""
        kept: dict[str, tuple[Node, NodeMetric | None, NodeLoad]] = {}
        found: list[NodeLoad | UnusableMetric] = []
        for node in nodes:
            name = node.metadata.name
            metric, known = snapshot.metrics.get(name), self._cached.get(name)
            if known is not None and known[0] is node and known[1] is metric and _is_fresh(metric, snapshot, expires_s):
                pods = list(snapshot.iter_pods_on_node(name))
                if len(pods) == len(known[2].pods) and all(map(operator.is_, pods, known[2].pods)):
                    kept[name] = known
                    found.append(known[2].copy())
                    continue
            load = compute_node_load(node, snapshot, self._resources, expires_s)
            found.append(load)
            if isinstance(load, NodeLoad):
                kept[name] = (node, metric, load.copy())
        self._cached = kept
        return found


def _is_fresh(metric: NodeMetric | None, snapshot: ClusterSnapshot, expires_s: float) -> bool:
    at = metric.status.update_time if metric is not None else None
    return at is not None and snapshot.now_s - at.timestamp() < expires_s


def is_overutilized(usage: Mapping[str, int], high: Mapping[str, int]) -> bool:
    return any(used > high[name] for name, used in usage.items())


def is_underutilized(usage: Mapping[str, int], low: Mapping[str, int]) -> bool:
    """Return whether no resource is above its low threshold; usage at the threshold counts as under."""
    return all(used <= low[name] for name, used in usage.items())
