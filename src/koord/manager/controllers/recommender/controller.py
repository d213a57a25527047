"""Learns from every NodeMetric, writes recommendations once a minute, and checkpoints the histograms.

The checkpoint is an annotation of the Recommendation, written every ten minutes: it survives restarts, moves with the
leader, goes with the object, and needs no other storage. The status is a pure function of the estimate.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS, RECOMMENDATIONS
from koord.api.koordinator.profiles import Recommendation, RecommendationStatus
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Container, Pod
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import decode, encode
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError
from koord.manager.controllers.recommender.workload_model import (
    TargetIndex,
    UnsupportedTarget,
    UsageSample,
    WorkloadCheckpoint,
    WorkloadEstimate,
    WorkloadModel,
    WorkloadModelSettings,
    parse_target,
)
from koord.manager.reconcile_loop import ManagerContext, ReconcileLoop
from koord.telemetry.clock import now
from koord.values import resources as vector
from koord.values import timestamp
from koord.values.quantity import ZERO, Format, Quantity, QuantityError
from koord.values.resources import CPU, MEMORY

_LOG = logging.getLogger(__name__)

A_RECOMMENDATION_HISTORY = "analysis.koordinator.sh/history"
STATUS_PERIOD_S = 60.0
CHECKPOINT_PERIOD_S = 600.0


class RecommendationCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The checkpoint annotation. A checkpoint of another target is discarded."""

    target: str
    checkpoint: WorkloadCheckpoint


class _RecommendationState(msgspec.Struct):
    target: str
    model: WorkloadModel
    pod: Pod | None = None  # the last pod that was sampled: its containers are the ones to speak of
    checkpointed_at_s: float = 0.0
    checkpointed_sample_s: float = 0.0


class RecommenderController:
    name: ClassVar[str] = "recommender"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("analysis.koordinator.sh", ("recommendations",), (*READ_VERBS, "patch")),
        RbacRule("analysis.koordinator.sh", ("recommendations/status",), ("patch",)),
        RbacRule("slo.koordinator.sh", ("nodemetrics",), READ_VERBS),
        RbacRule("", ("pods",), READ_VERBS),
    )

    def __init__(self, context: ManagerContext, settings: WorkloadModelSettings = WorkloadModelSettings()) -> None:  # noqa: B008 - a frozen value
        self._client = context.client
        self._clock = context.clock
        self._settings = settings
        self._recommendations = context.informers.for_resource(RECOMMENDATIONS)
        self._metrics = context.informers.for_resource(NODE_METRICS)
        self._pods = context.informers.for_resource(PODS)
        self._target_index = TargetIndex()
        self._states: dict[ObjectKey, _RecommendationState] = {}
        self._loop: ReconcileLoop[ObjectKey] = ReconcileLoop(self.name, context.clock, self.reconcile)

    async def start(self) -> None:
        """Start the controller, also after `stop`: another replica may have learnt in between."""
        self._target_index, self._states = TargetIndex(), {}
        # Samples need the pods and the Recommendations that they belong to.
        self._loop.start(
            (self._recommendations, self._pods, self._metrics),
            ((self._recommendations, self._on_recommendation), (self._metrics, self._on_metric)),
        )

    async def stop(self) -> None:
        await self._loop.stop()

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        recommendation, known = self._recommendations.get(*key), self._states.get(key)
        if recommendation is None or known is None or recommendation.metadata.deletion_timestamp is not None:
            return Done()
        for write in (self._write_status, self._write_checkpoint):
            refused = await write(recommendation, known)
            if refused is not None:
                return Done() if refused.not_found else Requeue(str(refused))
        return RequeueAfter(STATUS_PERIOD_S)

    def explain(self, key: ObjectKey) -> WorkloadEstimate | None:
        """Return the numbers behind the status."""
        known = self._states.get(key)
        return known.model.estimate() if known is not None else None

    async def _write_status(self, recommendation: Recommendation, known: _RecommendationState) -> ApiError | None:
        target, estimate = parse_target(recommendation), known.model.estimate()
        moment = now(self._clock)
        unsupported = target.why if isinstance(target, UnsupportedTarget) else ""
        told = build_conditions(estimate, unsupported, recommendation.status, moment)
        statuses = container_statuses(estimate, known.pod) if estimate is not None and known.pod else None
        patch = build_status_patch(recommendation.status, statuses, told, moment)
        if patch is None:
            return None
        answer = await self._client.patch_object(
            RECOMMENDATIONS, recommendation, patch, kind="merge", subresource="status"
        )
        return answer if isinstance(answer, ApiError) else None

    async def _write_checkpoint(self, recommendation: Recommendation, known: _RecommendationState) -> ApiError | None:
        if (
            known.model.last_s <= known.checkpointed_sample_s
            or self._clock.monotonic() - known.checkpointed_at_s < CHECKPOINT_PERIOD_S
        ):
            return None
        text = encode(RecommendationCheckpoint(target=known.target, checkpoint=known.model.save())).decode()
        kept_sample_s = known.model.last_s
        patch = {"metadata": {"annotations": {A_RECOMMENDATION_HISTORY: text}}}
        answer = await self._client.patch_object(RECOMMENDATIONS, recommendation, patch, kind="merge")
        if isinstance(answer, ApiError):
            return answer
        known.checkpointed_at_s, known.checkpointed_sample_s = self._clock.monotonic(), kept_sample_s
        return None

    # -- news

    def _on_recommendation(self, change: ObjectChange[Recommendation]) -> None:
        key = object_key(change.object)
        if change.kind == "deleted":
            self._target_index.drop(key)
            self._states.pop(key, None)
            return
        old = change.old
        if old is not None and (old.metadata.uid, old.metadata.generation) == (
            change.object.metadata.uid,
            change.object.metadata.generation,
        ):
            return  # our own writes
        self._target_index.put(key, parse_target(change.object))
        target = encode(change.object.spec.target).decode()
        known = self._states.get(key)
        if (
            known is None
            or known.target != target
            or (old is not None and old.metadata.uid != change.object.metadata.uid)
        ):
            self._states[key] = self._restore_state(change.object, target)
        self._loop.queue.add(key)

    def _restore_state(self, recommendation: Recommendation, target: str) -> _RecommendationState:
        text = recommendation.metadata.annotations.get(A_RECOMMENDATION_HISTORY)
        if text is None:
            return _RecommendationState(
                target, WorkloadModel(self._settings), checkpointed_at_s=self._clock.monotonic()
            )
        try:
            kept = decode(text.encode(), RecommendationCheckpoint)
        except msgspec.DecodeError as error:
            _LOG.warning("recommendation %s/%s begins anew: %s", *object_key(recommendation), error)
            return _RecommendationState(target, WorkloadModel(self._settings))
        if kept.target != target:
            return _RecommendationState(target, WorkloadModel(self._settings))
        model = WorkloadModel.from_checkpoint(kept.checkpoint, self._settings)
        return _RecommendationState(
            target, model, checkpointed_at_s=self._clock.monotonic(), checkpointed_sample_s=model.last_s
        )

    def _on_metric(self, change: ObjectChange[NodeMetric]) -> None:
        report = change.object.status
        if change.kind == "deleted" or report.update_time is None or not len(self._target_index):
            return
        if change.old is not None and change.old.status.update_time == report.update_time:
            return
        node, at = change.object.metadata.name, report.update_time.timestamp()
        samples: dict[ObjectKey, list[UsageSample]] = {}
        for metric in report.pods_metric:
            pod = self._pods.get(metric.namespace, metric.name)
            if pod is None:
                continue
            for key in self._target_index.recommendations_of_pod(pod):
                known = self._states[key]
                if known.model.has_seen_report(node, at):
                    continue
                try:
                    used = vector.parse(metric.pod_usage.resources)
                except QuantityError as error:
                    _LOG.warning("node %s reports an unreadable use of pod %s: %s", node, metric.name, error)
                    break
                cpu, memory = float(used.get(CPU, ZERO)), float(used.get(MEMORY, ZERO))
                samples.setdefault(key, []).append(UsageSample(node=node, cpu_cores=cpu, memory_bytes=memory, at=at))
                known.pod = pod
        for key, taken in samples.items():
            self._states[key].model.add_samples(node, taken)


_MIB = 2**20
_FULL_CONFIDENCE = 1.0
_MIN_REQUEST = {CPU: 25, MEMORY: 5}  # thousandths of a core, mebibytes: the smallest that histograms tell apart


def container_statuses(estimate: WorkloadEstimate, pod: Pod) -> list[Unstructured]:
    """Divide the pod's estimate by the containers' requests; evenly where none requests anything."""
    containers = pod.spec.containers
    cpu = _divide_by_requests(estimate.cpu_milli, containers, CPU)
    memory = _divide_by_requests(estimate.memory_bytes // _MIB, containers, MEMORY)
    return [
        {
            "containerName": container.name,
            "resources": {
                CPU: str(Quantity.from_milli(cpu[index])),
                MEMORY: str(Quantity.from_value(memory[index] * _MIB, Format.BINARY_SI)),
            },
        }
        for index, container in enumerate(containers)
    ]


def build_conditions(
    estimate: WorkloadEstimate | None, unsupported: str, old: RecommendationStatus, now: datetime
) -> list[Unstructured]:
    """Return the conditions. Messages hold no figures: one that changes each minute would be written each minute."""
    if unsupported:
        told = [("ConfigUnsupported", "True", "TargetUnsupported", unsupported)]
    elif estimate is None:
        told = [("NoObjectsMatched", "True", "NoSamples", "no use of a matching pod has been reported")]
    else:
        low = estimate.confidence < _FULL_CONFIDENCE
        reason, words = (
            ("LittleHistory", "less than a day of samples") if low else ("EnoughHistory", "a day of samples")
        )
        told = [("LowConfidence", "True" if low else "False", reason, words)]
    made: list[Unstructured] = []
    for kind, state, reason, message in told:
        known = next((one for one in old.conditions if one.type == kind and one.status == state), None)
        since = known.last_transition_time if known is not None and known.last_transition_time else now
        made.append(
            {
                "type": kind,
                "status": state,
                "reason": reason,
                "message": message,
                "lastTransitionTime": timestamp.text(since),
            }
        )
    return made


def build_status_patch(
    old: RecommendationStatus, statuses: Sequence[Unstructured] | None, told: list[Unstructured], now: datetime
) -> Unstructured | None:
    """Return the merge patch of the status, or None when it is up to date. None for `statuses` keeps the last ones."""
    known = [
        {"containerName": one.container_name, "resources": vector.to_wire(vector.parse(one.resources))}
        for one in (old.pod_status.container_statuses if old.pod_status else ())
    ]
    said = [(one.type, one.status, one.reason, one.message) for one in old.conditions]
    saying = [(one["type"], one["status"], one["reason"], one["message"]) for one in told]
    patch: Unstructured = {}
    if statuses is not None and known != list(statuses):
        patch["podStatus"] = {"containerStatuses": list(statuses)}
        patch["updateTime"] = timestamp.text(now)
    if said != saying:
        patch["conditions"] = told
    return {"status": patch} if patch else None


def _divide_by_requests(total: int, containers: Sequence[Container], resource: str) -> list[int]:
    """Round each part up and to its minimum: too little breaks a container, a unit too much does not."""
    asked = [
        vector.units(resource, vector.parse(one.resources.requests).get(resource, Quantity.from_value(0)))
        for one in containers
    ]
    whole = sum(asked)
    if not whole:
        asked, whole = [1] * len(containers), len(containers)
    return [max(math.ceil(total * part / whole), _MIN_REQUEST[resource]) for part in asked]
