"""The four node labels that override a colocation percentage, as ratios: 0.65 is 65 percent."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.number import finite
from koord.api.protocol import (
    L_CPU_RECLAIM_RATIO,
    L_MEMORY_RECLAIM_RATIO,
    L_MID_STATIC_CPU_RESERVED_RATIO,
    L_MID_STATIC_MEMORY_RESERVED_RATIO,
)


def percent(labels: Mapping[str, str], key: str) -> int | None:
    """Return a ratio label as percent, truncated as a binary fraction is, so 0.29 gives 28. Negative and
    unreadable labels are ignored.
    """
    ratio = finite(labels.get(key, ""))
    return None if ratio is None or ratio < 0 else int(ratio * 100)


def cpu_reclaim_percent(labels: Mapping[str, str]) -> int | None:
    return percent(labels, L_CPU_RECLAIM_RATIO)


def memory_reclaim_percent(labels: Mapping[str, str]) -> int | None:
    return percent(labels, L_MEMORY_RECLAIM_RATIO)


def mid_static_cpu_percent(labels: Mapping[str, str]) -> int | None:
    return percent(labels, L_MID_STATIC_CPU_RESERVED_RATIO)


def mid_static_memory_percent(labels: Mapping[str, str]) -> int | None:
    return percent(labels, L_MID_STATIC_MEMORY_RESERVED_RATIO)
