"""The CPUs that LS pods share, and those that BE pods share, by NUMA node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.annotations.codec import Malformed, read, written
from koord.api.marker import always
from koord.api.part import Part
from koord.api.protocol import A_BE_CPU_SHARED_POOLS, A_CPU_SHARED_POOLS


class CPUSharedPool(Part, frozen=True, kw_only=True):
    socket: int = always(0)
    node: int = always(0)
    cpuset: str = ""


def parse(annotations: Mapping[str, str]) -> tuple[CPUSharedPool, ...] | Malformed | None:
    """Parse the CPUs that LS pods share, by NUMA node."""
    return read(annotations, A_CPU_SHARED_POOLS, tuple[CPUSharedPool, ...])


def parse_best_effort(annotations: Mapping[str, str]) -> tuple[CPUSharedPool, ...] | Malformed | None:
    """Parse the CPUs that BE pods share, by NUMA node."""
    return read(annotations, A_BE_CPU_SHARED_POOLS, tuple[CPUSharedPool, ...])


def dump(value: Sequence[CPUSharedPool]) -> str:
    return written(value)
