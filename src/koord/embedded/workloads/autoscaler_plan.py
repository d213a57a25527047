"""The decision of the horizontal pod autoscaler: how many replicas a workload should have for what its pods use.

The rule is Kubernetes': replicas times measured over target, rounded up, unless the ratio is within a tenth of 1. Pods
without a measurement count as using nothing when more would be wanted, and as using their target when fewer would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from koord.api.kubernetes.workload import HorizontalPodAutoscalerSpec, MetricSpec, ScalingRules
from koord.values import resources as vector

TOLERANCE = 0.1
DOWN_WINDOW_S = 300.0  # the highest recommendation of this time is taken before pods are taken away


class PodUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of the workload: what it requests, and what it uses, None where nobody has measured it yet."""

    requested: dict[str, int]  # by resource, in its units
    used: dict[str, int] | None


class ReplicaRecommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The number of replicas that one metric asks for, or why it asks for none."""

    replicas: int
    metric: MetricSpec
    utilization_percent: int | None  # None where the target is an amount
    average_units: int


class MetricUnknown(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    message: str


class PastRecommendation(msgspec.Struct, frozen=True):
    """A number that was recommended, or by which replicas were changed, and when (seconds of a monotonic clock)."""

    at_s: float
    replicas: int


class ScaleView(msgspec.Struct, frozen=True, kw_only=True):
    spec: HorizontalPodAutoscalerSpec
    current: int
    recommendations: tuple[ReplicaRecommendation, ...]  # one for each metric that is known
    all_known: bool
    past: Sequence[PastRecommendation]  # recommendations, oldest first
    changes: Sequence[PastRecommendation]  # how much was added (positive) or taken away (negative)
    now_s: float


class ScaleDecision(msgspec.Struct, frozen=True, kw_only=True):
    replicas: int
    recommended: int  # before windows and limits
    limited_by: str = ""  # TooManyReplicas, TooFewReplicas, ScaleUpLimit, ScaleDownLimit


def recommendation_of_metric(
    metric: MetricSpec, pods: Sequence[PodUsage], current: int
) -> ReplicaRecommendation | MetricUnknown:
    """Return how many replicas one metric asks for."""
    source = metric.resource
    if metric.type != "Resource" or source is None:
        return MetricUnknown(
            reason="InvalidMetricSourceType",
            message=f"the embedded cluster measures CPU and memory of pods only, not metrics of the type {metric.type}",
        )
    name, target = source.name, source.target
    measured = [pod for pod in pods if pod.used is not None and name in pod.used]
    if not measured:
        message = f"no pod has a measurement of {name} yet: nodes report every minute"
        return MetricUnknown(reason="FailedGetResourceMetric", message=message)
    unrequested = target.average_utilization is not None and any(not pod.requested.get(name) for pod in pods)
    if unrequested:
        return MetricUnknown(
            reason="FailedGetResourceMetric", message=f"a pod requests no {name}, of which a share could be taken"
        )
    used = sum(pod.used[name] for pod in measured if pod.used is not None)
    average = used // len(measured)
    if target.average_utilization is not None:
        requested = sum(pod.requested[name] for pod in measured)
        percent = 100 * used // requested
        wanted = [pod.requested[name] * target.average_utilization // 100 for pod in pods]
    else:
        percent = None
        wanted = [_units(metric) for _ in pods]
    replicas = _replicas(pods, name, wanted, current)
    return ReplicaRecommendation(replicas=replicas, metric=metric, utilization_percent=percent, average_units=average)


def _units(metric: MetricSpec) -> int:
    assert metric.resource is not None
    name, amount = metric.resource.name, metric.resource.target.average_value
    return vector.to_units(vector.parse({name: amount}))[name] if amount is not None else 1


def _replicas(pods: Sequence[PodUsage], name: str, wanted: Sequence[int], current: int) -> int:
    def ratio(absent_share: float) -> float:
        used = sum(
            pod.used[name] if pod.used is not None and name in pod.used else absent_share * want
            for pod, want in zip(pods, wanted, strict=True)
        )
        return used / max(sum(wanted), 1)

    known = [at for at, pod in enumerate(pods) if pod.used is not None and name in pod.used]
    first = sum((pods[at].used or {})[name] for at in known) / max(sum(wanted[at] for at in known), 1)
    if abs(first - 1) <= TOLERANCE:
        return current
    corrected = ratio(0.0 if first > 1 else 1.0)
    if abs(corrected - 1) <= TOLERANCE or (corrected > 1) != (first > 1):
        return current  # what is not measured could turn the decision round
    return math.ceil(round(corrected * len(pods), 6))


def decide_scale(view: ScaleView) -> ScaleDecision:
    """Return the number of replicas for what all metrics ask for: the most of them, within windows and limits."""
    spec, current = view.spec, view.current
    recommended = max((recommendation.replicas for recommendation in view.recommendations), default=current)
    if not view.all_known and recommended < current:
        recommended = current  # an unknown metric may need the pods
    behavior = spec.behavior
    up = behavior.scale_up if behavior is not None else None
    down = behavior.scale_down if behavior is not None else None
    replicas = _stabilized(view, recommended, up, down)
    if replicas > current:
        allowed = max(_allowed_up(view, up), current)
        if replicas > allowed:
            return ScaleDecision(
                replicas=min(allowed, spec.max_replicas), recommended=recommended, limited_by="ScaleUpLimit"
            )
    elif replicas < current:
        allowed = min(_allowed_down(view, down), current)
        if replicas < allowed:
            return ScaleDecision(
                replicas=max(allowed, spec.min_replicas), recommended=recommended, limited_by="ScaleDownLimit"
            )
    if replicas > spec.max_replicas:
        return ScaleDecision(replicas=spec.max_replicas, recommended=recommended, limited_by="TooManyReplicas")
    if replicas < spec.min_replicas:
        return ScaleDecision(replicas=spec.min_replicas, recommended=recommended, limited_by="TooFewReplicas")
    return ScaleDecision(replicas=replicas, recommended=recommended)


def _stabilized(view: ScaleView, recommended: int, up: ScalingRules | None, down: ScalingRules | None) -> int:
    """Return the recommendation, unless less was enough a moment ago (to grow) or more was needed (to shrink)."""

    def recent(rules: ScalingRules | None, default_s: float) -> list[int]:
        stated = rules.stabilization_window_seconds if rules is not None else None
        since = view.now_s - (default_s if stated is None else stated)
        return [past.replicas for past in view.past if past.at_s > since]

    least = min((recommended, *recent(up, 0.0)))
    most = max((recommended, *recent(down, DOWN_WINDOW_S)))
    if recommended > view.current:
        return max(least, view.current)
    return min(most, view.current) if recommended < view.current else recommended


def _changed_within(view: ScaleView, period_s: float, sign: int) -> int:
    return sum(
        sign * change.replicas
        for change in view.changes
        if sign * change.replicas > 0 and change.at_s > view.now_s - period_s
    )


def _allowed_up(view: ScaleView, rules: ScalingRules | None) -> int:
    if rules is None or not rules.policies:
        return max(view.current + 4, 2 * view.current)  # Kubernetes' default, once in 15 seconds
    if rules.select_policy == "Disabled":
        return view.current
    found = []
    for policy in rules.policies:
        start = view.current - _changed_within(view, policy.period_seconds, 1)
        found.append(start + (policy.value if policy.type == "Pods" else math.ceil(start * policy.value / 100)))
    return min(found) if rules.select_policy == "Min" else max(found)


def _allowed_down(view: ScaleView, rules: ScalingRules | None) -> int:
    if rules is None or not rules.policies:
        return 0
    if rules.select_policy == "Disabled":
        return view.current
    found = []
    for policy in rules.policies:
        start = view.current + _changed_within(view, policy.period_seconds, -1)
        found.append(start - (policy.value if policy.type == "Pods" else math.floor(start * policy.value / 100)))
    return max(found) if rules.select_policy == "Min" else min(found)
