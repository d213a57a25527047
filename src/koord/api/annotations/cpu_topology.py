"""This module holds the codecs of CPUs: the topology, model and pools of a node, the kubelet's CPU manager,
CPU normalization, SYSTEM pods and core scheduling.
"""

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
    """CPUTopology is node.koordinator.sh/cpu-topology: every logical CPU with its core, socket and NUMA node."""
    detail: tuple[CPUInfo, ...] = always(())


def parse(annotations: Mapping[str, str]) -> CPUTopology | Malformed | None:
    return read(annotations, A_CPU_TOPOLOGY, CPUTopology)


def dump(value: CPUTopology) -> str:
    return written(value)
