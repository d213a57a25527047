"""This module computes how many pods of a gang each node takes in their order, and why it does not take the
next.

columns    filters that read no pods, or only their sums, answer for all nodes at once
trials     where another filter has a say, nodes are tried one by one, as far as the columns leave open
"""

from __future__ import annotations

import numpy as np

from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import Ints, NodeTable


class Load:
    """Pods that are yet to come, as sums per row."""

    __slots__ = ("_amounts", "count")

    def __init__(self, size: int) -> None:
        self.count: Ints = np.zeros(size, np.int64)
        self._amounts: dict[str, Ints] = {}

    def of(self, name: str) -> Ints | None:
        return self._amounts.get(name)

    def plus(self, pod: PodInfo, times: Ints) -> Load:
        """Return the load with `times` more of this pod per row."""
        other = Load(0)
        other.count = self.count + times
        other._amounts = dict(self._amounts)
        for name, amount in pod.requests.items():
            before = self._amounts.get(name)
            other._amounts[name] = times * amount if before is None else before + times * amount
        return other


class Crowded(NodeTable):
    """The node table with the sums of more pods on its nodes; only for filters that read nothing but sums of pods."""
    def __init__(self, table: NodeTable, load: Load) -> None:
        self._under = table
        self._load = load
        self.nodes = table.nodes
        self.index = table.index
        self.alive = table.alive
        self.allowed_pods = table.allowed_pods
        self.pod_count = table.pod_count + load.count

    def allocatable(self, name: str) -> Ints:
        return self._under.allocatable(name)

    def requested(self, name: str) -> Ints:
        more = self._load.of(name)
        held = self._under.requested(name)
        return held if more is None else held + more
