"""This module computes, per resource, what a node has and what would be used with a pod on it: the input of
scores.

A resource is scored on a node that has some of it; one that is not built in only if the pod requests it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from koord.api.config.scheduler.args import ResourceWeight
from koord.api.resource_name import CPU, MEMORY
from koord.scheduler.plugins.scalar_resource import BUILT_IN, is_scalar
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import Ints, NodeTable, Rows


class Share(msgspec.Struct, frozen=True):
    """One resource that is scored for this pod: what the pod adds, and the weight of the resource."""

    name: str
    request: int
    weight: int
    nonzero: bool  # cpu and memory are scored with a default for containers that state no request

    def on_node(self, node: NodeInfo) -> tuple[int, int]:
        """Return what is allocatable on the node, and what would be used of it with the pod."""
        if self.nonzero:
            used = node.nonzero_cpu if self.name == CPU else node.nonzero_memory
        else:
            used = node.requested.get(self.name, 0)
        return node.allocatable.get(self.name, 0), used + self.request

    def on_rows(self, table: NodeTable, rows: Rows) -> tuple[Ints, Ints]:
        if self.nonzero:
            used = table.nonzero_cpu if self.name == CPU else table.nonzero_memory
        else:
            used = table.requested(self.name)
        return table.allocatable(self.name)[rows], used[rows] + self.request


def shares(resources: Iterable[ResourceWeight], requests: dict[str, int], *, nonzero: bool) -> tuple[Share, ...]:
    """Return the resources of the arguments that are scored for a pod with these requests.

    `nonzero`: count cpu and memory of the pods on a node with the default for containers that state no request.
    """
    return tuple(
        Share(r.name, requests.get(r.name, 0), r.weight, nonzero and r.name in (CPU, MEMORY))
        for r in resources
        if r.name in BUILT_IN or (is_scalar(r.name) and requests.get(r.name, 0))
    )


def present_on_node(counted: Sequence[Share], node: NodeInfo) -> Iterator[tuple[int, int, int]]:
    """Yield (allocatable, used, weight) of each resource that the node has."""
    for share in counted:
        capacity, used = share.on_node(node)
        if capacity:
            yield capacity, used, share.weight
