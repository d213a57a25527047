"""This module evaluates one node's load: its capacity and thresholds, the verdict with its message, and the
score.
"""

from __future__ import annotations

from koord.api.node import Node
from koord.policy.load.axes import Axes, Vector
from koord.policy.load.ceiling import Applied, Ceilings, overlaid
from koord.policy.load.estimator import capacity
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import NodeTable

_SPARE = 64


class Limit:
    """The thresholds of prod or other pods on one node. `checks` has the limited resources by position."""

    __slots__ = ("applied", "bounds", "checks", "special")

    def __init__(self, applied: Applied, total: Vector) -> None:
        self.applied = applied
        self.special = applied.prod or applied.window is not None  # compared with other than the node's plain usage
        self.bounds = applied.bounds(total)
        self.checks = tuple((place, bound) for place, bound in enumerate(self.bounds) if bound is not None)


class Site:
    """The capacity and the thresholds that a node's own object states."""
    __slots__ = ("node", "plain", "prod", "total")

    def __init__(self, node: NodeInfo, cluster: Ceilings, axes: Axes) -> None:
        assert node.node is not None
        self.node: Node = node.node
        annotations = node.node.metadata.annotations
        self.total = capacity(node.allocatable, annotations, axes)
        own = overlaid(cluster, annotations, axes)
        plain, prod = own.of(prod=False), own.of(prod=True)
        self.plain = Limit(plain, self.total) if plain is not None else None
        self.prod = self.plain if prod == plain else Limit(prod, self.total) if prod is not None else None


class Sites:
    """The profiles of all nodes, rebuilt for a node whose object changed."""

    def __init__(self, cluster: Ceilings, axes: Axes, table: NodeTable) -> None:
        self._cluster = cluster
        self._table = table
        self._axes = axes
        self.known: dict[str, Site] = {}

    def of(self, node: NodeInfo) -> Site:
        known = self.known.get(node.name)
        if known is None or known.node is not node.node:
            if len(self.known) > 2 * self._table.live + _SPARE:  # mostly of nodes that are gone
                self.known.clear()
            known = self.known[node.name] = Site(node, self._cluster, self._axes)
        return known
