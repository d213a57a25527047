"""CPU normalization of a node: the ratio that the manager found, and the label that switches it."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed
from koord.api.annotations.number import boolean, finite
from koord.api.protocol import A_CPU_NORMALIZATION_RATIO, L_CPU_NORMALIZATION_ENABLED

EPSILON = 0.01  # ratios closer than this are the same
NO_EFFECT = "1.00"


def parse_ratio(annotations: Mapping[str, str]) -> float | Malformed | None:
    """Parse the CPU normalization ratio that the manager found for a node."""
    text = annotations.get(A_CPU_NORMALIZATION_RATIO)
    if text is None:
        return None
    ratio = finite(text)
    if ratio is None or ratio <= 0:
        return Malformed(A_CPU_NORMALIZATION_RATIO, f"{text!r} is not a positive number")
    return ratio


def dump_ratio(value: float) -> str:
    return f"{value:.2f}"


def parse_enabled(labels: Mapping[str, str]) -> bool | Malformed | None:
    """Parse the label that switches normalization of a node; it overrides the strategy's own switch."""
    text = labels.get(L_CPU_NORMALIZATION_ENABLED)
    if text is None:
        return None
    enabled = boolean(text)
    return Malformed(L_CPU_NORMALIZATION_ENABLED, f"{text!r} is not a boolean") if enabled is None else enabled
