"""NodeResourcesFit rejects nodes that lack what a pod requests, and scores nodes by how full they would be
with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np

from koord.api import pod as api_pod
from koord.api.config.scheduler.in_tree import NodeResourcesFitArgs
from koord.api.node import Node
from koord.api.pod_resources import nonzero_requests
from koord.api.resource_name import CPU, MEMORY
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, Fault, Only, Reject, Skip
from koord.scheduler.plugins.allocation import Share, shares
from koord.scheduler.plugins.scalar_resource import BUILT_IN, is_counted, is_extended
from koord.scheduler.plugins.scoring_strategy import strategy_of
from koord.scheduler.state.allocatable import allocatable
from koord.scheduler.state.node import PODS, NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.shape import Shape
from koord.scheduler.state.table import NodeTable, Rows

_TOO_MANY = "Too many pods"
# A code is bits: too many pods, some request larger than the whole node, then one per resource that is short.
_TOO_MANY_BIT, _UNRESOLVABLE_BIT, _FIRST_RESOURCE = 1, 2, 2
_MOST_RESOURCES = 18  # as many as leave codes below those that verdicts without a code get


class _Demand(msgspec.Struct, frozen=True):
    """What this profile checks and scores for one class of pods."""

    checked: tuple[tuple[str, int], ...]  # resource and amount, in the order in which refusals name them
    counted: tuple[Share, ...]
    met: dict[Reject | None, int] = {}  # verdicts by code, for a pod with more resources than a code has bits


class NodeResourcesFit(Plugin):
    name = "NodeResourcesFit"
    scope = ROW
    reads_pods = "sums"
    wakes_on = (
        Event("Pod", DELETE),
        Event("Pod", UPDATE, "scale-down"),
        Event("Node", ADD),
        Event("Node", UPDATE, "allocatable"),
    )

    def __init__(self, args: NodeResourcesFitArgs) -> None:
        """Take arguments that are already defaulted."""
        if args.scoring_strategy is None:
            raise ValueError("scoring strategy not specified")
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        self._scored = args.scoring_strategy.resources
        self._strategy = strategy_of(args.scoring_strategy)

    # Waking ------------------------------------------------------------------------------------------------------

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        if happened.event.kind == "Node":
            return self._node_helps(pod, happened.old, happened.new)
        if happened.new is None:
            return bool(happened.old.node_name or happened.old.nominated_node)
        return _scale_down_helps(pod, happened.old, happened.new)

    def _node_helps(self, pod: PodInfo, before: Node | None, now: Node) -> bool:
        """Return whether the pod would fit an empty node of this size and the node has more of something that it
        requests.
        """
        room = allocatable(now)
        asked = self._checked(pod)
        if room.get(PODS, 0) < 1 or any(amount > room.get(name, 0) for name, amount in asked):
            return False
        if before is None:
            return True
        had = allocatable(before)
        return any(room.get(name, 0) > had.get(name, 0) for name in (PODS, *(name for name, _ in asked)))

    # Filter ------------------------------------------------------------------------------------------------------

    def _demand(self, cycle: Cycle, pod: PodInfo) -> _Demand:
        known = cycle.kept.get(self.name)
        if known is None:
            counted = shares(self._scored, _scored_requests(pod.shape), nonzero=True)
            known = _Demand(self._checked(pod), counted, {None: 0})
            cycle.keep(self.name, known)
        assert isinstance(known, _Demand)
        return known

    def _checked(self, pod: PodInfo) -> tuple[tuple[str, int], ...]:
        return tuple((name, amount) for name, amount in _requests(pod) if not self._is_ignored(name))

    def _is_ignored(self, name: str) -> bool:
        if not is_extended(name):
            return False
        return name in self._ignored or name.split("/", 1)[0] in self._ignored_groups

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        self._demand(cycle, pod)
        return None

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        short = [] if len(node.pods) < node.allowed_pods else [_TOO_MANY]
        resolvable = True
        allocatable, requested = node.allocatable, node.requested
        for name, amount in self._demand(cycle, pod).checked:
            capacity = allocatable.get(name, 0)
            if amount > capacity - requested.get(name, 0):
                short.append(f"Insufficient {name}")
                resolvable = resolvable and amount <= capacity
        return Reject(tuple(short), resolvable) if short else None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        checked = self._demand(cycle, pod).checked
        if len(checked) > _MOST_RESOURCES:
            return self._code_each(cycle, pod, table)[rows]
        codes = (table.pod_count[rows] >= table.allowed_pods[rows]).astype(np.int32)
        for place, (name, amount) in enumerate(checked):
            capacity = table.allocatable(name)[rows]
            codes |= (capacity - table.requested(name)[rows] < amount) * np.int32(1 << (_FIRST_RESOURCE + place))
            codes |= (capacity < amount) * np.int32(_UNRESOLVABLE_BIT)
        return codes

    def _code_each(self, cycle: Cycle, pod: PodInfo, table: NodeTable) -> Codes:
        met = self._demand(cycle, pod).met
        codes = np.zeros(table.size, np.int32)
        for row in table.live_rows():
            codes[row] = met.setdefault(self._verdict_of_row(cycle, pod, table, row), len(met))
        return codes

    def _verdict_of_row(self, cycle: Cycle, pod: PodInfo, table: NodeTable, row: int) -> Reject | None:
        """Compute `filter` for one row from the columns."""
        short = [] if table.pod_count[row] < table.allowed_pods[row] else [_TOO_MANY]
        resolvable = True
        for name, amount in self._demand(cycle, pod).checked:
            capacity = table.allocatable(name)[row]
            if amount > capacity - table.requested(name)[row]:
                short.append(f"Insufficient {name}")
                resolvable = resolvable and bool(amount <= capacity)
        return Reject(tuple(short), resolvable) if short else None

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        demand = self._demand(cycle, pod)
        if len(demand.checked) > _MOST_RESOURCES:
            return next(verdict for verdict, known in demand.met.items() if verdict is not None and known == code)
        short = [_TOO_MANY] if code & _TOO_MANY_BIT else []
        for place, (name, _) in enumerate(demand.checked):
            if code & (1 << (_FIRST_RESOURCE + place)):
                short.append(f"Insufficient {name}")
        return Reject(tuple(short), not code & _UNRESOLVABLE_BIT)

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        return self._strategy.score(self._demand(cycle, pod).counted, node)

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        return self._strategy.score_columns(self._demand(cycle, pod).counted, table, rows)


def _requests(pod: PodInfo) -> list[tuple[str, int]]:
    """Return the requests, built-in resources first and the others by name."""
    asked = pod.requests
    first = [(name, asked[name]) for name in BUILT_IN if name in asked]
    return first + sorted((name, n) for name, n in asked.items() if name not in BUILT_IN and is_counted(name))


def _scored_requests(shape: Shape) -> dict[str, int]:
    """Return what a pod adds to a node for scoring.

    Kubernetes leaves pod-level resources out of this one number, though not out of what pods on nodes hold; so
    the containers' requests and defaults are what counts.
    """
    if shape.spec.resources is None:
        return shape.requests | {CPU: shape.nonzero_cpu, MEMORY: shape.nonzero_memory}
    return nonzero_requests(cast(api_pod.PodSpec, msgspec.structs.replace(shape.spec, resources=None)))


def _scale_down_helps(pod: PodInfo, before: PodInfo, now: PodInfo) -> bool:
    """Return whether the pod itself requests less, or a placed pod released some of what this one requests."""
    if now.uid == pod.uid:
        return True
    if not now.node_name:
        return False
    return any(now.requests.get(name, 0) < before.requests.get(name, 0) for name in pod.requests)
