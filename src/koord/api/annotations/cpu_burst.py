"""koordinator.sh/cpuBurst: one pod's override of the node's CPU burst strategy."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.protocol import A_CPU_BURST
from koord.api.slo_strategy import CPUBurst


def parse(annotations: Mapping[str, str]) -> CPUBurst | Malformed | None:
    """Parse koordinator.sh/cpuBurst: one pod's override of the node's CPU burst strategy."""
    return read(annotations, A_CPU_BURST, CPUBurst)


def dump(value: CPUBurst) -> str:
    return written(value)
