"""A pod's own settings for load estimation, honoured when the plugin allows it. Unreadable text counts as missing."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.annotations.number import decimal
from koord.api.protocol import (
    A_LOAD_ESTIMATED_SCALING_FACTORS,
    A_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED,
    A_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED,
)


def scaling_factors(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return the percent by resource; empty means that the plugin's factors apply."""
    found = read(annotations, A_LOAD_ESTIMATED_SCALING_FACTORS, dict[str, int])
    return {} if found is None or isinstance(found, Malformed) else found


def dump_scaling_factors(value: Mapping[str, int]) -> str:
    return written(value)


def seconds_after_scheduled(annotations: Mapping[str, str]) -> int | None:
    """Return the pod's own setting, honoured when the plugin allows it. Unreadable text counts as missing."""
    return _seconds(annotations.get(A_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED))


def seconds_after_initialized(annotations: Mapping[str, str]) -> int | None:
    return _seconds(annotations.get(A_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED))


def _seconds(text: str | None) -> int | None:
    """Parse seconds. Upstream says -1 for unset, so a negative number is unset too."""
    value = decimal(text) if text is not None else None
    return value if value is not None and value >= 0 else None
