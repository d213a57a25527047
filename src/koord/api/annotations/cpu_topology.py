"""node.koordinator.sh/cpu-topology: every logical CPU of a node with its core, socket and NUMA node."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.marker import always
from koord.api.part import Part
from koord.api.protocol import A_CPU_TOPOLOGY


class CPUInfo(Part, frozen=True, kw_only=True):
    id: int = always(0)
    core: int = always(0)
    socket: int = always(0)
    node: int = always(0)


class CPUTopology(Part, frozen=True, kw_only=True):
    detail: tuple[CPUInfo, ...] = always(())


def parse(annotations: Mapping[str, str]) -> CPUTopology | Malformed | None:
    return read(annotations, A_CPU_TOPOLOGY, CPUTopology)


def dump(value: CPUTopology) -> str:
    return written(value)
