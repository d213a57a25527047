"""This module formats amounts and durations for tables; exact numbers are for -o json."""

from __future__ import annotations

from datetime import datetime

from koord.api.koordinator.resource_name import BATCH_CPU, CPU, MID_CPU

_BINARY_UNITS = ("Ki", "Mi", "Gi", "Ti", "Pi")
_CPU_RESOURCES = (CPU, BATCH_CPU, MID_CPU)


def format_amount(resource: str, units: int | None) -> str:
    """Format an amount of a resource that counts milli-cores or bytes."""
    if units is None:
        return "-"
    return f"{units}m" if resource in _CPU_RESOURCES else format_bytes(units)


def format_bytes(size_bytes: int) -> str:
    """Format bytes with one decimal in the largest unit that leaves a whole part."""
    if abs(size_bytes) < 1024:
        return str(size_bytes)
    power = min((abs(size_bytes).bit_length() - 1) // 10, len(_BINARY_UNITS))
    return f"{size_bytes / 1024**power:.1f}{_BINARY_UNITS[power - 1]}"


def format_duration(seconds: float) -> str:
    """Format the two largest units: 14m48s, 3h2m, 5d1h."""
    left = abs(int(seconds))
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def format_age(reported: datetime | None, at: datetime) -> str:
    return "never" if reported is None else f"{format_duration((at - reported).total_seconds())} ago"


def short_resource_name(resource: str) -> str:
    return resource.removeprefix("kubernetes.io/")
