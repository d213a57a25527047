"""Device amounts: how much of each resource is held on each device, with exact sums and differences, and their scores.

A virtual function is one unit of a resource of its own (`vf_key`), so code that moves amounts moves it too. Devices, or
all devices of a node, are scored against a request as integers from 0 to 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from koord.api.config.scheduler.in_tree_args import MOST_ALLOCATED, ScoringStrategy
from koord.values.resources import add_keyed_amounts, remaining_keyed_amounts

Amounts: TypeAlias = Mapping[str, int]  # resource -> whole units: percents of a card, bytes of gpu-memory
MinorAmounts: TypeAlias = Mapping[int, Amounts]
DeviceAmounts: TypeAlias = Mapping[str, MinorAmounts]  # device type -> minor -> amounts

NO_DEVICE_AMOUNTS: DeviceAmounts = {}
NO_MINORS: MinorAmounts = {}
NO_AMOUNTS: Amounts = {}

_VF_PREFIX = "vf/"


def vf_key(bus_id: str) -> str:
    return _VF_PREFIX + bus_id


def vf_bus_ids(amounts: Amounts) -> list[str]:
    """Return the bus ids of the virtual functions among the amounts, sorted."""
    return sorted(name.removeprefix(_VF_PREFIX) for name, amount in amounts.items() if amount and is_vf_key(name))


def is_vf_key(name: str) -> bool:
    return name.startswith(_VF_PREFIX)


def add(a: DeviceAmounts, b: DeviceAmounts) -> dict[str, MinorAmounts]:
    return _combined(a, b, 1)


def subtract(a: DeviceAmounts, b: DeviceAmounts) -> dict[str, MinorAmounts]:
    """Subtract b from a. The result may go below zero, so that an over-allocation stays visible."""
    return _combined(a, b, -1)


def remaining(a: DeviceAmounts, b: DeviceAmounts) -> dict[str, MinorAmounts]:
    """Subtract b from a, never below zero."""
    left = {kind: remaining_keyed_amounts(minors, b.get(kind, NO_MINORS)) for kind, minors in a.items()}
    return {kind: minors for kind, minors in left.items() if minors}


def limited_to(a: DeviceAmounts, b: DeviceAmounts) -> dict[str, MinorAmounts]:
    """Return the part of a that lies on the devices of b."""
    limited = {
        kind: {m: amounts for m, amounts in minors.items() if m in b.get(kind, {})} for kind, minors in a.items()
    }
    return {kind: minors for kind, minors in limited.items() if minors}


def intersection(a: DeviceAmounts, b: DeviceAmounts) -> dict[str, MinorAmounts]:
    """Return what is in both, by the lesser amount."""
    shared: dict[str, MinorAmounts] = {}
    for kind, minors in a.items():
        theirs = b.get(kind, NO_MINORS)
        found = {
            m: {n: min(v, theirs[m][n]) for n, v in amounts.items() if n in theirs[m]}
            for m, amounts in minors.items()
            if m in theirs
        }
        shared[kind] = found
    return positive_part(shared)


def positive_part(a: DeviceAmounts) -> dict[str, MinorAmounts]:
    """Drop every amount that is zero or below."""
    kept = {
        kind: {m: left for m, amounts in minors.items() if (left := {n: v for n, v in amounts.items() if v > 0})}
        for kind, minors in a.items()
    }
    return {kind: minors for kind, minors in kept.items() if minors}


def _combined(a: DeviceAmounts, b: DeviceAmounts, sign: int) -> dict[str, MinorAmounts]:
    """Add or subtract device amounts; untouched types and minors are shared with `a`."""
    result = dict(a)
    for kind, minors in b.items():
        there = add_keyed_amounts(result.get(kind, NO_MINORS), minors, sign)
        if there:
            result[kind] = there
        else:
            result.pop(kind, None)
    return result


MAX_DEVICE_SCORE = 100


class DeviceScorer(msgspec.Struct, frozen=True):
    """Scores by LeastAllocated, which spreads, or MostAllocated, which packs."""

    packs: bool
    weights: tuple[tuple[str, int], ...]

    def score(self, want: Amounts, total: Amounts, free: Amounts) -> int:
        """Return the weighted mean over the resources that the device has."""
        points = weight_sum = 0
        for name, weight in self.weights:
            capacity = total.get(name, 0)
            if not capacity:
                continue
            weight_sum += weight
            room = free.get(name, 0)
            after = capacity if room > capacity else capacity - room + want.get(name, 0)
            if self.packs:
                points += weight * (min(after, capacity) * MAX_DEVICE_SCORE // capacity)
            elif after <= capacity:
                points += weight * ((capacity - after) * MAX_DEVICE_SCORE // capacity)
        return points // weight_sum if weight_sum else 0


def build_scorer(strategy: ScoringStrategy) -> DeviceScorer:
    return DeviceScorer(strategy.type == MOST_ALLOCATED, tuple((r.name, r.weight or 1) for r in strategy.resources))


def pooled_score(scorer: DeviceScorer, want: Amounts, devices: Iterable[tuple[Amounts, Amounts]]) -> int:
    """Score all devices of one type as if they were one. `devices` holds total and free of each.

    Only one instance's request is counted, however many are requested.
    """
    total: dict[str, int] = {}
    free: dict[str, int] = {}
    for capacity, room in devices:
        for name, _ in scorer.weights:
            if name in capacity:
                total[name] = total.get(name, 0) + capacity[name]
                free[name] = free.get(name, 0) + room.get(name, 0)
    return scorer.score(want, total, free)
