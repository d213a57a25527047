"""This module formats amounts and durations for tables; exact numbers are for -o json."""

from __future__ import annotations

from datetime import datetime

from koord.api.resource_name import BATCH_CPU, CPU, MID_CPU

_STEPS = ("Ki", "Mi", "Gi", "Ti", "Pi")
_CPUS = (CPU, BATCH_CPU, MID_CPU)


def amount(resource: str, units: int | None) -> str:
    """Format an amount of a resource that counts milli-cores or bytes."""
    if units is None:
        return "-"
    return f"{units}m" if resource in _CPUS else memory(units)


def memory(size_bytes: int) -> str:
    """Format bytes with one decimal in the largest unit that leaves a whole part."""
    if abs(size_bytes) < 1024:
        return str(size_bytes)
    power = min((abs(size_bytes).bit_length() - 1) // 10, len(_STEPS))
    return f"{size_bytes / 1024**power:.1f}{_STEPS[power - 1]}"


def span(seconds: float) -> str:
    """Format the two largest units: 14m48s, 3h2m, 5d1h."""
    left = abs(int(seconds))
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def age(reported: datetime | None, at: datetime) -> str:
    return "never" if reported is None else f"{span((at - reported).total_seconds())} ago"


def short(resource: str) -> str:
    return resource.removeprefix("kubernetes.io/")
