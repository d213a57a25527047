"""Estimate what a pod will use from its requests, and score how free a node is with it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from koord.api.annotations.amplification import parse_raw_allocatable
from koord.api.annotations.codec import Malformed
from koord.api.pod_resources import amounts
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY, translate
from koord.policy.load.axes import Axes, Vector

# A pod that states neither request nor limit is guessed to use this much; of the other tiers, nothing.
DEFAULT_CPU_MILLI = 250
DEFAULT_MEMORY_BYTES = 200 << 20
_UNSTATED = {
    CPU: DEFAULT_CPU_MILLI,
    BATCH_CPU: DEFAULT_CPU_MILLI,
    MEMORY: DEFAULT_MEMORY_BYTES,
    BATCH_MEMORY: DEFAULT_MEMORY_BYTES,
}


def estimate_pod(
    priority_class: str,
    requests: Mapping[str, int],
    limits: Mapping[str, int],
    factors: Mapping[str, int],
    axes: Axes,
) -> Vector:
    """Estimate usage. `factors` are percentages of the larger of request and limit; a limit is never exceeded.

    Batch and mid pods request under names of their own, but what they use is cpu and memory.
    """
    return tuple(
        _estimate(translate(priority_class, name) or "", requests, limits, factors[name]) if name in factors else 0
        for name in axes.names
    )


def _estimate(name: str, requests: Mapping[str, int], limits: Mapping[str, int], factor: int) -> int:
    limit = limits.get(name, 0)
    stated = max(limit, requests.get(name, 0))
    if not stated:
        return _UNSTATED.get(name, 0)
    guess = rounded(stated * factor / 100)
    return min(guess, limit) if limit > 0 else guess


def rounded(value: float) -> int:
    """Round to the nearest integer, halves away from zero. Adding a half and truncating would err just below it."""
    whole = math.trunc(value)
    return whole + (value - whole >= 0.5) - (whole - value >= 0.5)


def capacity(allocatable: Mapping[str, int], annotations: Mapping[str, str], axes: Axes) -> Vector:
    """Return the capacity before amplification: load is measured on the real machine. Unreadable text counts as
    missing.
    """
    raw = parse_raw_allocatable(annotations)
    if raw is None or isinstance(raw, Malformed):
        return axes.pick(allocatable)
    return axes.pick({**allocatable, **amounts(raw)})
