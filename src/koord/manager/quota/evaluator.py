"""Admits pods against the rest of their quota, and writes the new sum before it allows them.

Pods of one quota are evaluated in groups, one group at a time: a burst of a thousand pods costs few writes,
and none
is admitted on a sum that another one has used. Whether a request fits is decided in
webhooks.quota.evaluation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from datetime import datetime
from random import Random
from typing import ClassVar

import msgspec

from koord.api.admission import AdmissionRequest
from koord.api.annotations import quota_resources
from koord.api.annotations.codec import Malformed
from koord.api.custom import ELASTIC_QUOTAS
from koord.api.model import convert
from koord.api.pod import Pod
from koord.api.protocol import A_QUOTA_CHILD_REQUEST
from koord.api.right import READ, Right
from koord.api.sigs_scheduling import ElasticQuota
from koord.kube.cache import Key, key_of
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused
from koord.manager.quota.live import LiveQuotas
from koord.manager.webhooks.quota.evaluation import Exceeds, Fits, evaluate, is_limited, request_of
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.manager.world import World
from koord.telemetry.clock import now
from koord.values import resources as vector

_LOG = logging.getLogger(__name__)

PATIENCE_S = 10.0
GROUPS = 16  # quotas that are worked on at the same time
_REMEMBERED = 100
_LEAST_TRIES = 3


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of the evaluator."""

    max_retries: int = 3
    jitter_s: float = 0.0
    max_total_jitter_s: float = 1.0


class _Waiter(msgspec.Struct, eq=False):
    pod: Pod
    dry_run: bool
    verdict: asyncio.Future[Verdict]


class QuotaEvaluator:
    rights: ClassVar[tuple[Right, ...]] = (Right("scheduling.sigs.k8s.io", ("elasticquotas",), (*READ, "patch")),)

    def __init__(
        self,
        world: World,
        quotas: LiveQuotas,
        effort: Effort = Effort(),  # noqa: B008 - a frozen value
        rng: Random | None = None,
    ) -> None:
        self._client = world.client
        self._clock = world.clock
        self._gate = world.settings.gate
        self._quotas = quotas
        self._effort = effort
        self._rng = rng or Random()
        self._waiting: dict[Key, list[_Waiter]] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(GROUPS)
        self._written: OrderedDict[Key, ElasticQuota] = OrderedDict()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def admit(self, request: AdmissionRequest) -> Verdict:
        """Evaluate the request. Call it last: what it admits is counted at once."""
        if not self._gate("EnableQuotaAdmission") or request.sub_resource or request.object is None:
            return Allowed()
        try:
            pod = convert(request.object, Pod)
            old = convert(request.old_object, Pod) if request.old_object is not None else None
        except msgspec.ValidationError as error:
            return Denied(400, str(error))
        name = self._quota_of(pod, request.namespace)
        if request.operation == "UPDATE":
            if not self._gate("EnableQuotaAdmissionOnUpdate"):
                return Allowed()
            if old is not None and self._quota_of(old, request.namespace) == name:
                return Allowed()
        elif request.operation != "CREATE":
            return Allowed()
        if not is_limited(name):
            return Allowed()
        found = self._quotas.objects_named(name)
        if not found:
            return Denied(400, f"elastic quota {name} not found")
        if len(found) > 1:
            return Denied(400, f"more than one elastic quota {name} found")
        return await self._evaluated(key_of(found[0]), pod, bool(request.dry_run))

    def _quota_of(self, pod: Pod, namespace: str) -> str:
        return self._quotas.topology.quota_of(
            pod.metadata.labels, pod.metadata.namespace or namespace, default=not self._gate("DisableDefaultQuota")
        )

    async def _evaluated(self, key: Key, pod: Pod, dry_run: bool) -> Verdict:
        waiter = _Waiter(pod, dry_run, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, []).append(waiter)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._serve(key), name=f"quota-{key[1]}")
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await waiter.verdict
        except TimeoutError:
            # A cancelled future is skipped by the group that has not reached it yet.
            return Denied(400, "Internal error occurred: elastic quota evaluation timed out")

    async def _serve(self, key: Key) -> None:
        try:
            async with self._slots:
                while group := self._waiting.pop(key, []):
                    await self._settle(key, [one for one in group if not one.verdict.done()])
        finally:
            # Nothing waits between the last look at the queue and this: whoever comes later starts a new task.
            del self._tasks[key]

    async def _settle(self, key: Key, group: list[_Waiter]) -> None:
        try:
            await self._round(key, group)
        except OUTAGE as error:
            _answer(group, Denied(400, f"Internal error occurred: {error}"))
        except Exception as error:  # noqa: BLE001  it is logged, and each pod of the group gets an answer
            _LOG.exception("evaluating %d pods of quota %s failed", len(group), key[1])
            _answer(group, Denied(400, f"Internal error occurred: {error!r}"))

    async def _round(self, key: Key, group: list[_Waiter]) -> None:
        """Decide on the whole group and write once; start again with fresh figures on a conflict."""
        tries = max(_LEAST_TRIES, min(self._effort.max_retries, _LEAST_TRIES + max(len(group), 1).bit_length() - 1))
        slept = 0.0
        quota = self._latest(key)
        refused: Refused | None = None
        for attempt in range(tries + 1):
            if attempt:
                pause = min(self._rng.random() * self._effort.jitter_s, self._effort.max_total_jitter_s - slept)
                slept += max(pause, 0.0)
                await self._clock.sleep(max(pause, 0.0))
                answer = await self._client.get(ELASTIC_QUOTAS, key[1], key[0])
                quota = None if isinstance(answer, Refused) else answer
            if quota is None:
                _answer(group, Denied(400, f"elastic quota {key[1]} not found"))
                return
            total, admitted = self._decide(quota, group)
            refused = await self._write(quota, total) if total is not None else None
            if refused is None:
                _answer(admitted, Allowed())
                return
            group = admitted
            if not refused.conflict:
                break
        _answer(group, Denied(400, f"Internal error occurred: elastic quota {key[1]} could not be written: {refused}"))

    def _decide(self, quota: ElasticQuota, group: list[_Waiter]) -> tuple[str | None, list[_Waiter]]:
        """Deny the pods that do not fit; return the sum to write and the pods that it admits."""
        moment: datetime = now(self._clock)
        transform = self._gate("ElasticQuotaEvaluationTransformPod")
        total: str | None = None
        admitted: list[_Waiter] = []
        for waiter in group:
            if waiter.verdict.done():
                continue
            match evaluate(quota, request_of(waiter.pod, quota, moment, transform=transform)):
                case Exceeds(message):
                    _answer([waiter], Denied(400, message))
                case Malformed() as spoilt:
                    _answer([waiter], Denied(400, str(spoilt)))
                case Fits(None):
                    admitted.append(waiter)
                case Fits(sums):
                    admitted.append(waiter)
                    if not waiter.dry_run:
                        total = quota_resources.dump(vector.to_wire(sums or {}))
                        quota = _with_request(quota, total)
        return total, admitted

    async def _write(self, quota: ElasticQuota, total: str) -> Refused | None:
        meta = quota.metadata
        patch = {"metadata": {"annotations": {A_QUOTA_CHILD_REQUEST: total}}}
        answer = await self._client.patch(
            ELASTIC_QUOTAS,
            meta.name,
            patch,
            meta.namespace,
            kind="merge",
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
        if isinstance(answer, Refused):
            return answer
        key = key_of(answer)
        self._written[key] = answer
        self._written.move_to_end(key)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        return None

    def _latest(self, key: Key) -> ElasticQuota | None:
        """Return the quota from the informer, or the own last write where that is newer."""
        seen = next((one for one in self._quotas.objects_named(key[1]) if key_of(one) == key), None)
        mine = self._written.get(key)
        if seen is None or mine is None or mine.metadata.uid != seen.metadata.uid:
            return seen
        return mine if _version(mine) > _version(seen) else seen


def _answer(waiters: list[_Waiter], verdict: Verdict) -> None:
    for waiter in waiters:
        if not waiter.verdict.done():
            waiter.verdict.set_result(verdict)


def _with_request(quota: ElasticQuota, total: str) -> ElasticQuota:
    annotations = {**quota.metadata.annotations, A_QUOTA_CHILD_REQUEST: total}
    return msgspec.structs.replace(quota, metadata=msgspec.structs.replace(quota.metadata, annotations=annotations))


def _version(quota: ElasticQuota) -> int:
    text = quota.metadata.resource_version
    return int(text) if text.isdecimal() else 0
