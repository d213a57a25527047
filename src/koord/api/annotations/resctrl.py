"""node.koordinator.sh/resctrl: cache ways and memory bandwidth of one pod."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_RESCTRL


class Schemata(Part, frozen=True, kw_only=True):
    """ResctrlSchemata: `range` is [start, end] in percent of the cache ways, `percent` a share of the memory
    bandwidth.
    """

    percent: int = 0
    range: tuple[int, ...] = ()


class CacheSchemata(Part, frozen=True, kw_only=True):
    cache_id: int = field(default_factory=lambda: 0, name="cacheID")
    percent: int = 0
    range: tuple[int, ...] = ()


class Allocation(Part, frozen=True, kw_only=True):
    schemata: Schemata = Schemata()
    schemata_per_cache: tuple[CacheSchemata, ...] = ()


class Resctrl(Part, frozen=True, kw_only=True):
    """PodResctrl is node.koordinator.sh/resctrl: cache ways and memory bandwidth of one pod."""
    llc: Allocation = Allocation()
    mb: Allocation = Allocation()


def parse(annotations: Mapping[str, str]) -> Resctrl | Malformed | None:
    return read(annotations, A_RESCTRL, Resctrl)


def dump(value: Resctrl) -> str:
    return written(value)
