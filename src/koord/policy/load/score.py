"""Score how free a node is: the weighted mean of what would be left, with a weight for the scarcest resource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.policy.load.axes import Axes, Vector

MAX_SCORE = 100


class Weights(msgspec.Struct, frozen=True):
    by_resource: Vector
    dominant: int  # of the scarcest resource, whatever it is
    total: int

    @staticmethod
    def of(axes: Axes, weights: Mapping[str, int], dominant: int = 0) -> Weights:
        by_resource = axes.pick(weights)
        return Weights(by_resource, dominant, sum(by_resource) + dominant)


def score(
    weights: Weights, total: Sequence[int], measured: Sequence[int], coming: Sequence[int], adds: Sequence[int]
) -> int:
    """Score a node with its measured usage, what assigned pods will add, and what this pod adds.

    Elements beyond the shortest sequence do not count. The scarcest is looked for among all resources, those
    without a weight and those that the node lacks included.
    """
    summed, least = 0, MAX_SCORE
    for there, seen, more, own, weight in zip(total, measured, coming, adds, weights.by_resource, strict=False):
        left = there - seen - more - own
        share = left * MAX_SCORE // there if there and left > 0 else 0
        summed += share * weight
        if share < least:
            least = share
    return (summed + weights.dominant * least) // weights.total if weights.total else 0
