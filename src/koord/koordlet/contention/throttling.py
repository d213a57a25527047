"""What a quota does to work that comes in gusts: how much of it runs within a step, and in how many periods it waits.

A burst buffer keeps quota that was not used for the periods in which more is wanted. Its content lives from step to
step; whoever owns the step keeps it.
"""

from __future__ import annotations

import msgspec

from koord.koordlet.contention.group import UNBOUNDED

PERIOD_S = 0.1


class Quota(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A CFS quota and its burst buffer: `milli` is infinite without a quota; `burst_milli_s` is in milli-core-seconds.

    """

    milli: float = UNBOUNDED
    burst_milli_s: float = 0.0


def bound_milli(quota: Quota, saved_milli_s: float, step_s: float) -> float:
    """Return the most that may run on average over a step: the quota, and what was saved before."""
    return quota.milli + min(saved_milli_s, quota.burst_milli_s) / step_s


def saved_after(quota: Quota, saved_milli_s: float, used_milli: float, step_s: float) -> float:
    """Return how much unused quota the burst buffer holds after a step."""
    if quota.milli == UNBOUNDED:
        return 0.0
    left = min(saved_milli_s, quota.burst_milli_s) + (quota.milli - used_milli) * step_s
    return min(max(left, 0.0), quota.burst_milli_s)


def throttled_share(quota: Quota, wanted_milli: float, gust: float = 1.0) -> float:
    """Return the share of periods in which work waits for its quota.

    Work wants `gust` times its mean in one of `gust` periods and nothing in the others; 1 is an even flow. In a busy
    period the quota runs out unless the buffer, filled in the quiet periods, holds the rest.
    """
    if wanted_milli <= 0 or quota.milli == UNBOUNDED:
        return 0.0
    if wanted_milli > quota.milli:
        # More than the quota for good: a period is left unthrottled only as far as the quota goes.
        return 1.0 if gust <= 1 else max(1.0 / gust, (wanted_milli - quota.milli) / wanted_milli)
    missing = wanted_milli * gust - quota.milli
    if missing <= 0:
        return 0.0
    buffer_milli = min(quota.burst_milli_s / PERIOD_S, quota.milli * (gust - 1))
    return max(0.0, 1.0 - buffer_milli / missing) / gust
