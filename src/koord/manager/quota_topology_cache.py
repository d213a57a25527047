"""Keeps the quota topology in step with the cluster, and answers the webhooks from it.

Every replica has one, since all of them serve webhooks. The checks themselves are in webhooks.quota.

QuotaEvaluator admits pods against the rest of their quota, and writes the new sum before it allows them. Pods of one
quota are evaluated in groups, one group at a time: a burst of a thousand pods costs few writes, and none is admitted
on a sum that another one has used. Whether a request fits is decided in webhooks.quota.admission.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import datetime
from random import Random
from typing import Any, ClassVar

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.koordinator.profiles import ElasticQuotaProfile
from koord.api.koordinator.protocol import A_QUOTA_CHILD_REQUEST, A_QUOTA_SHARED_WEIGHT, L_QUOTA_NAME, L_QUOTA_TREE_ID
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import convert
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.informer.informer import HandlerRegistration
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.manager.reconcile_loop import ManagerContext
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from koord.manager.webhooks.quota import admission, topology
from koord.manager.webhooks.quota.topology import QuotaCheckGates
from koord.telemetry.clock import now
from koord.telemetry.metrics import MetricDeclaration, MetricReading
from koord.values import resources as vector
from koord.values.quantity import QuantityError

_LOG = logging.getLogger(__name__)

_BY_QUOTA = "quota-label"
_BY_NAMESPACE = "namespace"
_BY_TREE = "tree-id"
_BY_NAME = "name"

SHARED_WEIGHT = MetricDeclaration(
    "koord_manager_webhook_quota_shared_weight",
    "Shared weight of a quota, by resource; cpu in thousandths of a core.",
    "gauge",
    ("elasticquota_name", "resource_name"),
)


class QuotaTopologyCache:
    """The quota topology fed by informers; `start` it once, before or after the informers have synced."""

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.sigs.k8s.io", ("elasticquotas",), READ_VERBS),
        RbacRule("quota.koordinator.sh", ("elasticquotaprofiles",), READ_VERBS),
        RbacRule("", ("pods",), READ_VERBS),
    )

    def __init__(self, context: ManagerContext) -> None:
        self.topology = topology.QuotaTopology()
        self._clock = context.clock
        self._rules = QuotaCheckGates(
            guarantee_usage=context.settings.is_gate_enabled("ElasticQuotaGuaranteeUsage"),
            update_resource_key=context.settings.is_gate_enabled("ElasticQuotaEnableUpdateResourceKey"),
        )
        self._quotas = context.informers.for_resource(ELASTIC_QUOTAS)
        self._profiles = context.informers.for_resource(ELASTIC_QUOTA_PROFILES)
        self._pods = context.informers.for_resource(PODS)
        self._subscription: HandlerRegistration[ElasticQuota] | None = None
        for informer, name, key in (
            (self._pods, _BY_QUOTA, _quota_label),
            (self._pods, _BY_NAMESPACE, _namespace),
            (self._profiles, _BY_TREE, _tree_label),
            (self._quotas, _BY_NAME, _name),
        ):
            if not informer.has_index(name):
                informer.add_index(name, key)  # type: ignore[arg-type]

    async def start(self) -> None:
        if self._subscription is None:
            self._subscription = self._quotas.add_event_handler(self._on_quota)

    async def stop(self) -> None:
        if self._subscription is not None:
            self._quotas.remove_event_handler(self._subscription)
            self._subscription = None

    # -- the two webhooks

    def mutate(self, request: AdmissionRequest) -> AdmissionDecision:
        self.topology.handle(topology.TimeElapsed(self._clock.monotonic()))
        return admission.mutate_quota(request, self.topology)

    def validate(self, request: AdmissionRequest) -> AdmissionDecision:
        now = self._clock.monotonic()
        self.topology.handle(topology.TimeElapsed(now))
        ruling = admission.validate_quota(request, self.topology, self, self._rules, now)
        if ruling.event is not None and not request.dry_run:
            self.topology.handle(ruling.event)
        return ruling.verdict

    def to_json(self) -> dict[str, Any]:
        """Return what GET /elasticQuota answers."""
        self.topology.handle(topology.TimeElapsed(self._clock.monotonic()))
        return self.topology.to_json()

    def readings(self) -> Iterable[MetricReading]:
        """Return metrics computed on demand, so that a deleted quota has no series."""
        values: list[tuple[tuple[str, ...], float]] = []
        for quota in self._quotas.list():
            counted = self.topology.get(quota.metadata.name)
            if counted is None or counted.namespace != quota.metadata.namespace:
                continue  # a second object of one name would be a second value of one series
            weights = quota_codecs.parse_quota_resources(quota.metadata.annotations, A_QUOTA_SHARED_WEIGHT)
            if weights is None or isinstance(weights, MalformedAnnotation):
                continue
            for resource, amount in vector.parse(weights).items():
                values.append(((quota.metadata.name, resource), float(vector.units(resource, amount))))
        yield SHARED_WEIGHT.reading(values)

    # -- views

    def pods_with_label(self, quota: str) -> Sequence[str]:
        return [pod.metadata.name for pod in self._pods.by_index(_BY_QUOTA, quota)]

    def has_pods_in(self, namespace: str) -> bool:
        return bool(self._pods.by_index(_BY_NAMESPACE, namespace))

    def node_selector_of_tree(self, tree_id: str) -> LabelSelector | None:
        """Return the node selector of the tree; of several profiles the first by name counts."""
        profiles = self._profiles.by_index(_BY_TREE, tree_id)
        first = min(profiles, key=lambda one: (one.metadata.namespace, one.metadata.name), default=None)
        return first.spec.node_selector if first is not None else None

    def quotas_named(self, name: str) -> list[ElasticQuota]:
        """Return the quotas of this name. Names are meant to be global, but several namespaces may hold one."""
        return self._quotas.by_index(_BY_NAME, name)

    # -- news

    def _on_quota(self, change: ObjectChange[ElasticQuota]) -> None:
        quota = change.object
        if change.kind == "deleted":
            self.topology.handle(topology.QuotaObjectDeleted(quota.metadata.namespace, quota.metadata.name))
            return
        try:
            info = topology.QuotaInfo.from_quota(quota)
        except QuantityError as error:
            # The schema forbids it; an object from before the schema keeps its last readable state here.
            _LOG.warning("quota %s/%s is left out: %s", quota.metadata.namespace, quota.metadata.name, error)
            return
        self.topology.handle(topology.QuotaObserved(info))


def _quota_label(pod: Pod) -> Iterable[str]:
    name = pod.metadata.labels.get(L_QUOTA_NAME)
    return (name,) if name else ()


def _namespace(pod: Pod) -> Iterable[str]:
    return (pod.metadata.namespace,)


def _name(quota: ElasticQuota) -> Iterable[str]:
    return (quota.metadata.name,)


def _tree_label(profile: ElasticQuotaProfile) -> Iterable[str]:
    tree = profile.metadata.labels.get(L_QUOTA_TREE_ID)
    return (tree,) if tree else ()


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
        if not admission.is_limited_quota(name):
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
            request = admission.pod_quota_request(
                waiter.pod, quota, moment, transform=transform, ignore_overhead=ignore_overhead
            )
            match admission.evaluate(quota, request):
                case admission.QuotaExceeded(message):
                    _resolve_all([waiter], AdmissionDenied(400, message))
                case MalformedAnnotation() as spoilt:
                    _resolve_all([waiter], AdmissionDenied(400, str(spoilt)))
                case admission.QuotaFits(None):
                    admitted.append(waiter)
                case admission.QuotaFits(sums):
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
