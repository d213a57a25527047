"""Shares of last-level cache and memory bandwidth in the notation of resctrl, for QoS classes and single pods alike."""

from __future__ import annotations

INTEL, AMD = "GenuineIntel", "AuthenticAMD"
_AMD_FULL, _AMD_UNIT = 2048, 160


def cat_mask(mask: int, start_percent: int, end_percent: int) -> int | None:
    """Return the mask of cache ways from one percent to another; None when the range or the cache's mask is invalid."""
    if mask <= 0 or mask & (mask + 1) or not 0 <= start_percent < end_percent <= 100:
        return None
    ways = mask.bit_length()
    first, past = -(-ways * start_percent // 100), -(-ways * end_percent // 100)
    return ((1 << past) - (1 << first)) or None


def mba_value(vendor: str, percent: int | None) -> str | None:
    """Return the MBA value of a percentage: AMD takes eighths of a GB/s, everybody else tens of percents, as Intel."""
    if percent is None or not 0 < percent <= 100:
        return None
    if vendor == AMD:
        return str(_AMD_FULL if percent == 100 else _AMD_UNIT * percent // 100)
    return str(-(-percent // 10) * 10)
