"""The resource quota controller counts what the objects of a namespace use, and writes it into its quotas.

Admission charges what is created; this controller corrects the charge, and gives back what was deleted or has ended.
It reads from the server after it has read the quota, and writes over that version alone: a charge in between wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import (
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    SERVICES,
)
from koord.api.kubernetes.core_v1 import ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.quota_usage import (
    Usage,
    counted_kind,
    object_count,
    object_usage,
    pod_usage,
    quota_scopes,
    selects_object,
    selects_pod,
)
from koord.api.kubernetes.resource import Resource
from koord.embedded.workloads.controller_context import ControllerContext, discover, status_patch
from koord.embedded.workloads.pod_control import is_pod_finished
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError
from koord.values import resources as vector
from koord.values.quantity import Quantity

# Deletions of kinds that no informer of this controller shows are found by counting again.
RECOUNT_S = 5.0
# Many pods of a namespace end together: one count covers them.
_BATCHING_S = 0.2
_UNSTRUCTURED: dict[str, Resource[Any]] = {
    "services": SERVICES,
    "persistentvolumeclaims": PERSISTENT_VOLUME_CLAIMS,
    "resourceclaims.resource.k8s.io": RESOURCE_CLAIMS,
}


class QuotaObjects(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a namespace that a quota may count."""

    pods: tuple[Pod, ...] = ()
    measured: dict[str, tuple[Unstructured, ...]] = {}  # by plural: objects that use more than their number
    counts: dict[str, int] = {}  # by `plural` or `plural.group`
    unknown: frozenset[str] = frozenset()  # kinds that the server does not serve


def decide_quota_status(spec: ResourceQuotaSpec, found: QuotaObjects, now: datetime) -> ResourceQuotaStatus:
    """Return the status: the limits as they are wished, and the usage of each that can be counted."""
    usages: list[Usage] = [pod_usage(pod, now) for pod in found.pods if selects_pod(spec, pod)]
    for kind, objects in found.measured.items():
        usages += [object_usage(kind, obj) for obj in objects if selects_object(spec, kind, obj)]
    total = vector.total(usages)
    if not quota_scopes(spec):
        for kind, count in found.counts.items():
            total |= {name: one * count for name, one in object_count(kind).items()}
    countable = (name for name in spec.hard if (counted_kind(name) or "") not in ("", *found.unknown))
    used = {name: total.get(name, Quantity.from_value(0)) for name in countable}
    return ResourceQuotaStatus(hard=spec.hard, used={**vector.to_wire(used)})


class ResourceQuotaController:
    name = "resourcequota"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._quotas = context.informers.for_resource(RESOURCE_QUOTAS)
        self._pods = context.pods()
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._quotas.add_event_handler(lambda change: self._queue.add(object_key(change.object)))
        self._pods.add_event_handler(self._pod_changed)

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        """Count again when a pod is gone or has ended; what is created is charged by admission."""
        if change.kind == "deleted" or (is_pod_finished(change.object) and not _was_finished(change.old)):
            for quota in self._quotas.list(change.object.metadata.namespace):
                self._queue.add_after(object_key(quota), _BATCHING_S)

    async def run(self) -> None:
        await self._context.run_controller(self.name, self._queue, self.reconcile, (self._quotas, self._pods))

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        namespace, name = key
        quota = await self._client.get(RESOURCE_QUOTAS, name, namespace)
        if isinstance(quota, ApiError):
            return Done() if quota.not_found else Requeue(quota.message)
        found = await self._observe(quota)
        if isinstance(found, ApiError):
            return Requeue(found.message)
        status = decide_quota_status(quota.spec, found, self._context.now())
        if not _is_same(quota.status, status):
            patch = status_patch(quota.status, status)
            ended = await self._context.update_status(RESOURCE_QUOTAS, quota, patch, exactly=True)
            if ended is not None:
                return ended
        return RequeueAfter(RECOUNT_S)

    async def _observe(self, quota: ResourceQuota) -> QuotaObjects | ApiError:
        namespace = quota.metadata.namespace
        kinds = sorted({kind for name in quota.spec.hard if (kind := counted_kind(name)) is not None})
        pods: tuple[Pod, ...] = ()
        measured: dict[str, tuple[Unstructured, ...]] = {}
        for kind in kinds:
            if kind == "pods":
                listed = await self._client.list(PODS, namespace)
                if isinstance(listed, ApiError):
                    return listed
                pods = tuple(listed.items)
            elif kind in _UNSTRUCTURED:
                plain = await self._client.dynamic.list(_UNSTRUCTURED[kind], namespace)
                if isinstance(plain, ApiError):
                    return plain
                measured[kind] = tuple(plain.items)
        counts = await self._count(namespace, [kind for kind in kinds if kind != "pods" and kind not in _UNSTRUCTURED])
        if isinstance(counts, ApiError):
            return counts
        unknown = frozenset(kinds) - counts.keys() - measured.keys() - {"pods"}
        return QuotaObjects(pods=pods, measured=measured, counts=counts, unknown=unknown)

    async def _count(self, namespace: str, kinds: Iterable[str]) -> dict[str, int] | ApiError:
        wanted = set(kinds)
        if not wanted:
            return {}
        served = await discover(self._client)
        if isinstance(served, ApiError):
            return served
        counts: dict[str, int] = {}
        for kind in served.served:
            if kind.qualified in wanted and kind.resource.namespaced:
                listed = await self._client.list(kind.resource, namespace)
                if isinstance(listed, ApiError):
                    return listed
                counts[kind.qualified] = len(listed.items)
        return counts


def _was_finished(pod: Pod | None) -> bool:
    return pod is not None and is_pod_finished(pod)


def _is_same(old: ResourceQuotaStatus, new: ResourceQuotaStatus) -> bool:
    """Return whether both state the same amounts, however these are written."""
    return vector.equals(vector.parse(old.hard), vector.parse(new.hard)) and vector.equals(
        vector.parse(old.used), vector.parse(new.used)
    )
