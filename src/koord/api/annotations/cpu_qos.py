"""koordinator.sh/cpuQOS: one pod's override of its group identity."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.protocol import A_CPU_QOS
from koord.api.slo_strategy import CPUQOSConfig

LOWEST, HIGHEST = -1, 2


def parse(annotations: Mapping[str, str]) -> CPUQOSConfig | Malformed | None:
    """Parse a pod's override of its group identity. A value out of range makes the whole annotation malformed."""
    found = read(annotations, A_CPU_QOS, CPUQOSConfig)
    if isinstance(found, CPUQOSConfig) and found.group_identity is not None:
        identity = found.group_identity
        if not LOWEST <= identity <= HIGHEST:
            return Malformed(A_CPU_QOS, f"groupIdentity {identity} is not from {LOWEST} to {HIGHEST}")
    return found


def dump(value: CPUQOSConfig) -> str:
    return written(value)
