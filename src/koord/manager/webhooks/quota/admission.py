"""The mutating and validating admission of ElasticQuotas, and the events that the topology should remember.

Whether a pod's request fits the rest of its quota is decided here too, without I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.koordinator import protocol, resource_name
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests
from koord.api.model import convert
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from koord.manager.webhooks.quota import topology
from koord.manager.webhooks.quota.topology import QuotaCheckGates
from koord.policy.qos import replace_resources
from koord.values import resources as vector
from koord.values.quantity import ZERO, QuantityError
from koord.values.resources import Resources

_SHOWN_PODS = 2


class QuotaPodLister(Protocol):
    """Lists the pods of the cluster by what binds them to a quota."""

    def pods_with_label(self, quota: str) -> Sequence[str]: ...

    def has_pods_in(self, namespace: str) -> bool: ...


class QuotaRuling(msgspec.Struct, frozen=True):
    """The decision, and the event for the topology unless the request was a dry run."""

    verdict: AdmissionDecision
    event: topology.TopologyEvent | None = None


class UnreadableQuota(msgspec.Struct, frozen=True):
    why: str


def decode_quota(
    plain: dict[str, object] | None, request: AdmissionRequest
) -> tuple[ElasticQuota, topology.QuotaInfo] | UnreadableQuota:
    if plain is None:
        return UnreadableQuota("there is no content to decode")
    try:
        quota = convert(plain, ElasticQuota)
        info = topology.QuotaInfo.from_quota(quota)
        vector.parse(quota.status.used)  # so that no check meets an amount that is none
    except (msgspec.ValidationError, QuantityError) as error:
        return UnreadableQuota(str(error))
    return quota, info if info.namespace else msgspec.structs.replace(info, namespace=request.namespace)


def validate_quota(
    request: AdmissionRequest, tree: topology.QuotaTopology, pods: QuotaPodLister, rules: QuotaCheckGates, now: float
) -> QuotaRuling:
    if request.sub_resource:
        return QuotaRuling(AdmissionAllowed())
    match request.operation:
        case "CREATE":
            found = decode_quota(request.object, request)
            if isinstance(found, UnreadableQuota):
                return QuotaRuling(AdmissionDenied(400, found.why))
            return _validate_create(*found, tree, rules, now)
        case "UPDATE":
            found, before = decode_quota(request.object, request), decode_quota(request.old_object, request)
            if isinstance(found, UnreadableQuota):
                return QuotaRuling(AdmissionDenied(400, found.why))
            if isinstance(before, UnreadableQuota):
                return QuotaRuling(AdmissionDenied(400, before.why))
            return _validate_update(found, before, tree, pods, rules, now)
        case "DELETE":
            name = request.name or _object_name(request.old_object)
            fault = _delete_fault(name, tree, pods)
            return (
                QuotaRuling(AdmissionDenied(400, fault))
                if fault
                else QuotaRuling(AdmissionAllowed(), topology.QuotaDeleteAdmitted(name, now))
            )
        case _:
            return QuotaRuling(AdmissionAllowed())


def _validate_create(
    quota: ElasticQuota, info: topology.QuotaInfo, tree: topology.QuotaTopology, rules: QuotaCheckGates, now: float
) -> QuotaRuling:
    if tree.get(info.name) is not None:
        return QuotaRuling(AdmissionDenied(400, f"AddQuota quota already exist:{info.name}"))
    for namespace in info.namespaces:
        if owner := tree.owner_of(namespace, besides=info.name):
            words = f"AddQuota quota {info.name}'s annotation namespace {namespace} is already bound to quota {owner}"
            return QuotaRuling(AdmissionDenied(400, words))
    fault = topology.spec_fault(quota, info) or topology.topology_fault(info, None, tree, rules, lambda: False)
    return (
        QuotaRuling(AdmissionDenied(400, fault))
        if fault
        else QuotaRuling(AdmissionAllowed(), topology.QuotaWriteAdmitted(info, now))
    )


def _validate_update(
    new: tuple[ElasticQuota, topology.QuotaInfo],
    before: tuple[ElasticQuota, topology.QuotaInfo],
    tree: topology.QuotaTopology,
    pods: QuotaPodLister,
    rules: QuotaCheckGates,
    now: float,
) -> QuotaRuling:
    quota, info = new
    if _changes_nothing_checked(new, before):
        return QuotaRuling(AdmissionAllowed())
    name = info.name
    if name in (protocol.SYSTEM_QUOTA, protocol.ROOT_QUOTA):
        return QuotaRuling(AdmissionDenied(400, f"invalid quota {name}"))
    for namespace in info.namespaces:
        if owner := tree.owner_of(namespace, besides=name):
            bound = f"namespace {namespace} is already bound to quota {owner}"
            # The misspelling is upstream's, and scripts may look for it.
            words = f"UpdadteQuota, quota {name} update namespaces, but {bound}"
            return QuotaRuling(AdmissionDenied(400, words))
    known = tree.get(name)
    if known is None:
        return QuotaRuling(AdmissionDenied(400, f"UpdateQuota quota not exist in quotaInfoMap:{name}"))

    def has_pods() -> bool:
        claimed = quota_codecs.quota_namespaces(before[0].metadata.annotations)
        return bool(pods.pods_with_label(name)) or any(pods.has_pods_in(namespace) for namespace in (name, *claimed))

    fault = topology.spec_fault(quota, info) or topology.topology_fault(info, known, tree, rules, has_pods)
    return (
        QuotaRuling(AdmissionDenied(400, fault))
        if fault
        else QuotaRuling(AdmissionAllowed(), topology.QuotaWriteAdmitted(info, now))
    )


def _changes_nothing_checked(
    new: tuple[ElasticQuota, topology.QuotaInfo], before: tuple[ElasticQuota, topology.QuotaInfo]
) -> bool:
    (quota, info), (old_quota, old) = new, before
    claims = (one.metadata.annotations.get(protocol.A_QUOTA_NAMESPACES, "") for one in (quota, old_quota))
    return (
        info.parent == old.parent
        and info.is_parent == old.is_parent
        and info.tree == old.tree
        and next(claims) == next(claims)
        and info.min == old.min
        and info.max == old.max
    )


def _delete_fault(name: str, tree: topology.QuotaTopology, pods: QuotaPodLister) -> str | None:
    if name in (protocol.SYSTEM_QUOTA, protocol.ROOT_QUOTA, protocol.DEFAULT_QUOTA):
        return f"can not delete quotaGroup :{name}"
    if tree.get(name) is None:
        return f"not found quota:{name}"
    if children := tree.children(name):
        return f"delete quota failed, quota {name} has {len(children)} child quotas"
    if bound := sorted(pods.pods_with_label(name)):
        shown = [*bound[:_SHOWN_PODS], *(["..."] if len(bound) > _SHOWN_PODS else [])]
        return f"delete quota failed, quota {name} has {len(bound)} child pods: {', '.join(shown)}"
    return None


def _object_name(plain: dict[str, object] | None) -> str:
    meta = (plain or {}).get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return name if isinstance(name, str) else ""


def mutate_quota(request: AdmissionRequest, tree: topology.QuotaTopology) -> AdmissionDecision:
    """Default a new ElasticQuota: a parent, the tree of that parent, and a weight for each resource of its max."""
    if request.operation != "CREATE" or request.sub_resource:
        return AdmissionAllowed()
    found = decode_quota(request.object, request)
    if isinstance(found, UnreadableQuota):
        return AdmissionDenied(400, found.why)
    quota, info = found
    if info.name == protocol.ROOT_QUOTA:
        return AdmissionAllowed()
    labels, annotations = dict(quota.metadata.labels), dict(quota.metadata.annotations)
    if not labels.get(protocol.L_QUOTA_PARENT):
        labels[protocol.L_QUOTA_PARENT] = protocol.ROOT_QUOTA
    if not info.tree and info.parent != protocol.ROOT_QUOTA:
        parent = tree.get(info.parent)
        if parent is None:
            return AdmissionDenied(400, f"fill quota {info.name} failed, parent not exist")
        if parent.tree:
            labels[protocol.L_QUOTA_TREE_ID] = parent.tree
    weights = _shared_weight(quota, info, request.object or {})
    if isinstance(weights, MalformedAnnotation):
        return AdmissionDenied(400, f"fillDefaultQuotaInfo unmarshal sharedWeight failed:{weights.reason}")
    annotations[protocol.A_QUOTA_SHARED_WEIGHT] = weights
    if labels == quota.metadata.labels and annotations == quota.metadata.annotations:
        return AdmissionAllowed()
    return AdmissionAllowed(_with_metadata(request.object or {}, labels=labels, annotations=annotations))


def _shared_weight(quota: ElasticQuota, info: topology.QuotaInfo, plain: dict[str, Any]) -> str | MalformedAnnotation:
    """Return the annotation's text; it stays as it is when it names exactly the resources of max."""
    text = quota.metadata.annotations.get(protocol.A_QUOTA_SHARED_WEIGHT, "")
    if not text:
        # A quota without max gets the text that Go writes for a map that is not there.
        spec = plain.get("spec") or {}
        return dump_json(vector.to_wire(info.max)) if spec.get("max") is not None else "null"
    stated = quota_codecs.parse_quota_resources(quota.metadata.annotations, protocol.A_QUOTA_SHARED_WEIGHT)
    if isinstance(stated, MalformedAnnotation):
        return stated
    weights = vector.parse(stated or {})
    if weights.keys() == info.max.keys():
        return text
    return dump_json(vector.to_wire({key: weights.get(key, most) for key, most in info.max.items()}))


def _with_metadata(plain: dict[str, Any], **parts: dict[str, str]) -> dict[str, Any]:
    return {**plain, "metadata": {**(plain.get("metadata") or {}), **parts}}


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
