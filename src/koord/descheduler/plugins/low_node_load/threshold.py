"""From percentages to amounts: what each node may use before it is too full, and below what it counts as free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koord.api.resource_name import MEMORY

FULL = 100.0


class Percentages(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind of load (all pods, or prod pods only)."""

    low: Mapping[str, float]
    high: Mapping[str, float]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The same on one node, in amounts."""

    low: Mapping[str, int]
    high: Mapping[str, int]


def universe(*given: Mapping[str, float]) -> tuple[str, ...]:
    """Every resource that some threshold names, and memory."""
    return tuple(sorted({MEMORY}.union(*given)))


def completed(
    low: Mapping[str, float], high: Mapping[str, float], resources: Iterable[str], *, deviation: bool
) -> Percentages:
    """Both for every resource. One without a low threshold never counts; one without a high has none above zero."""
    neutral = 0.0 if deviation else FULL
    lows, highs = {}, {}
    for name in resources:
        counts = name in low
        lows[name] = low[name] if counts else neutral
        highs[name] = high.get(name, 0.0) if counts else neutral
    return Percentages(low=lows, high=highs)


def around(average: Mapping[str, float], spread: Percentages) -> Percentages:
    """Thresholds at a distance from the average. A resource without a distance below it never counts."""
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
    """Percent of each resource over all nodes. A node that has none of it counts as unused."""
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
