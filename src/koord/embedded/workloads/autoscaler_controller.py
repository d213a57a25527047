"""The horizontal pod autoscaler: it reads what the pods of a workload use from metrics.k8s.io, and pure functions
decide how many replicas the workload should have."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import Condition
from koord.api.kubernetes.pod_resources import pod_requests
from koord.api.kubernetes.workload import (
    HORIZONTAL_POD_AUTOSCALERS,
    HorizontalPodAutoscaler,
    HorizontalPodAutoscalerSpec,
    MetricSpec,
    ScalingRules,
)
from koord.api.model import to_dict
from koord.embedded.workloads.controller_context import ControllerContext, discover
from koord.embedded.workloads.pod_control import is_pod_active
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import MERGE_PATCH, ApiRequest
from koord.values import resources as vector
from koord.values.timestamp import text as time_text

# The decision of the horizontal pod autoscaler: how many replicas a workload should have for what its pods use.
#
# The rule is Kubernetes': replicas times measured over target, rounded up, unless the ratio is within a tenth of 1.
# Pods without a measurement count as using nothing when more would be wanted, and as using their target when fewer
# would.

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


PERIOD_S = 15.0
MAX_PAST = 256  # recommendations and changes that are remembered: an hour of them, the longest window there is


class ScaleHistory:
    """ScaleHistory is what was recommended and done for one autoscaler, which windows and policies look back on."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.recommendations: deque[PastRecommendation] = deque(maxlen=MAX_PAST)
        self.changes: deque[PastRecommendation] = deque(maxlen=MAX_PAST)


class AutoscalerController:
    name = "horizontalpodautoscaling"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._autoscalers = context.informers.for_resource(HORIZONTAL_POD_AUTOSCALERS)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._history: dict[ObjectKey, ScaleHistory] = {}
        self._autoscalers.add_event_handler(self._changed)

    def _changed(self, change: ObjectChange[HorizontalPodAutoscaler]) -> None:
        key = object_key(change.object)
        if change.kind == "deleted":
            self._history.pop(key, None)
        elif change.old is None or change.old.metadata.generation != change.object.metadata.generation:
            self._queue.add(key)

    async def run(self) -> None:
        await self._context.run_controller(self.name, self._queue, self.reconcile, (self._autoscalers,), workers=1)

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        autoscaler = self._autoscalers.get(*key)
        if autoscaler is None:
            return Done()
        scale = await self._read_scale(autoscaler)
        if isinstance(scale, MetricUnknown):
            return await self._report_failure(autoscaler, 0, "AbleToScale", scale)
        path, found = scale
        current = found.get("spec", {}).get("replicas", 0)
        if current == 0:
            why = MetricUnknown(reason="ScalingDisabled", message="scaling is disabled since the replica count is zero")
            return await self._report_failure(autoscaler, 0, "ScalingActive", why)
        pods = await self._read_pods(autoscaler.metadata.namespace, found.get("status", {}).get("selector", ""))
        if isinstance(pods, ApiError):
            return Requeue(pods.message)
        answers = [recommendation_of_metric(metric, pods, current) for metric in autoscaler.spec.metrics]
        recommendations = tuple(answer for answer in answers if isinstance(answer, ReplicaRecommendation))
        unknown = next((answer for answer in answers if isinstance(answer, MetricUnknown)), None)
        if not recommendations and unknown is not None:
            return await self._report_failure(autoscaler, current, "ScalingActive", unknown)
        return await self._scale(autoscaler, path, current, recommendations, all_known=unknown is None)

    async def _read_scale(self, autoscaler: HorizontalPodAutoscaler) -> tuple[str, Unstructured] | MetricUnknown:
        target, space = autoscaler.spec.scale_target_ref, autoscaler.metadata.namespace
        served = await discover(self._client)
        if isinstance(served, ApiError):
            return MetricUnknown(reason="FailedGetScale", message=served.message)
        kind = served.find(target.api_version, target.kind)
        if kind is None or "scale" not in kind.subresources:
            message = f"{target.api_version} {target.kind} is no kind that can be scaled"
            return MetricUnknown(reason="FailedGetScale", message=message)
        path = kind.resource.path(space, target.name, "scale")
        answer = await self._client.raw(ApiRequest(method="GET", path=path))
        if not answer.ok:
            return MetricUnknown(reason="FailedGetScale", message=error_from_response(answer).message)
        return path, answer.body.plain()

    async def _read_pods(self, namespace: str, selector: str) -> list[PodUsage] | ApiError:
        listed = await self._client.list(PODS, namespace, labels=selector)
        if isinstance(listed, ApiError):
            return listed
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
        answer = await self._client.raw(ApiRequest(method="GET", path=path, query={"labelSelector": selector}))
        if not answer.ok:
            return error_from_response(answer)
        used: dict[str, dict[str, int]] = {}
        for row in answer.body.plain().get("items") or ():
            total = vector.total(vector.parse(container["usage"]) for container in row["containers"])
            used[row["metadata"]["name"]] = vector.to_units(total)
        return [
            PodUsage(requested=pod_requests(pod.spec), used=used.get(pod.metadata.name))
            for pod in listed.items
            if is_pod_active(pod)
        ]

    async def _scale(
        self,
        autoscaler: HorizontalPodAutoscaler,
        path: str,
        current: int,
        recommendations: tuple[ReplicaRecommendation, ...],
        *,
        all_known: bool,
    ) -> ReconcileResult:
        history = self._history_of(autoscaler)
        now_s = self._context.clock.monotonic()
        view = ScaleView(
            spec=autoscaler.spec,
            current=current,
            recommendations=recommendations,
            all_known=all_known,
            past=tuple(history.recommendations),
            changes=tuple(history.changes),
            now_s=now_s,
        )
        decided = decide_scale(view)
        history.recommendations.append(PastRecommendation(now_s, decided.recommended))
        if decided.replicas != current:
            patch = {"spec": {"replicas": decided.replicas}}
            answer = await self._client.raw(ApiRequest(method="PATCH", path=path, body=patch, content_type=MERGE_PATCH))
            if not answer.ok:
                return Requeue(error_from_response(answer).message)
            history.changes.append(PastRecommendation(now_s, decided.replicas - current))
            note = f"New size: {decided.replicas}; reason: {_cause(recommendations, grows=decided.replicas > current)}"
            about = object_reference(HORIZONTAL_POD_AUTOSCALERS, autoscaler)
            self._context.recorder.record(about, "Normal", "SuccessfulRescale", note, action="Rescale")
        status = self._status(autoscaler, current, decided, recommendations)
        return await self._write_status(autoscaler, status)

    def _history_of(self, autoscaler: HorizontalPodAutoscaler) -> ScaleHistory:
        key, uid = object_key(autoscaler), autoscaler.metadata.uid
        found = self._history.get(key)
        if found is None or found.uid != uid:
            found = self._history[key] = ScaleHistory(uid)
        return found

    def _status(
        self,
        autoscaler: HorizontalPodAutoscaler,
        current: int,
        decided: ScaleDecision,
        recommendations: tuple[ReplicaRecommendation, ...],
    ) -> Unstructured:
        limited = ("True", decided.limited_by, "the recommended number is outside of what the autoscaler permits")
        free = ("False", "DesiredWithinRange", "the desired count is within the acceptable range")
        said = {
            "AbleToScale": ("True", "ReadyForNewScale", "recommended size matches current size"),
            "ScalingActive": ("True", "ValidMetricFound", "the replica count is computed from resource metrics"),
            "ScalingLimited": limited if decided.limited_by else free,
        }
        if decided.replicas != current:
            said["AbleToScale"] = ("True", "SucceededRescale", "the scale was updated to the new size")
        now = self._context.now()
        status: Unstructured = {
            "observedGeneration": autoscaler.metadata.generation,
            "currentReplicas": current,
            "desiredReplicas": decided.replicas,
            "currentMetrics": [_current_metric(recommendation) for recommendation in recommendations],
            "conditions": _conditions(autoscaler, said, now),
        }
        if decided.replicas != current:
            status["lastScaleTime"] = time_text(now)
        return status

    async def _report_failure(
        self, autoscaler: HorizontalPodAutoscaler, current: int, condition: str, why: MetricUnknown
    ) -> ReconcileResult:
        known = next((one for one in autoscaler.status.conditions if one.type == condition), None)
        if known is None or (known.status, known.reason) != ("False", why.reason):
            about = object_reference(HORIZONTAL_POD_AUTOSCALERS, autoscaler)
            self._context.recorder.record(about, "Warning", why.reason, why.message, action="Rescale")
        said = {condition: ("False", why.reason, why.message)}
        status = {"currentReplicas": current, "conditions": _conditions(autoscaler, said, self._context.now())}
        return await self._write_status(autoscaler, status)

    async def _write_status(self, autoscaler: HorizontalPodAutoscaler, status: Unstructured) -> ReconcileResult:
        ended = await self._context.update_status(HORIZONTAL_POD_AUTOSCALERS, autoscaler, status)
        return RequeueAfter(PERIOD_S) if ended is None else ended


def _conditions(
    autoscaler: HorizontalPodAutoscaler, said: dict[str, tuple[str, str, str]], now: datetime
) -> list[dict[str, Any]]:
    """Return the conditions with those that are `said` now; a time changes with its status only."""
    found = {one.type: one for one in autoscaler.status.conditions}
    for kind, (status, reason, message) in said.items():
        old = found.get(kind)
        since = old.last_transition_time if old is not None and old.status == status else now
        found[kind] = Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)
    return [to_dict(one) for one in found.values()]


def _current_metric(recommendation: ReplicaRecommendation) -> dict[str, Any]:
    source = recommendation.metric.resource
    assert source is not None, "only resource metrics are measured"
    current: dict[str, Any] = {"averageValue": str(vector.from_units(source.name, recommendation.average_units))}
    if recommendation.utilization_percent is not None:
        current["averageUtilization"] = recommendation.utilization_percent
    return {"type": "Resource", "resource": {"name": source.name, "current": current}}


def _cause(recommendations: tuple[ReplicaRecommendation, ...], *, grows: bool) -> str:
    if not grows:
        return "All metrics below target"
    most = max(recommendations, key=lambda recommendation: recommendation.replicas)
    source = most.metric.resource
    assert source is not None, "only resource metrics are measured"
    share = "utilization (percentage of request)" if most.utilization_percent is not None else "usage"
    return f"{source.name} resource {share} above target"
