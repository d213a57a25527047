"""What a node uses, from its latest report: everything on it, and the part of prod pods."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import msgspec

from koord.api.node import Node
from koord.api.pod_resources import amounts
from koord.api.qos_class import PROD
from koord.api.resource_name import PODS
from koord.api.slo import NodeMetric
from koord.descheduler.plugins.capacity import raw_allocatable
from koord.descheduler.plugins.low_node_load.threshold import Bounds
from koord.descheduler.plugins.standing import standing
from koord.descheduler.snapshot import Snapshot
from koord.descheduler.wire import Pod

Key = tuple[str, str]


class Load:
    """The load of one node. It changes during a round as pods are moved from and to the node."""

    __slots__ = ("bounds", "node", "pod_usage", "pods", "prod_bounds", "prod_pods", "prod_usage", "size", "usage")

    def __init__(
        self,
        node: Node,
        pods: Sequence[Pod],
        pod_usage: Mapping[Key, Mapping[str, int]],
        system: Mapping[str, int],
        resources: Sequence[str],
    ) -> None:
        self.node = node
        self.pods = pods
        self.pod_usage = pod_usage
        self.prod_pods = [pod for pod in pods if standing(pod).priority_class == PROD]
        self.size = raw_allocatable(node)
        prod_usage = [
            pod_usage[key]
            for pod in self.prod_pods
            if (key := (pod.metadata.namespace, pod.metadata.name)) in pod_usage
        ]
        self.usage = _summed((system, *pod_usage.values()), resources, len(pods))
        self.prod_usage = _summed(prod_usage, resources, len(self.prod_pods))
        self.bounds = self.prod_bounds = Bounds(low={}, high={})

    def again(self) -> Load:
        """Return a copy that can be changed on its own."""
        other: Load = object.__new__(Load)
        other.node, other.pods, other.pod_usage, other.prod_pods = self.node, self.pods, self.pod_usage, self.prod_pods
        other.size, other.usage, other.prod_usage = self.size, dict(self.usage), dict(self.prod_usage)
        other.bounds, other.prod_bounds = self.bounds, self.prod_bounds
        return other

    @property
    def name(self) -> str:
        return self.node.metadata.name

    def used_by(self, pod: Pod) -> Mapping[str, int] | None:
        """Return the usage of the pod; None when none was reported."""
        return self.pod_usage.get((pod.metadata.namespace, pod.metadata.name))


def _summed(parts: Sequence[Mapping[str, int]], resources: Sequence[str], pods: int) -> dict[str, int]:
    found = {name: sum(part.get(name, 0) for part in parts) for name in resources}
    if PODS in found:
        found[PODS] = pods
    return found


class Staleness(msgspec.Struct, frozen=True):
    """The reason why a node's metric cannot be used."""

    node: str
    why: str


def load_of(node: Node, snapshot: Snapshot, resources: Sequence[str], expires_s: float) -> Load | Staleness:
    name = node.metadata.name
    metric = snapshot.metrics.get(name)
    if metric is None:
        return Staleness(name, "it has no NodeMetric")
    status = metric.status
    if status.node_metric is None or status.update_time is None:
        return Staleness(name, "its NodeMetric was never filled")
    age_s = snapshot.now_s - status.update_time.timestamp()
    if age_s >= expires_s:
        return Staleness(name, f"its NodeMetric is {age_s:.0f} s old, and expires after {expires_s:.0f} s")
    used = {(p.namespace, p.name): amounts(p.pod_usage.resources) for p in status.pods_metric}
    system = amounts(status.node_metric.system_usage.resources)
    return Load(node, list(snapshot.some_on(name)), used, system, resources)


class Readings:
    """Caches the loads of one pool between rounds, so that only what changed is computed again."""

    def __init__(self, resources: Sequence[str]) -> None:
        self._resources = resources
        self._kept: dict[str, tuple[Node, NodeMetric | None, Load]] = {}

    def of(self, nodes: Sequence[Node], snapshot: Snapshot, expires_s: float) -> list[Load | Staleness]:
        """Return the loads of the nodes as copies that the round may change."""
        kept: dict[str, tuple[Node, NodeMetric | None, Load]] = {}
        found: list[Load | Staleness] = []
        for node in nodes:
            name = node.metadata.name
            metric, known = snapshot.metrics.get(name), self._kept.get(name)
            if known is not None and known[0] is node and known[1] is metric and _is_fresh(metric, snapshot, expires_s):
                pods = list(snapshot.some_on(name))
                if len(pods) == len(known[2].pods) and all(map(operator.is_, pods, known[2].pods)):
                    kept[name] = known
                    found.append(known[2].again())
                    continue
            load = load_of(node, snapshot, self._resources, expires_s)
            found.append(load)
            if isinstance(load, Load):
                kept[name] = (node, metric, load.again())
        self._kept = kept
        return found


def _is_fresh(metric: NodeMetric | None, snapshot: Snapshot, expires_s: float) -> bool:
    at = metric.status.update_time if metric is not None else None
    return at is not None and snapshot.now_s - at.timestamp() < expires_s


def is_over(usage: Mapping[str, int], high: Mapping[str, int]) -> bool:
    return any(used > high[name] for name, used in usage.items())


def is_under(usage: Mapping[str, int], low: Mapping[str, int]) -> bool:
    """Return whether no resource is above its low threshold; usage at the threshold counts as under."""
    return all(used <= low[name] for name, used in usage.items())
