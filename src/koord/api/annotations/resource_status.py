"""scheduling.koordinator.sh/resource-status: the CPUs and NUMA nodes that the scheduler gave a pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.marker import always
from koord.api.part import Part, QuantityText, ResourceList
from koord.api.protocol import A_RESOURCE_STATUS


class NUMANodeResource(Part, frozen=True, kw_only=True):
    node: int = always(0)
    resources: ResourceList = {}


class ResourceStatus(Part, frozen=True, kw_only=True):
    """PodResourceStatus is the CPUs and NUMA nodes that the scheduler gave a pod. `cpuset` is a Linux CPU list
    such as 0-3,8.
    """

    cpuset: str = ""
    numa_node_resources: tuple[NUMANodeResource, ...] = ()


def parse(annotations: Mapping[str, str]) -> ResourceStatus | Malformed | None:
    return read(annotations, A_RESOURCE_STATUS, ResourceStatus, _amounts)


def _amounts(value: ResourceStatus) -> Iterator[QuantityText]:
    for node in value.numa_node_resources:
        yield from node.resources.values()


def dump(value: ResourceStatus) -> str:
    return written(value)
