"""The load of nodes from their latest NodeMetric, and the thresholds that it is compared with, in amounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koord.api.resource_name import MEMORY

FULL = 100.0


class Percentages(msgspec.Struct, frozen=True, kw_only=True):
    """The low and high thresholds of one kind of load (all pods, or prod pods only) in percent."""

    low: Mapping[str, float]
    high: Mapping[str, float]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The low and high thresholds on one node in amounts."""

    low: Mapping[str, int]
    high: Mapping[str, int]


def universe(*given: Mapping[str, float]) -> tuple[str, ...]:
    """Return every resource that some threshold names, and memory."""
    return tuple(sorted({MEMORY}.union(*given)))


def completed(
    low: Mapping[str, float], high: Mapping[str, float], resources: Iterable[str], *, deviation: bool
) -> Percentages:
    """Complete both thresholds for every resource.

    A resource without a low threshold never counts; one with a low but no high threshold has a high threshold
    of zero.
    """
    neutral = 0.0 if deviation else FULL
    lows, highs = {}, {}
    for name in resources:
        counts = name in low
        lows[name] = low[name] if counts else neutral
        highs[name] = high.get(name, 0.0) if counts else neutral
    return Percentages(low=lows, high=highs)


def around(average: Mapping[str, float], spread: Percentages) -> Percentages:
    """Return thresholds at a distance from the average. A resource without a lower distance never counts."""
    lows, highs = {}, {}
    for name, below in spread.low.items():
        if below == 0:
            lows[name] = highs[name] = FULL
            continue
        middle = average.get(name, 0.0)
        lows[name] = min(max(middle - below, 0.0), FULL)
        highs[name] = min(max(middle + spread.high[name], 0.0), FULL)
    return Percentages(low=lows, high=highs)


def average(used: Sequence[Mapping[str, int]], sizes: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return the average usage in percent over all nodes. A node without the resource counts as unused."""
    found: dict[str, float] = {}
    for usage, size in zip(used, sizes, strict=True):
        for name, amount in usage.items():
            total = size.get(name, 0)
            found[name] = found.get(name, 0.0) + (amount / total * 100 if total else 0.0)
    return {name: summed / len(used) for name, summed in found.items()} if used else {}


def bounds(percentages: Percentages, size: Mapping[str, int]) -> Bounds:
    return Bounds(low=_amounts(percentages.low, size), high=_amounts(percentages.high, size))


def _amounts(percentages: Mapping[str, float], size: Mapping[str, int]) -> dict[str, int]:
    return {name: int(percent * 0.01 * size.get(name, 0)) for name, percent in percentages.items()}
