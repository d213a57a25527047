"""The admission plugins that read the objects of a request's namespace: LimitRanger and ResourceQuota (default
amounts, and the room that quotas leave), and ServiceAccount (the account of a pod, and a volume with its token).

What is admitted is charged to the status of the quotas at once, so that writes that come together cannot exceed one.
The plugin is the last of the chain and never waits: the charge and the write are one step. The quota controller
corrects the charge of a write that came to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from koord.api.kubernetes.core_v1 import LimitRange, LimitRangeItem, ResourceQuota, ResourceQuotaSpec
from koord.api.kubernetes.pod import Pod, PodSpec
from koord.api.kubernetes.pod_resources import pod_limits, pod_requests
from koord.api.kubernetes.quota_usage import (
    PODS,
    Usage,
    counted_kind,
    object_usage,
    pod_usage,
    selects_object,
    selects_pod,
    unstated_resources,
)
from koord.api.model import Obj, ResourceList, convert
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.apiserver.store.collection import StoreRecord
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.telemetry.clock import Clock
from koord.values import resources as vector
from koord.values.quantity import Quantity
from koord.values.resources import CPU, parse

Amounts = Mapping[str, Quantity]

LIMIT_RANGES = "limitranges"
DEFAULTS_ANNOTATION = "kubernetes.io/limit-ranger"
_CLAIMS = "persistentvolumeclaims"


class LimitRanges:
    """The limit ranges of a namespace, as stored."""

    def __init__(self, store: ObjectStore) -> None:
        self._collection = store.collection(LIMIT_RANGES)

    def items(self, namespace: str) -> list[LimitRangeItem]:
        if not len(self._collection):
            return []
        return [item for one in self._collection.scan(namespace) for item in one.typed(LimitRange).spec.limits]


class LimitRangeDefaults:
    """Gives the containers of a new pod the amounts that they leave out and their namespace has defaults for."""

    def __init__(self, limits: LimitRanges) -> None:
        self._limits = limits

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if attributes.resource.storage != "pods" or attributes.operation != "CREATE" or attributes.subresource:
            return
        pod = attributes.obj
        items = [item for item in self._limits.items(attributes.namespace) if item.type == "Container"]
        if pod is None or not items:
            return
        told = [text for item in items for text in _set_defaults(pod.get("spec") or {}, item)]
        if told:
            notes = pod["metadata"].get("annotations") or {}
            pod["metadata"]["annotations"] = {
                **notes,
                DEFAULTS_ANNOTATION: f"LimitRanger plugin set: {'; '.join(told)}",
            }


def _set_defaults(spec: Obj, item: LimitRangeItem) -> Iterator[str]:
    """Set the amounts that are left out, and tell which."""
    for field, who in (("containers", "container"), ("initContainers", "init container")):
        for container in spec.get(field) or ():
            resources = container.setdefault("resources", {})
            for part, defaults in (("requests", item.default_request), ("limits", item.default)):
                stated = resources.get(part) or {}
                added = {name: str(text) for name, text in defaults.items() if name not in stated}
                if added:
                    resources[part] = {**stated, **added}
                    yield f"{', '.join(sorted(added))} {part[:-1]} for {who} {container.get('name', '')}"


class LimitRangeValidation:
    """Refuses pods and claims that are smaller or larger than the limit ranges of their namespace allow."""

    def __init__(self, limits: LimitRanges) -> None:
        self._limits = limits

    async def admit(self, attributes: AdmissionAttributes) -> None:
        resource, obj = attributes.resource, attributes.obj
        if obj is None or not _is_limited(attributes):
            return
        items = self._limits.items(attributes.namespace)
        if not items:
            return
        faults = _claim_faults(obj, items) if resource.storage == _CLAIMS else _pod_faults(obj.get("spec") or {}, items)
        if faults:
            why = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
            raise api_errors.forbidden(resource.plural, resource.group, attributes.name, why)


def _is_limited(attributes: AdmissionAttributes) -> bool:
    """Return whether a write can change what is limited: a new pod, its resize, a claim."""
    write = (attributes.resource.storage, attributes.operation, attributes.subresource)
    return write in (
        ("pods", "CREATE", ""),
        ("pods", "UPDATE", "resize"),
        (_CLAIMS, "CREATE", ""),
        (_CLAIMS, "UPDATE", ""),
    )


def _pod_faults(spec: Obj, items: list[LimitRangeItem]) -> list[str]:
    faults: list[str] = []
    for item in items:
        if item.type == "Container":
            for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
                resources = container.get("resources") or {}
                stated = parse(resources.get("requests") or {}), parse(resources.get("limits") or {})
                faults += _faults(item, *stated)
        elif item.type == "Pod":
            typed = convert(spec, PodSpec)
            faults += _faults(item, _amounts(pod_requests(typed)), _amounts(pod_limits(typed)))
    return faults


def _claim_faults(claim: Obj, items: list[LimitRangeItem]) -> list[str]:
    stated = parse(((claim.get("spec") or {}).get("resources") or {}).get("requests") or {})
    faults: list[str] = []
    for item in items:
        if item.type == "PersistentVolumeClaim":
            requested = {"storage": stated.get("storage", Quantity.from_value(0))}
            faults += [*_below_minimum(item, requested, {}), *_requests_above_maximum(item, requested)]
    return faults


def _amounts(units: Mapping[str, int]) -> dict[str, Quantity]:
    return {
        name: Quantity.from_milli(amount) if name == CPU else Quantity.from_value(amount)
        for name, amount in units.items()
    }


def _faults(item: LimitRangeItem, requests: Amounts, limits: Amounts) -> Iterator[str]:
    yield from _below_minimum(item, requests, limits)
    yield from _above_maximum(item, requests, limits)
    yield from _beyond_ratio(item, requests, limits)


def _sorted_amounts(listed: ResourceList) -> list[tuple[str, Quantity]]:
    return sorted(parse(listed).items())


def _below_minimum(item: LimitRangeItem, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, least in _sorted_amounts(item.min):
        rule = f"minimum {name} usage per {item.type} is {least}"
        request, limit = requests.get(name), limits.get(name)
        if request is None:
            yield f"{rule}.  No request is specified"
        elif request < least:
            yield f"{rule}, but request is {request}"
        if limit is not None and limit < least:
            yield f"{rule}, but limit is {limit}"


def _above_maximum(item: LimitRangeItem, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, most in _sorted_amounts(item.max):
        rule = f"maximum {name} usage per {item.type} is {most}"
        limit = limits.get(name)
        if limit is None:
            yield f"{rule}.  No limit is specified"
        elif limit > most:
            yield f"{rule}, but limit is {limit}"
    yield from _requests_above_maximum(item, requests)


def _requests_above_maximum(item: LimitRangeItem, requests: Amounts) -> Iterator[str]:
    for name, most in _sorted_amounts(item.max):
        request = requests.get(name)
        if request is not None and request > most:
            yield f"maximum {name} usage per {item.type} is {most}, but request is {request}"


def _beyond_ratio(item: LimitRangeItem, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, most in _sorted_amounts(item.max_limit_request_ratio):
        rule = f"{name} max limit to request ratio per {item.type} is {most}"
        request, limit = requests.get(name), limits.get(name)
        if request is None or request.is_zero():
            yield f"{rule}, but no request is specified or request is 0"
        elif limit is None or limit.is_zero():
            yield f"{rule}, but no limit is specified or limit is 0"
        elif float(limit) / float(request) > float(most):
            yield f"{rule}, but provided ratio is {float(limit) / float(request):f}"


RESOURCE_QUOTAS = "resourcequotas"
# Kinds whose updates can use more than before.
_GROWING = frozenset(("services", "persistentvolumeclaims"))


class QuotaCharge(msgspec.Struct, frozen=True):
    """The new usage of one quota."""

    record: StoreRecord
    used: Mapping[str, str]


class ResourceQuotaRefusal(msgspec.Struct, frozen=True):
    message: str


class ResourceQuotaAdmission:
    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._quotas = store.collection(RESOURCE_QUOTAS)

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if not len(self._quotas) or attributes.obj is None or not _may_use_more(attributes):
            return
        records = list(self._quotas.scan(attributes.namespace)) if attributes.namespace else []
        if not records:
            return
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        charges: list[QuotaCharge] = []
        for record in records:
            decided = decide_charge(record, attributes, now)
            if isinstance(decided, ResourceQuotaRefusal):
                resource = attributes.resource
                raise api_errors.forbidden(resource.plural, resource.group, attributes.name, decided.message)
            if decided is not None:
                charges.append(decided)
        if not attributes.dry_run:
            for charge in charges:
                self._write(charge)

    def _write(self, charge: QuotaCharge) -> None:
        record = charge.record
        quota = dict(record.plain())
        quota["metadata"] = dict(quota["metadata"])
        quota["status"] = {**(quota.get("status") or {}), "used": dict(charge.used)}
        self._store.put(RESOURCE_QUOTAS, record.namespace, record.name, quota, record.labels, record.fields)


def _may_use_more(attributes: AdmissionAttributes) -> bool:
    if attributes.operation == "CREATE":
        return not attributes.subresource
    if attributes.operation != "UPDATE":
        return False
    if attributes.resource.storage == PODS:  # a deadline that is set later moves a pod from one scope to another
        return attributes.subresource in ("", "resize")
    return attributes.resource.storage in _GROWING and not attributes.subresource


def decide_charge(
    record: StoreRecord, attributes: AdmissionAttributes, now: datetime
) -> QuotaCharge | ResourceQuotaRefusal | None:
    """Decide what a write costs a quota: nothing, a new usage, or a refusal."""
    kind = attributes.resource.storage
    quota = record.typed(ResourceQuota)
    limited = {name for name in quota.spec.hard if counted_kind(name) == kind}
    if not limited or attributes.obj is None:
        return None
    name = quota.metadata.name
    if kind == PODS:
        pod = convert(attributes.obj, Pod)
        if not selects_pod(quota.spec, pod):
            return None
        missing = unstated_resources(pod, limited) if attributes.old_obj is None else {}
        if missing:
            told = "; ".join(f"{what} for: {','.join(who)}" for what, who in missing.items())
            return ResourceQuotaRefusal(f"failed quota: {name}: must specify {told}")
    elif not selects_object(quota.spec, kind, attributes.obj):
        return None
    added = _added_usage(kind, attributes, quota.spec, now, limited)
    if not added:
        return None
    unknown = sorted(what for what in added if what not in quota.status.hard or what not in quota.status.used)
    if unknown:
        return ResourceQuotaRefusal(f"status unknown for quota: {name}, resources: {','.join(unknown)}")
    used = vector.parse(quota.status.used)
    hard = vector.parse(quota.status.hard)
    exceeded = sorted(what for what, amount in added.items() if used[what] + amount > hard[what])
    if exceeded:
        return ResourceQuotaRefusal(
            f"exceeded quota: {name}, requested: {_shown(added, exceeded)}, used: {_shown(used, exceeded)}, "
            f"limited: {_shown(hard, exceeded)}"
        )
    return QuotaCharge(record, vector.to_wire(vector.add(used, added)))


def _added_usage(
    kind: str, attributes: AdmissionAttributes, spec: ResourceQuotaSpec, now: datetime, limited: set[str]
) -> Usage:
    assert attributes.obj is not None, "only writes of an object are admitted here"
    usage: Mapping[str, Quantity] = _usage(kind, attributes.obj, now)
    old = attributes.old_obj
    if old is not None and (selects_pod(spec, convert(old, Pod)) if kind == PODS else selects_object(spec, kind, old)):
        usage = vector.subtract(usage, _usage(kind, old, now))
    return {name: amount for name, amount in usage.items() if name in limited and amount.sign() > 0}


def _usage(kind: str, obj: Obj, now: datetime) -> Usage:
    return pod_usage(convert(obj, Pod), now) if kind == PODS else object_usage(kind, obj)


def _shown(amounts: vector.Resources, names: list[str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)


# ServiceAccount admission: pods run as an account of their namespace and get a volume with its token.
#
# The volume and its mounts are kube-apiserver's. Simulated nodes run no processes, so no token is ever made; what
# reads pods (operators, suites, kubectl) finds them as on a real server.

DEFAULT_ACCOUNT = "default"
VOLUME_PREFIX = "kube-api-access-"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_EXPIRATION_S = 3607  # by which kube-apiserver knows the tokens whose expiry it extends
ROOT_CA = "kube-root-ca.crt"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


class ServiceAccountAdmission:
    """Names the account of a new pod, mounts its token unless pod or account opt out, and gives its pull secrets."""

    def __init__(self, store: ObjectStore, suffix: Callable[[], str]) -> None:
        """`suffix` gives the random end of a volume's name."""
        self._accounts = store.collection("serviceaccounts")
        self._suffix = suffix

    async def admit(self, attributes: AdmissionAttributes) -> None:
        pod = attributes.obj
        if attributes.resource.storage != "pods" or attributes.subresource or attributes.operation != "CREATE":
            return
        spec = (pod or {}).get("spec")
        if pod is None or spec is None:
            return
        if MIRROR_ANNOTATION in (pod["metadata"].get("annotations") or {}):
            self._check_mirror_pod(attributes, spec)
            return
        name = spec.get("serviceAccountName") or DEFAULT_ACCOUNT
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        record = self._accounts.get(attributes.namespace, name)
        if record is None:
            where = f"{attributes.namespace}/{name}"
            why = f'error looking up service account {where}: serviceaccount "{name}" not found'
            raise _forbidden(attributes, why)
        account = record.plain()
        if should_mount_token(spec, account):
            mount_token(spec, self._suffix)
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [{"name": one.get("name", "")} for one in account["imagePullSecrets"]]

    def _check_mirror_pod(self, attributes: AdmissionAttributes, spec: Obj) -> None:
        """Refuse what the kubelet would mirror wrongly: the pod is as its file says, so nothing is added to it."""
        if spec.get("serviceAccountName"):
            raise _forbidden(attributes, "a mirror pod may not reference service accounts")
        for volume in spec.get("volumes") or ():
            for source in (volume.get("projected") or {}).get("sources") or ():
                if source.get("serviceAccountToken"):
                    raise _forbidden(attributes, "a mirror pod may not use ServiceAccountToken volume projections")


def should_mount_token(spec: Obj, account: Obj) -> bool:
    """Return whether pods get the token: the pod decides before its account, and both may leave it open."""
    for decides in (spec, account):
        wanted = decides.get("automountServiceAccountToken")
        if wanted is not None:
            return bool(wanted)
    return True


def mount_token(spec: Obj, suffix: Callable[[], str]) -> None:
    """Mount the token's volume in each container that has nothing at its path, and add the volume if one needs it."""
    volumes = spec.get("volumes") or []
    held = next((one["name"] for one in volumes if one.get("name", "").startswith(VOLUME_PREFIX)), "")
    without = [
        container
        for field in ("initContainers", "containers")
        for container in spec.get(field) or ()
        if all(mount.get("mountPath") != MOUNT_PATH for mount in container.get("volumeMounts") or ())
    ]
    if not without:
        return
    name = held or f"{VOLUME_PREFIX}{suffix()}"
    for container in without:
        mount = {"name": name, "readOnly": True, "mountPath": MOUNT_PATH}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    if not held:
        spec["volumes"] = [*volumes, {"name": name, "projected": token_projection()}]


def token_projection() -> Obj:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_EXPIRATION_S, "path": "token"}},
            {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
        "defaultMode": 0o644,
    }


def _forbidden(attributes: AdmissionAttributes, why: str) -> api_errors.StatusError:
    return api_errors.forbidden("pods", "", attributes.name, why)
