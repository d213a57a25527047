"""Shares of last-level cache and memory bandwidth in the notation of resctrl, for QoS classes and single pods alike."""

from __future__ import annotations

from koord.host.hardware import ResctrlLimits

INTEL, AMD, HYGON = "GenuineIntel", "AuthenticAMD", "HygonGenuine"
_BY_AMOUNT = (AMD, HYGON)  # Hygon's processors are AMD's design
_AMD_FULL, _AMD_UNIT = 2048, 160
_INTEL_STEP = 10
USUAL = ResctrlLimits()


def cat_mask(mask: int, start_percent: int, end_percent: int, limits: ResctrlLimits = USUAL) -> int | None:
    """Return the mask of cache ways from one percent to another; None when the range or the cache's mask is invalid.

    A share of fewer ways than the kernel takes grows at its end, or at its start where the cache ends.
    """
    if mask <= 0 or mask & (mask + 1) or not 0 <= start_percent < end_percent <= 100:
        return None
    ways = mask.bit_length()
    first, past = -(-ways * start_percent // 100), -(-ways * end_percent // 100)
    if first == past:
        return None
    past = min(max(past, first + limits.min_ways), ways)
    first = max(min(first, past - limits.min_ways), 0)
    return (1 << past) - (1 << first)


def mba_value(vendor: str, percent: int | None, limits: ResctrlLimits = USUAL) -> str | None:
    """Return the MBA value of a percentage: AMD and Hygon take eighths of a GB/s, Intel tens of percents, and ARM
    percents in the machine's own steps.
    """
    if percent is None or not 0 < percent <= 100 or not limits.has_bandwidth:
        return None
    if vendor in _BY_AMOUNT:
        return str(_AMD_FULL if percent == 100 else _AMD_UNIT * percent // 100)
    step = _INTEL_STEP if vendor == INTEL else limits.bandwidth_step
    return str(min(max(-(-percent // step) * step, limits.min_bandwidth), 100))
