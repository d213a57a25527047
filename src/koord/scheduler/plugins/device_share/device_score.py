"""Score devices, or all devices of a node, against a request, as integers from 0 to 100."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.api.config.scheduler.plugin_args import MOST_ALLOCATED, ScoringStrategy
from koord.scheduler.plugins.device_share.device_amounts import Amounts

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
