"""This module says which resources are counted on nodes, and computes what a node has and a pod would use of
each.

A resource is scored on a node that has some of it; one that is not built in only if the pod requests it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec

from koord.api.config.scheduler.in_tree_args import ResourceWeight
from koord.api.koordinator.resource_name import CPU, EPHEMERAL_STORAGE, MEMORY
from koord.api.kubernetes.pod_resources import HUGE_PAGES_PREFIX, is_extended_resource
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Ints, NodeTable, Rows

_NATIVE = "kubernetes.io/"
_ATTACHABLE_PREFIX = "attachable-volumes-"

# In the order in which refusals name them.
BUILT_IN = (CPU, MEMORY, EPHEMERAL_STORAGE)


@lru_cache(maxsize=4096)
def is_scalar(name: str) -> bool:
    """Return whether the resource is counted as a plain number when a pod requests it, and ignored otherwise."""
    return name.startswith((HUGE_PAGES_PREFIX, _ATTACHABLE_PREFIX)) or _NATIVE in name or is_extended_resource(name)


def is_counted(name: str) -> bool:
    return name in BUILT_IN or is_scalar(name)


class ScoredResource(msgspec.Struct, frozen=True):
    """One resource that is scored for this pod: what the pod adds, and the weight of the resource."""

    name: str
    request: int
    weight: int
    nonzero: bool  # cpu and memory are scored with a default for containers that state no request

    def allocatable_and_used(self, node: NodeInfo) -> tuple[int, int]:
        """Return what is allocatable on the node, and what would be used of it with the pod."""
        if self.nonzero:
            used = node.nonzero_cpu if self.name == CPU else node.nonzero_memory
        else:
            used = node.requested.get(self.name, 0)
        return node.allocatable.get(self.name, 0), used + self.request

    def allocatable_and_used_columns(self, table: NodeTable, rows: Rows) -> tuple[Ints, Ints]:
        if self.nonzero:
            used = table.nonzero_cpu if self.name == CPU else table.nonzero_memory
        else:
            used = table.requested(self.name)
        return table.allocatable(self.name)[rows], used[rows] + self.request


def scored_resources(
    resources: Iterable[ResourceWeight], requests: dict[str, int], *, nonzero: bool
) -> tuple[ScoredResource, ...]:
    """Return the resources of the arguments that are scored for a pod with these requests.

    `nonzero`: count cpu and memory of the pods on a node with the default for containers that state no request.
    """
    return tuple(
        ScoredResource(r.name, requests.get(r.name, 0), r.weight, nonzero and r.name in (CPU, MEMORY))
        for r in resources
        if r.name in BUILT_IN or (is_scalar(r.name) and requests.get(r.name, 0))
    )


def present_resources(counted: Sequence[ScoredResource], node: NodeInfo) -> Iterator[tuple[int, int, int]]:
    """Yield (allocatable, used, weight) of each resource that the node has."""
    for resource in counted:
        capacity, used = resource.allocatable_and_used(node)
        if capacity:
            yield capacity, used, resource.weight
