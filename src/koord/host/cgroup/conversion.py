"""Encode one value in one kernel file: check it, find it in the file's text, compare it, and render what to write.

A *value* is what strategies use: cgroup v1's terms (shares, `-1` for no limit). A *field* is what stands in the file
(`max`, a weight, one column of cpu.max). Fields are compared, not values: shares -> weight loses digits, and comparing
values would rewrite a file for ever.
"""

from __future__ import annotations

MIN_SHARES, MAX_SHARES = 2, 262_144
MIN_WEIGHT, MAX_WEIGHT = 1, 10_000
PERIOD_US = 100_000
MIN_QUOTA_US = 1_000
UNLIMITED = -1
MAX_INT64 = (1 << 63) - 1
# v1 prints an unlimited memory limit as the largest page count in bytes.
V1_UNLIMITED_BYTES = 0x7FFF_FFFF_FFFF_F000


def weight_of_shares(shares: int) -> int | None:
    """Return cpu.weight for cpu.shares; None outside of the shares that a kernel takes."""
    if not MIN_SHARES <= shares <= MAX_SHARES:
        return None
    return 1 + (shares - 2) * 9_999 // 262_142


def shares_of_weight(weight: int) -> int | None:
    """Return cpu.shares for cpu.weight; None outside of the weights that a kernel takes."""
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        return None
    return (weight - 1) * 262_142 // 9_999 + 2


def shares_of_milli(milli: int) -> int:
    if milli <= 0:
        return MIN_SHARES
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def quota_of_milli(milli: int) -> int:
    """Return the microseconds per period; no request means no limit."""
    if milli <= 0:
        return UNLIMITED
    return max(milli * PERIOD_US // 1000, MIN_QUOTA_US)
