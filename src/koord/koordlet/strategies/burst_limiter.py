"""Limit how long a container may exceed its limit, with tokens that bursting spends and idling earns."""

from __future__ import annotations

import zlib

import msgspec

from koord.api.koordinator.slo_strategy import CPUBurst

EARNING_BELOW_PERCENT = 60
_FULL_PERCENT = 100


class BurstTokens(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tokens of one container. One token is one percent of the limit for one second."""

    capacity: int
    left: float
    at_s: float


class BurstAllowance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """BurstAllowance says whether a container may burst now, and its tokens."""

    allowed: bool
    tokens: BurstTokens | None  # None where no account is kept
    why: str


def check_burst_allowance(
    config: CPUBurst, container: str, before: BurstTokens | None, now_s: float, usage_percent: int
) -> BurstAllowance:
    """Return whether the container may burst now, and update its tokens."""
    period, percent = config.cfs_quota_burst_period_seconds, config.cfs_quota_burst_percent
    if period is None or period < 0:
        return BurstAllowance(allowed=True, tokens=None, why="bursts may last for ever")
    if percent is None or percent < _FULL_PERCENT:
        return BurstAllowance(allowed=False, tokens=None, why=f"cfsQuotaBurstPercent {percent} allows no burst")
    capacity = period * (percent - _FULL_PERCENT)
    if before is None or before.capacity != capacity:
        tokens = BurstTokens(capacity=capacity, left=initial_token_share(container) * capacity, at_s=now_s)
    else:
        tokens = spend_tokens(before, now_s, usage_percent)
    return BurstAllowance(
        allowed=tokens.left > 0, tokens=tokens, why=f"{tokens.left:.0f} of {capacity} burst tokens left"
    )


def spend_tokens(before: BurstTokens, now_s: float, usage_percent: int) -> BurstTokens:
    # Fractions of a second count: ticks that come a little early would otherwise never cost or earn anything.
    """Return the tokens after the time that passed at this usage."""
    passed_s = max(0.0, now_s - before.at_s)
    change = 0.0
    if usage_percent >= _FULL_PERCENT:
        change = -(usage_percent - _FULL_PERCENT) * passed_s
    elif usage_percent < EARNING_BELOW_PERCENT:
        change = (_FULL_PERCENT - usage_percent) * passed_s
    left = min(max(before.left + change, -before.capacity), before.capacity)
    return BurstTokens(capacity=before.capacity, left=left, at_s=now_s)


def initial_token_share(container: str) -> float:
    """Return a share from 0 to 0.5 of the capacity, so that containers of one deployment do not end
    their bursts together.

    It is derived from the container's id and not random: a decision made again is the same decision.
    """
    return zlib.crc32(container.encode()) / 2**32 / 2
