"""node.koordinator.sh/extended-resource-spec: batch and mid resources by container, for runtimes that see no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part, QuantityText, ResourceList
from koord.api.protocol import A_EXTENDED_RESOURCE_SPEC


class ExtendedResources(Part, frozen=True, kw_only=True):
    limits: ResourceList = {}
    requests: ResourceList = {}


class ExtendedResourceSpec(Part, frozen=True, kw_only=True):
    """ExtendedResourceSpec is batch and mid resources by container, for runtimes that see no others."""
    containers: dict[str, ExtendedResources] = {}


def parse(annotations: Mapping[str, str]) -> ExtendedResourceSpec | Malformed | None:
    return read(annotations, A_EXTENDED_RESOURCE_SPEC, ExtendedResourceSpec, _amounts)


def _amounts(value: ExtendedResourceSpec) -> Iterator[QuantityText]:
    for container in value.containers.values():
        yield from container.limits.values()
        yield from container.requests.values()


def dump(value: ExtendedResourceSpec) -> str:
    return written(value)
