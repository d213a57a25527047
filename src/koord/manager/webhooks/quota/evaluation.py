"""This module decides whether a pod's request fits the rest of its quota; it does no I/O."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator import protocol, resource_name
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests
from koord.policy.qos import replace_resources
from koord.values import resources as vector
from koord.values.quantity import ZERO
from koord.values.resources import Resources

_UNLIMITED_QUOTAS = frozenset({"", protocol.DEFAULT_QUOTA, protocol.SYSTEM_QUOTA, protocol.ROOT_QUOTA})
_COUNTED_RESOURCES = frozenset(
    {
        resource_name.CPU,
        resource_name.MEMORY,
        resource_name.EPHEMERAL_STORAGE,
        resource_name.BATCH_CPU,
        resource_name.BATCH_MEMORY,
        resource_name.MID_CPU,
        resource_name.MID_MEMORY,
        resource_name.GPU,
        resource_name.NVIDIA_GPU,
        resource_name.GPU_SHARED,
        resource_name.GPU_MEMORY_RATIO,
    }
)


class QuotaFits(msgspec.Struct, frozen=True):
    """The pod fits. `total` is the sum of the quota's requests with this pod; None when it adds nothing."""

    total: Resources | None


class QuotaExceeded(msgspec.Struct, frozen=True):
    message: str


def is_limited_quota(quota_name: str) -> bool:
    """Return whether the quota limits pods; pods without a quota and of the built-in quotas are never denied."""
    return quota_name not in _UNLIMITED_QUOTAS


def pod_quota_request(
    pod: Pod, quota: ElasticQuota, now: datetime, *, transform: bool = False, ignore_overhead: bool = False
) -> Resources:
    """Return what the pod takes of the quota; nothing once it has ended. `transform` honours replaced resources."""
    if pod.status.phase in ("Failed", "Succeeded") or _is_past_grace_period(pod, now):
        return {}
    spec = (replace_resources(pod) if transform else pod).spec
    if ignore_overhead:
        spec = msgspec.structs.replace(spec, overhead=None)
    return vector.remove_zeros(vector.mask(vector.materialise(pod_requests(spec)), quota.spec.max.keys()))


def evaluate(quota: ElasticQuota, request: Resources) -> QuotaFits | QuotaExceeded | MalformedAnnotation:
    if not request or not any(name in _COUNTED_RESOURCES or name.startswith("requests.") for name in quota.spec.max):
        return QuotaFits(None)
    stated, used = (
        _parse_amounts(quota, protocol.A_QUOTA_ADMISSION),
        _parse_amounts(quota, protocol.A_QUOTA_CHILD_REQUEST),
    )
    if isinstance(stated, MalformedAnnotation):
        return stated
    if isinstance(used, MalformedAnnotation):
        return used
    limit = stated or vector.parse(quota.spec.max)
    total = vector.add(used, request)
    over = sorted(name for name in request if name in limit and total[name] > limit[name])
    if not over:
        return QuotaFits(total)
    meta = quota.metadata
    return QuotaExceeded(
        f"exceeded quota: {meta.namespace}/{meta.name}, requested: {_format_amounts(request, over)},"
        f" used: {_format_amounts(used, over)}, limited: {_format_amounts(limit, over)}"
    )


def _parse_amounts(quota: ElasticQuota, key: str) -> Resources | MalformedAnnotation:
    """Parse the amounts of an annotation; empty text counts as none."""
    annotations = quota.metadata.annotations
    found = quota_codecs.parse_quota_resources(annotations, key) if annotations.get(key) else None
    return found if isinstance(found, MalformedAnnotation) else vector.parse(found or {})


def _format_amounts(amounts: Resources, names: list[str]) -> str:
    return ",".join(f"{name}={amounts.get(name, ZERO)}" for name in names)


def _is_past_grace_period(pod: Pod, now: datetime) -> bool:
    meta = pod.metadata
    if meta.deletion_timestamp is None or meta.deletion_grace_period_seconds is None:
        return False
    return now > meta.deletion_timestamp + timedelta(seconds=meta.deletion_grace_period_seconds)
