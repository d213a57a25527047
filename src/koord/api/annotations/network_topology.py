"""Network topology of a gang: the layers to gather in, the rank of a member, the selector of a domain."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.annotations.number import decimal
from koord.api.marker import always
from koord.api.part import Part
from koord.api.protocol import (
    A_GANG_NETWORK_TOPOLOGY_INDEX,
    A_GANG_NETWORK_TOPOLOGY_SPEC,
    A_NETWORK_TOPOLOGY_SELECTOR,
)

MUST_GATHER = "MustGather"
PREFER_GATHER = "PreferGather"


class GatherStrategy(Part, frozen=True, kw_only=True):
    layer: str = always("")
    strategy: str = always("")
    pod_count_multiple: int = 0


class NetworkTopologySpec(Part, frozen=True, kw_only=True):
    """NetworkTopologySpec is the layers of the network in which a gang is gathered."""
    gather_strategy: tuple[GatherStrategy, ...] = ()


def parse_spec(annotations: Mapping[str, str]) -> NetworkTopologySpec | Malformed | None:
    """Parse the layers to gather in. A gang with a malformed spec is scheduled as one without."""
    return read(annotations, A_GANG_NETWORK_TOPOLOGY_SPEC, NetworkTopologySpec)


def dump_spec(value: NetworkTopologySpec) -> str:
    return written(value)


def parse_index(annotations: Mapping[str, str]) -> int | Malformed | None:
    text = annotations.get(A_GANG_NETWORK_TOPOLOGY_INDEX)
    if text is None:
        return None
    value = decimal(text)
    if value is None:
        return Malformed(A_GANG_NETWORK_TOPOLOGY_INDEX, f"{text!r} is not an integer")
    return value if value >= 0 else None


def order(index: int | None, name: str) -> tuple[bool, int, str]:
    """Return a sort key: members with an index first, by index, then by name."""
    return (index is None, index or 0, name)


def selector(annotations: Mapping[str, str]) -> str:
    return annotations.get(A_NETWORK_TOPOLOGY_SELECTOR, "")
