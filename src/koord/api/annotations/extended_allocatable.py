"""Batch resources shared with another orchestrator: what there was at first, and what third parties have taken."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part, ResourceList
from koord.api.protocol import A_ORIGIN_EXTENDED_ALLOCATABLE, A_THIRD_PARTY_ALLOCATIONS


class OriginAllocatable(Part, frozen=True, kw_only=True):
    """OriginAllocatable is the batch resources that there were before another orchestrator took its share."""
    resources: ResourceList = {}


class ThirdPartyAllocation(Part, frozen=True, kw_only=True):
    name: str = ""
    priority: str = ""
    resources: ResourceList = {}


class ThirdPartyAllocations(Part, frozen=True, kw_only=True):
    """ThirdPartyAllocations is the batch resources that other orchestrators have taken."""
    allocations: tuple[ThirdPartyAllocation, ...] = ()


def parse_origin(annotations: Mapping[str, str]) -> OriginAllocatable | Malformed | None:
    return read(annotations, A_ORIGIN_EXTENDED_ALLOCATABLE, OriginAllocatable, lambda v: v.resources.values())


def dump_origin(value: OriginAllocatable) -> str:
    return written(value)


def parse_third_party(annotations: Mapping[str, str]) -> ThirdPartyAllocations | Malformed | None:
    return read(
        annotations,
        A_THIRD_PARTY_ALLOCATIONS,
        ThirdPartyAllocations,
        lambda v: (amount for taken in v.allocations for amount in taken.resources.values()),
    )


def dump_third_party(value: ThirdPartyAllocations) -> str:
    return written(value)
