"""This module holds a node's topology and policies, read again only when something that is read of it changed."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations import node_numa
from koord.api.node import Node
from koord.api.topology import NodeResourceTopology
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.node import NodeTopology, node_topology
from koord.scheduler.plugins.node_numa_resource.book import Book


class Site:
    """A node's topology and policies for CPU binding and NUMA placement.

    `concerns_all_pods`: the node has a policy for pods that demand nothing themselves. `has_uniform_cores`: all
    its cores have equally many CPUs.
    """

    __slots__ = ("annotations", "empty", "even", "found", "labels", "node", "strict", "topology")

    def __init__(self, node: Node, found: NodeResourceTopology | None, default_strategy: str) -> None:
        meta = node.metadata
        self.node = node
        self.found = found
        self.labels: Mapping[str, str] = meta.labels
        self.annotations: Mapping[str, str] = meta.annotations
        topology = node_topology(found, meta.labels, meta.annotations, default_strategy=default_strategy)
        self.topology: NodeTopology = topology
        self.empty = Book.over(topology.cpu)  # of the node while nothing is given there
        self.even = isinstance(topology.cpu, CpuTopology) and topology.cpu.even
        self.strict = bool(
            topology.numa_policy
            or topology.bind_policy != node_numa.BIND_NONE
            or topology.ratio_fault
            or (topology.node_ratio or 0) > 1
        )

    def still_holds(self, node: Node, found: NodeResourceTopology | None) -> bool:
        """Return whether the profile is still valid: most updates of a node are of its status."""
        if found is not self.found:
            return False
        if node is not self.node:
            meta = node.metadata
            if meta.labels != self.labels or meta.annotations != self.annotations:
                return False
            self.node = node
        return True
