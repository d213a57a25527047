"""NodeResourcesFitPlus scores each resource with a strategy of its own: pack some resources, spread others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from koord.api.config.scheduler.args import LEAST_ALLOCATED, MOST_ALLOCATED
from koord.api.config.scheduler.fit_plus import NodeResourcesFitPlusArgs
from koord.api.pod_resources import DEFAULT_CPU_REQUEST, DEFAULT_MEMORY_REQUEST, amounts
from koord.api.resource_name import CPU, MEMORY
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Skip
from koord.scheduler.plugins.allocation import Share
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.shape import Shape
from koord.scheduler.state.table import NodeTable, Rows
from koord.scheduler.state.wire import Container

_UNSTATED = amounts({CPU: DEFAULT_CPU_REQUEST, MEMORY: DEFAULT_MEMORY_REQUEST})


class _Counted(msgspec.Struct, frozen=True):
    """A resource that the pod requests and the arguments name."""

    share: Share
    strategy: str


class NodeResourcesFitPlus(Plugin):
    name = "NodeResourcesFitPlus"
    scope = ROW

    def __init__(self, args: NodeResourcesFitPlusArgs) -> None:
        self._resources = args.resources

    def _counted(self, cycle: Cycle, pod: PodInfo) -> tuple[_Counted, ...]:
        known = cycle.kept.get(self.name)
        if known is None:
            added = added_by(pod.shape)
            known = tuple(
                _Counted(Share(name, added.get(name, 0), given.weight, name in _UNSTATED), given.type)
                for name, given in sorted(self._resources.items())
                if pod.shape.requests.get(name, 0)
            )
            cycle.keep(self.name, known)
        assert isinstance(known, tuple)
        return known

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        """Skip a pod that requests none of the resources: all nodes are equal to it."""
        return None if self._counted(cycle, pod) else SKIP

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        total = weights = 0
        for counted in self._counted(cycle, pod):
            capacity, used = counted.share.on_node(node)
            part = min(used, capacity) if counted.strategy == MOST_ALLOCATED else max(capacity - used, 0)
            if capacity and counted.strategy in (MOST_ALLOCATED, LEAST_ALLOCATED):
                total += part * MAX_SCORE // capacity * counted.share.weight
            weights += counted.share.weight
        return total // weights if weights else MAX_SCORE

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        total: Scores = np.zeros(len(table.alive[rows]), np.int64)
        weights = 0
        for counted in self._counted(cycle, pod):
            weights += counted.share.weight
            if counted.strategy not in (MOST_ALLOCATED, LEAST_ALLOCATED):
                continue
            capacity, used = counted.share.on_rows(table, rows)
            fills = counted.strategy == MOST_ALLOCATED
            part = np.minimum(used, capacity) if fills else np.maximum(capacity - used, 0)
            total += part * MAX_SCORE // np.maximum(capacity, 1) * counted.share.weight
        return total // weights if weights else np.full(len(total), MAX_SCORE, np.int64)


def added_by(shape: Shape) -> Mapping[str, int]:
    """Return what the pod adds: the sum of its containers, then its init containers in their order, then its
    overhead.

    A sidecar adds; other init containers may need more for a while. A container that states no cpu or memory
    counts with the default; a stated 0 is 0.
    """
    spec = shape.spec
    total: dict[str, int] = {}
    for container in spec.containers:
        _add(total, _requests(container))
    for container in spec.init_containers:
        requests = _requests(container)
        if container.restart_policy == "Always":
            _add(total, requests)
        else:
            for name, amount in requests.items():
                total[name] = max(total.get(name, 0), amount)
    _add(total, amounts(spec.overhead or {}))
    return total


def _requests(container: Container) -> dict[str, int]:
    return {**_UNSTATED, **amounts(container.resources.requests or {})}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount
