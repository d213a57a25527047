"""ResourceQuota admission: a write that would use more than a quota of its namespace allows is refused.

What is admitted is charged to the status of the quotas at once, so that writes that come together cannot exceed one.
The plugin is the last of the chain and never waits: the charge and the write are one step. The quota controller
corrects the charge of a write that came to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from koord.api.kubernetes.core_v1 import ResourceQuota, ResourceQuotaSpec
from koord.api.kubernetes.pod import Pod
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
from koord.api.model import Obj, convert
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.apiserver.store.collection import StoreRecord
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.telemetry.clock import Clock
from koord.values import resources as vector
from koord.values.quantity import Quantity

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
