"""Estimate what a pod will use from its requests, for how long after its start the estimate overrides measurements, and
score how free a node is with it.

Estimates and the thresholds of a node's usage (the cluster's, a node's own, and those a pod must respect) are resource
vectors on common axes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias, cast

import msgspec

from koord.api.annotations import node_codecs, pod_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.node_codecs import parse_raw_allocatable
from koord.api.config.scheduler.koordinator_args import LoadAwareSchedulingArgs
from koord.api.koordinator.protocol import (
    A_LOAD_ESTIMATED_SCALING_FACTORS,
    BURSTABLE,
    L_PRIORITY_CLASS,
    L_QOS_CLASS,
    PROD,
)
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY, tier_resource_name
from koord.api.kubernetes import pod as api_pod
from koord.api.kubernetes.pod_resources import compute_qos_class, pod_limits, resource_amounts
from koord.api.model import QuantityText
from koord.policy.qos import priority_class_with_default
from koord.scheduler.cache.pod_info import PodInfo, PodShape
from koord.scheduler.cache.pod_model import SchedulerPodSpec
from koord.values import duration
from koord.values.quantity import Quantity
from koord.values.resources import from_units, units

# One whole number per resource, in the order of the axes: thousandths for cpu, units for everything else.
ResourceVector: TypeAlias = tuple[int, ...]


class ResourceAxes(msgspec.Struct, frozen=True):
    """The resources that load is measured in, sorted by name, also the order of the checks. Others are ignored."""

    names: tuple[str, ...]

    @staticmethod
    def including(*named: Iterable[str]) -> ResourceAxes:
        """Build axes over cpu, memory and everything that is named."""
        return ResourceAxes(tuple(sorted({CPU, MEMORY}.union(*named))))

    @property
    def zero(self) -> ResourceVector:
        return (0,) * len(self.names)

    def vector_of(self, amounts: Mapping[str, int]) -> ResourceVector:
        return tuple(amounts.get(name, 0) for name in self.names)

    def parse(self, listed: Mapping[str, QuantityText]) -> ResourceVector:
        """Parse a resource list into a vector. Raises QuantityError."""
        return tuple(units(name, Quantity.parse(listed[name])) if name in listed else 0 for name in self.names)

    def to_resource_list(self, vector: Iterable[int]) -> dict[str, str]:
        """Return the vector as a resource list of the API."""
        return {name: str(from_units(name, amount)) for name, amount in zip(self.names, vector, strict=True)}


class AggregationWindow(msgspec.Struct, frozen=True):
    """The aggregation of usage to compare with."""

    kind: str
    nanoseconds: int = 0  # 0: the longest that is reported


class AggregatedThreshold(msgspec.Struct, frozen=True):
    percents: ResourceVector
    window: AggregationWindow


class LoadThresholds(msgspec.Struct, frozen=True):
    """Percentages by resource; 0 is no threshold. An aggregated threshold replaces the plain one altogether."""

    usage: ResourceVector
    prod: ResourceVector
    aggregated: AggregatedThreshold | None = None

    def for_pod(self, *, prod: bool) -> AppliedThresholds | None:
        """Return the thresholds that a pod must respect, given whether it is prod; None when nothing limits it."""
        if prod and any(self.prod):
            return AppliedThresholds(self.prod, prod=True)
        if self.aggregated is not None:
            found = AppliedThresholds(self.aggregated.percents, window=self.aggregated.window)
        else:
            found = AppliedThresholds(self.usage)
        return found if any(found.percents) else None


class AppliedThresholds(msgspec.Struct, frozen=True):
    """The thresholds of one pod on one node, and the usage that they are compared with."""

    percents: ResourceVector
    prod: bool = False  # against what prod pods use
    window: AggregationWindow | None = None

    def amount_bounds(self, total: ResourceVector) -> tuple[int | None, ...]:
        """Return by resource the smallest excessive amount; None without a threshold or without that resource."""
        return tuple(
            exceeding_amount(percent, there) if percent and there else None
            for percent, there in zip(self.percents, total, strict=True)
        )


def build_thresholds(
    axes: ResourceAxes,
    usage: Mapping[str, int],
    prod: Mapping[str, int],
    aggregated: Mapping[str, int],
    kind: str,
    window: str | None,
) -> LoadThresholds:
    return LoadThresholds(axes.vector_of(usage), axes.vector_of(prod), _aggregated(axes, aggregated, kind, window))


def override_from_node(cluster: LoadThresholds, annotations: Mapping[str, str], axes: ResourceAxes) -> LoadThresholds:
    """Apply a node's own thresholds over the cluster's: a stated block replaces its counterpart as a whole."""
    own = node_codecs.parse_usage_thresholds(annotations)
    if own is None or isinstance(own, MalformedAnnotation):
        return cluster
    aggregated = None
    if own.aggregated_usage is not None:
        block = own.aggregated_usage
        try:
            aggregated = _aggregated(
                axes, block.usage_thresholds, block.usage_aggregation_type, block.usage_aggregated_duration
            )
        except duration.DurationError:  # unreadable like any other bad text, and that spoils the whole annotation
            return cluster
    return LoadThresholds(
        axes.vector_of(own.usage_thresholds) if own.usage_thresholds else cluster.usage,
        axes.vector_of(own.prod_usage_thresholds) if own.prod_usage_thresholds else cluster.prod,
        aggregated or cluster.aggregated,
    )


def _aggregated(
    axes: ResourceAxes, percents: Mapping[str, int], kind: str, window: str | None
) -> AggregatedThreshold | None:
    if not percents or not kind:
        return None
    return AggregatedThreshold(
        axes.vector_of(percents), AggregationWindow(kind, duration.parse(window) if window else 0)
    )


def usage_percent(used: int, total: int) -> float:
    return used / total * 100


def exceeding_amount(ceiling: int, total: int) -> int:
    """Return the least amount whose percentage, rounded to the nearest, is above the threshold."""
    edge = ceiling + 0.5
    amount = math.ceil(edge * total / 100)
    while (
        usage_percent(amount - 1, total) >= edge
    ):  # the quotient is a float: it may be off by a few units of a huge total
        amount -= 1
    while usage_percent(amount, total) < edge:
        amount += 1
    return amount


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


class PodEstimate(msgspec.Struct, frozen=True):
    usage: ResourceVector
    prod: bool  # of the prod class, stated or implied
    unreported_usage: (
        ResourceVector | None
    )  # what counts of a pod that nothing is reported of; None for one that is guessed to use nothing

    deltas: ResourceVector  # the same as an account adds it up: for the node, then for prod

    @staticmethod
    def from_usage(usage: ResourceVector, *, prod: bool) -> PodEstimate:
        unreported_usage = tuple([max(amount, 0) for amount in usage]) if any(usage) else None
        return PodEstimate(usage, prod, unreported_usage, (unreported_usage or ()) * (1 + prod))


class PodEstimator:
    """Estimates pods, once per template, labels and (where they count) annotations."""

    def __init__(self, args: LoadAwareSchedulingArgs, axes: ResourceAxes) -> None:
        self._axes = axes
        self._factors = args.estimated_scaling_factors
        self._allows_custom = args.allow_customize_estimation
        self._after_scheduled = args.estimated_seconds_after_pod_scheduled
        self._after_initialized = args.estimated_seconds_after_initialized
        self.has_estimate_window = self._allows_custom or bool(self._after_scheduled or self._after_initialized)
        # Profiles with other arguments guess otherwise of the same shape.
        self._memo = f"LoadAwareScheduling {axes.names} {sorted(self._factors.items())} {self._allows_custom}"

    def signature(self, pod: PodInfo) -> Hashable:
        """Return what is read of a pod beyond its template, here and by the filter."""
        labels = pod.labels
        own = pod.annotations.get(A_LOAD_ESTIMATED_SCALING_FACTORS) if self._allows_custom else None
        return labels.get(L_PRIORITY_CLASS), labels.get(L_QOS_CLASS), pod.is_daemon_pod, own

    def estimate(self, pod: PodInfo) -> PodEstimate:
        memo: dict[Hashable, PodEstimate] | None = pod.shape.memo.get(self._memo)
        if memo is None:
            memo = pod.shape.memo[self._memo] = {}
        key = self.signature(pod)
        known = memo.get(key)
        if known is None:
            known = memo[key] = self._compute(pod)
        return known

    def _compute(self, pod: PodInfo) -> PodEstimate:
        shape = pod.shape
        spec = cast(api_pod.PodSpec, shape.spec)  # only attributes are read that the slim spec has too
        tier = priority_class_with_default(pod.labels, shape.spec.priority, _kube_qos(shape))
        limits = pod_limits(spec) if _is_limited(shape.spec) else {}
        factors = self._factors
        if self._allows_custom:
            factors = {**factors, **pod_codecs.estimated_scaling_factors(pod.annotations)}
        return PodEstimate.from_usage(
            estimate_pod_usage(tier, shape.requests, limits, factors, self._axes), prod=tier == PROD
        )

    def estimate_until(self, pod: PodInfo, assigned_at: float) -> float | None:
        """Return the time that a report must be newer than for its usage of the pod to count; None for any report."""
        scheduled, initialized = self._after_scheduled, self._after_initialized
        if self._allows_custom:
            own = pod_codecs.estimated_seconds_after_scheduled(pod.annotations)
            scheduled = scheduled if own is None else own
            own = pod_codecs.estimated_seconds_after_initialized(pod.annotations)
            initialized = initialized if own is None else own
        if initialized is not None and initialized > 0 and pod.initialized_at is not None:
            return pod.initialized_at + initialized
        return assigned_at + scheduled if scheduled is not None and scheduled > 0 else None


def _is_limited(spec: SchedulerPodSpec) -> bool:
    if spec.resources is not None and spec.resources.limits:
        return True
    return any(container.resources.limits for container in (*spec.containers, *spec.init_containers))


def _kube_qos(shape: PodShape) -> str:
    """Return the QoS class as far as it matters: whether a pod is best-effort, and most pods plainly are not."""
    spec, requests = shape.spec, shape.requests
    if spec.resources is None and not spec.overhead and (requests.get(CPU, 0) > 0 or requests.get(MEMORY, 0) > 0):
        return BURSTABLE
    return compute_qos_class(cast(api_pod.PodSpec, spec))
