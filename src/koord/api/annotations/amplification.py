"""This module holds the codecs of a node's resources: amplification, reservation, reclaim ratios, third-party
allocations, bandwidth and usage thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import ResourceList
from koord.api.protocol import A_RAW_ALLOCATABLE, A_RESOURCE_AMPLIFICATION_RATIO


def parse_ratios(annotations: Mapping[str, str]) -> dict[str, float] | Malformed | None:
    """Parse the amplification ratio by resource. A ratio of 1 or less has no effect, but it is returned as it
    stands.
    """
    return read(annotations, A_RESOURCE_AMPLIFICATION_RATIO, dict[str, float])


def dump_ratios(ratios: Mapping[str, float]) -> str:
    """Format ratios with exactly two decimals, `{"cpu":1.50}`, which no JSON library writes by itself."""
    items = (f"{msgspec.json.encode(name).decode()}:{ratio:.2f}" for name, ratio in sorted(ratios.items()))
    return "{" + ",".join(items) + "}"


def parse_raw_allocatable(annotations: Mapping[str, str]) -> ResourceList | Malformed | None:
    return read(annotations, A_RAW_ALLOCATABLE, ResourceList, lambda v: v.values())


def dump_raw_allocatable(value: ResourceList) -> str:
    return written(value)
