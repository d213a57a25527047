"""Admits pods against the rest of their quota, and writes the new sum before it allows them.

Pods of one quota are evaluated in groups, one group at a time: a burst of a thousand pods costs few writes, and none is
admitted on a sum that another one has used. Whether a request fits is decided in webhooks.quota.evaluation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from datetime import datetime
from random import Random
from typing import ClassVar

import msgspec

from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS
from koord.api.koordinator.protocol import A_QUOTA_CHILD_REQUEST
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import convert
from koord.kube.informer.cache import ObjectKey, object_key
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.manager.quota_topology_cache import QuotaTopologyCache
from koord.manager.reconcile_loop import ManagerContext
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from koord.manager.webhooks.quota import evaluation
from koord.telemetry.clock import now
from koord.values import resources as vector

_LOG = logging.getLogger(__name__)

EVALUATION_TIMEOUT_S = 10.0
MAX_CONCURRENT_QUOTAS = 16  # quotas that are worked on at the same time
_MAX_CACHED_WRITES = 100
_MIN_TRIES = 3


class EvaluatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    max_retries: int = 3
    jitter_s: float = 0.0
    max_total_jitter_s: float = 1.0


class _PendingPod(msgspec.Struct, eq=False):
    pod: Pod
    dry_run: bool
    verdict: asyncio.Future[AdmissionDecision]


class QuotaEvaluator:
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.sigs.k8s.io", ("elasticquotas",), (*READ_VERBS, "patch")),
    )

    def __init__(
        self,
        context: ManagerContext,
        quotas: QuotaTopologyCache,
        options: EvaluatorOptions = EvaluatorOptions(),  # noqa: B008 - a frozen value
        rng: Random | None = None,
    ) -> None:
        self._client = context.client
        self._clock = context.clock
        self._gate = context.settings.is_gate_enabled
        self._quotas = quotas
        self._options = options
        self._rng = rng or Random()
        self._waiting: dict[ObjectKey, list[_PendingPod]] = {}
        self._tasks: dict[ObjectKey, asyncio.Task[None]] = {}
        self._concurrency = asyncio.Semaphore(MAX_CONCURRENT_QUOTAS)
        self._written: OrderedDict[ObjectKey, ElasticQuota] = OrderedDict()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def admit(self, request: AdmissionRequest) -> AdmissionDecision:
        """Evaluate the request. Call it last: what it admits is counted at once."""
        if not self._gate("EnableQuotaAdmission") or request.sub_resource or request.object is None:
            return AdmissionAllowed()
        try:
            pod = convert(request.object, Pod)
            old = convert(request.old_object, Pod) if request.old_object is not None else None
        except msgspec.ValidationError as error:
            return AdmissionDenied(400, str(error))
        name = self._quota_of(pod, request.namespace)
        if request.operation == "UPDATE":
            if not self._gate("EnableQuotaAdmissionOnUpdate"):
                return AdmissionAllowed()
            if old is not None and self._quota_of(old, request.namespace) == name:
                return AdmissionAllowed()
        elif request.operation != "CREATE":
            return AdmissionAllowed()
        if not evaluation.is_limited_quota(name):
            return AdmissionAllowed()
        found = self._quotas.quotas_named(name)
        if not found:
            return AdmissionDenied(400, f"elastic quota {name} not found")
        if len(found) > 1:
            return AdmissionDenied(400, f"more than one elastic quota {name} found")
        return await self._evaluate_pod(object_key(found[0]), pod, bool(request.dry_run))

    def _quota_of(self, pod: Pod, namespace: str) -> str:
        return self._quotas.topology.quota_of(
            pod.metadata.labels, pod.metadata.namespace or namespace, default=not self._gate("DisableDefaultQuota")
        )

    async def _evaluate_pod(self, key: ObjectKey, pod: Pod, dry_run: bool) -> AdmissionDecision:
        waiter = _PendingPod(pod, dry_run, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, []).append(waiter)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._serve_quota(key), name=f"quota-{key[1]}")
        try:
            async with asyncio.timeout(EVALUATION_TIMEOUT_S):
                return await waiter.verdict
        except TimeoutError:
            # A cancelled future is skipped by the group that has not reached it yet.
            return AdmissionDenied(400, "Internal error occurred: elastic quota evaluation timed out")

    async def _serve_quota(self, key: ObjectKey) -> None:
        try:
            async with self._concurrency:
                while group := self._waiting.pop(key, []):
                    await self._evaluate_group(key, [one for one in group if not one.verdict.done()])
        finally:
            # Nothing waits between the last look at the queue and this: whoever comes later starts a new task.
            del self._tasks[key]

    async def _evaluate_group(self, key: ObjectKey, group: list[_PendingPod]) -> None:
        try:
            await self._decide_and_write(key, group)
        except TRANSIENT_ERRORS as error:
            _resolve_all(group, AdmissionDenied(400, f"Internal error occurred: {error}"))
        except Exception as error:  # noqa: BLE001  it is logged, and each pod of the group gets an answer
            _LOG.exception("evaluating %d pods of quota %s failed", len(group), key[1])
            _resolve_all(group, AdmissionDenied(400, f"Internal error occurred: {error!r}"))

    async def _decide_and_write(self, key: ObjectKey, group: list[_PendingPod]) -> None:
        """Decide on the whole group and write once; start again with fresh figures on a conflict."""
        tries = max(_MIN_TRIES, min(self._options.max_retries, _MIN_TRIES + max(len(group), 1).bit_length() - 1))
        slept = 0.0
        quota = self._latest_quota(key)
        refused: ApiError | None = None
        for attempt in range(tries + 1):
            if attempt:
                # Half of the jitter at least, so that a busy quota is given time.
                pause = self._options.jitter_s * self._rng.uniform(0.5, 1.0)
                pause = min(pause, self._options.max_total_jitter_s - slept)
                slept += max(pause, 0.0)
                await self._clock.sleep(max(pause, 0.0))
                answer = await self._client.get(ELASTIC_QUOTAS, key[1], key[0])
                quota = None if isinstance(answer, ApiError) else answer
            if quota is None:
                _resolve_all(group, AdmissionDenied(400, f"elastic quota {key[1]} not found"))
                return
            total, admitted = self._decide(quota, group)
            refused = await self._write(quota, total) if total is not None else None
            if refused is None:
                _resolve_all(admitted, AdmissionAllowed())
                return
            group = admitted
            if not refused.conflict:
                break
        _resolve_all(
            group,
            AdmissionDenied(400, f"Internal error occurred: elastic quota {key[1]} could not be written: {refused}"),
        )

    def _decide(self, quota: ElasticQuota, group: list[_PendingPod]) -> tuple[str | None, list[_PendingPod]]:
        """Deny the pods that do not fit; return the sum to write and the pods that it admits."""
        moment: datetime = now(self._clock)
        transform = self._gate("ElasticQuotaEvaluationTransformPod") and self._gate("ReplaceResourcesTransformer")
        ignore_overhead = self._gate("ElasticQuotaIgnorePodOverhead")
        total: str | None = None
        admitted: list[_PendingPod] = []
        for waiter in group:
            if waiter.verdict.done():
                continue
            request = evaluation.pod_quota_request(
                waiter.pod, quota, moment, transform=transform, ignore_overhead=ignore_overhead
            )
            match evaluation.evaluate(quota, request):
                case evaluation.QuotaExceeded(message):
                    _resolve_all([waiter], AdmissionDenied(400, message))
                case MalformedAnnotation() as spoilt:
                    _resolve_all([waiter], AdmissionDenied(400, str(spoilt)))
                case evaluation.QuotaFits(None):
                    admitted.append(waiter)
                case evaluation.QuotaFits(sums):
                    admitted.append(waiter)
                    if not waiter.dry_run:
                        total = dump_json(vector.to_wire(sums or {}))
                        quota = _with_request(quota, total)
        return total, admitted

    async def _write(self, quota: ElasticQuota, total: str) -> ApiError | None:
        patch = {"metadata": {"annotations": {A_QUOTA_CHILD_REQUEST: total}}}
        answer = await self._client.patch_object(ELASTIC_QUOTAS, quota, patch, kind="merge", exactly=True)
        if isinstance(answer, ApiError):
            return answer
        key = object_key(answer)
        self._written[key] = answer
        self._written.move_to_end(key)
        if len(self._written) > _MAX_CACHED_WRITES:
            self._written.popitem(last=False)
        return None

    def _latest_quota(self, key: ObjectKey) -> ElasticQuota | None:
        """Return the quota from the informer, or the own last write where that is newer."""
        seen = next((one for one in self._quotas.quotas_named(key[1]) if object_key(one) == key), None)
        mine = self._written.get(key)
        if seen is None or mine is None or mine.metadata.uid != seen.metadata.uid:
            return seen
        return mine if _resource_version(mine) > _resource_version(seen) else seen


def _resolve_all(waiters: list[_PendingPod], verdict: AdmissionDecision) -> None:
    for waiter in waiters:
        if not waiter.verdict.done():
            waiter.verdict.set_result(verdict)


def _with_request(quota: ElasticQuota, total: str) -> ElasticQuota:
    annotations = {**quota.metadata.annotations, A_QUOTA_CHILD_REQUEST: total}
    return msgspec.structs.replace(quota, metadata=msgspec.structs.replace(quota.metadata, annotations=annotations))


def _resource_version(quota: ElasticQuota) -> int:
    text = quota.metadata.resource_version
    return int(text) if text.isdecimal() else 0
