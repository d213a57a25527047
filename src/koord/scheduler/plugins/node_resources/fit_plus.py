"""NodeResourcesFitPlus scores each resource with a strategy of its own: pack some resources, spread others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from koord.api.config.scheduler.in_tree_args import LEAST_ALLOCATED, MOST_ALLOCATED
from koord.api.config.scheduler.koordinator_args import NodeResourcesFitPlusArgs
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.kubernetes.pod_resources import DEFAULT_CPU_REQUEST, DEFAULT_MEMORY_REQUEST, resource_amounts
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo, PodShape
from koord.scheduler.cache.pod_model import SchedulerContainer
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Skip
from koord.scheduler.plugins.node_resources.allocation_columns import ScoredResource
from koord.values.resources import accumulate

_DEFAULT_REQUESTS = resource_amounts({CPU: DEFAULT_CPU_REQUEST, MEMORY: DEFAULT_MEMORY_REQUEST})


class _ResourceWithStrategy(msgspec.Struct, frozen=True):
    """A resource that the pod requests and the arguments name."""

    resource: ScoredResource
    strategy: str


class NodeResourcesFitPlus(Plugin):
    name = "NodeResourcesFitPlus"
    scope = ROW

    def __init__(self, args: NodeResourcesFitPlusArgs) -> None:
        self._resources = args.resources

    def _scored_resources(self, cycle: CycleState, pod: PodInfo) -> tuple[_ResourceWithStrategy, ...]:
        known = cycle.plugin_data.get(self.name)
        if known is None:
            added = nonzero_pod_requests(pod.shape)
            known = tuple(
                _ResourceWithStrategy(
                    ScoredResource(name, added.get(name, 0), given.weight, name in _DEFAULT_REQUESTS), given.type
                )
                for name, given in sorted(self._resources.items())
                if pod.shape.requests.get(name, 0)
            )
            cycle.write(self.name, known)
        assert isinstance(known, tuple)
        return known

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        """Skip a pod that requests none of the resources: all nodes are equal to it."""
        return None if self._scored_resources(cycle, pod) else SKIP

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        total = weights = 0
        for counted in self._scored_resources(cycle, pod):
            capacity, used = counted.resource.allocatable_and_used(node)
            part = min(used, capacity) if counted.strategy == MOST_ALLOCATED else max(capacity - used, 0)
            if capacity and counted.strategy in (MOST_ALLOCATED, LEAST_ALLOCATED):
                total += part * MAX_SCORE // capacity * counted.resource.weight
            weights += counted.resource.weight
        return total // weights if weights else MAX_SCORE

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        total: Scores = np.zeros(len(table.alive[rows]), np.int64)
        weights = 0
        for counted in self._scored_resources(cycle, pod):
            weights += counted.resource.weight
            if counted.strategy not in (MOST_ALLOCATED, LEAST_ALLOCATED):
                continue
            capacity, used = counted.resource.allocatable_and_used_columns(table, rows)
            fills = counted.strategy == MOST_ALLOCATED
            part = np.minimum(used, capacity) if fills else np.maximum(capacity - used, 0)
            total += part * MAX_SCORE // np.maximum(capacity, 1) * counted.resource.weight
        return total // weights if weights else np.full(len(total), MAX_SCORE, np.int64)


def nonzero_pod_requests(shape: PodShape) -> Mapping[str, int]:
    """Return what the pod adds: the sum of its containers, then its init containers in their order, then its
    overhead.

    A sidecar adds; other init containers may need more for a while. A container that states no cpu or memory
    counts with the default; a stated 0 is 0.
    """
    spec = shape.spec
    total: dict[str, int] = {}
    for container in spec.containers:
        accumulate(total, _requests(container))
    for container in spec.init_containers:
        requests = _requests(container)
        if container.restart_policy == "Always":
            accumulate(total, requests)
        else:
            for name, amount in requests.items():
                total[name] = max(total.get(name, 0), amount)
    accumulate(total, resource_amounts(spec.overhead or {}))
    return total


def _requests(container: SchedulerContainer) -> dict[str, int]:
    return {**_DEFAULT_REQUESTS, **resource_amounts(container.resources.requests or {})}
