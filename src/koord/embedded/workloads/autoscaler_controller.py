"""The horizontal pod autoscaler: it reads what the pods of a workload use from metrics.k8s.io, and writes its scale."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Any

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import Condition
from koord.api.kubernetes.pod_resources import pod_requests
from koord.api.kubernetes.workload import HORIZONTAL_POD_AUTOSCALERS, HorizontalPodAutoscaler
from koord.api.model import to_dict
from koord.embedded.workloads.autoscaler_plan import (
    MetricUnknown,
    PastRecommendation,
    PodUsage,
    ReplicaRecommendation,
    ScaleDecision,
    ScaleView,
    decide_scale,
    recommendation_of_metric,
)
from koord.embedded.workloads.controller_context import ControllerContext, discover
from koord.embedded.workloads.pod_state import is_pod_active
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import MERGE_PATCH, ApiRequest
from koord.values import resources as vector
from koord.values.timestamp import text as time_text

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
