"""Estimate what a pod will use from its requests, and score how free a node is with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.node_codecs import parse_raw_allocatable
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY, tier_resource_name
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.scheduler.plugins.load_aware.thresholds import ResourceAxes, ResourceVector

# A pod that states neither request nor limit is guessed to use this much; of the other tiers, nothing.
DEFAULT_CPU_MILLI = 250
DEFAULT_MEMORY_BYTES = 200 << 20
_DEFAULT_USAGE = {
    CPU: DEFAULT_CPU_MILLI,
    BATCH_CPU: DEFAULT_CPU_MILLI,
    MEMORY: DEFAULT_MEMORY_BYTES,
    BATCH_MEMORY: DEFAULT_MEMORY_BYTES,
}


def estimate_pod_usage(
    priority_class: str,
    requests: Mapping[str, int],
    limits: Mapping[str, int],
    factors: Mapping[str, int],
    axes: ResourceAxes,
) -> ResourceVector:
    """Estimate usage. `factors` are percentages of the larger of request and limit; a limit is never exceeded.

    Batch and mid pods request under names of their own, but what they use is cpu and memory.
    """
    return tuple(
        _estimate_resource(tier_resource_name(priority_class, name) or "", requests, limits, factors[name])
        if name in factors
        else 0
        for name in axes.names
    )


def _estimate_resource(name: str, requests: Mapping[str, int], limits: Mapping[str, int], factor: int) -> int:
    limit = limits.get(name, 0)
    stated = max(limit, requests.get(name, 0))
    if not stated:
        return _DEFAULT_USAGE.get(name, 0)
    guess = round_half_away(stated * factor / 100)
    return min(guess, limit) if limit > 0 else guess


def round_half_away(value: float) -> int:
    """Round to the nearest integer, halves away from zero. Adding a half and truncating would err just below it."""
    whole = math.trunc(value)
    return whole + (value - whole >= 0.5) - (whole - value >= 0.5)


def unamplified_capacity(
    allocatable: Mapping[str, int], annotations: Mapping[str, str], axes: ResourceAxes
) -> ResourceVector:
    """Return the capacity before amplification: load is measured on the real machine. Unreadable is missing."""
    raw = parse_raw_allocatable(annotations)
    if raw is None or isinstance(raw, MalformedAnnotation):
        return axes.vector_of(allocatable)
    return axes.vector_of({**allocatable, **resource_amounts(raw)})


MAX_LOAD_SCORE = 100


class LoadScoreWeights(msgspec.Struct, frozen=True):
    by_resource: ResourceVector
    dominant: int  # of the scarcest resource, whatever it is
    total: int

    @staticmethod
    def from_axes(axes: ResourceAxes, weights: Mapping[str, int], dominant: int = 0) -> LoadScoreWeights:
        by_resource = axes.vector_of(weights)
        return LoadScoreWeights(by_resource, dominant, sum(by_resource) + dominant)


def load_score(
    weights: LoadScoreWeights, total: Sequence[int], measured: Sequence[int], coming: Sequence[int], adds: Sequence[int]
) -> int:
    """Score a node with its measured usage, what assigned pods will add, and what this pod adds.

    Elements beyond the shortest sequence do not count. The scarcest is looked for among all resources, those
    without a weight and those that the node lacks included.
    """
    summed, least = 0, MAX_LOAD_SCORE
    for there, seen, more, own, weight in zip(total, measured, coming, adds, weights.by_resource, strict=False):
        left = there - seen - more - own
        share = left * MAX_LOAD_SCORE // there if there and left > 0 else 0
        summed += share * weight
        if share < least:
            least = share
    return (summed + weights.dominant * least) // weights.total if weights.total else 0
