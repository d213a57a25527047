"""Who goes first: the fullest node, and among equal pods of one node the one that best covers its excess."""

from __future__ import annotations

from collections.abc import Mapping

from koord.descheduler.plugins.low_node_load.load import Load


def fullness(usage: Mapping[str, int], size: Mapping[str, int], weights: Mapping[str, int]) -> int:
    """Return the weighted utilization in thousandths of the node, as a whole number."""
    total = sum(weights.get(name, 0) for name in usage)
    if not total:
        return 0
    return sum(weights.get(name, 0) * _thousandths(used, size.get(name, 0)) for name, used in usage.items()) // total


def _thousandths(used: int, size: int) -> int:
    return min(used, size) * 1000 // size if size else 0


def excess(usage: Mapping[str, int], high: Mapping[str, int]) -> dict[str, int]:
    return {name: used - high[name] for name, used in usage.items() if used > high[name]}


def cover(used: Mapping[str, int] | None, over: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """Return 2 for a pod that uses exactly the excess, between 1 and 2 for larger pods, below 1 for smaller ones."""
    total = sum(weights.get(name, 0) for name in over)
    if used is None or not total:
        return 0.0
    return sum(weights.get(name, 0) * _segment(used.get(name, 0), too_much) for name, too_much in over.items()) / total


def _segment(used: int, too_much: int) -> float:
    if used < too_much:
        return used / too_much
    return 1 + too_much / used


def fullest_first(loads: list[Load], weights: Mapping[str, int], *, prod: bool) -> list[Load]:
    return sorted(loads, key=lambda load: -fullness(load.prod_usage if prod else load.usage, load.size, weights))
