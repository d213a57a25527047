"""This module reads and writes metadata.managedFields, and says which fields a write cannot change or own."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from koord.api.patch.merge_patch import Obj
from koord.embedded.apiserver.merge import fieldset
from koord.embedded.apiserver.merge.fieldset import MEMBER, SELF, FieldSet, from_paths, without_subtrees
from koord.values import timestamp

# Manager, operation, apiVersion (empty for Apply: an applier keeps its entry when it changes version), subresource.
ManagerKey = tuple[str, str, str, str]
# A manager maps to its entry as it is on the wire. Entries are replaced, never changed.
Managers = dict[ManagerKey, Obj]

UPDATE = "Update"
APPLY = "Apply"
FIELDS_V1 = "FieldsV1"


def manager_key(entry: Obj) -> ManagerKey:
    operation = entry["operation"]
    version = entry["apiVersion"] if operation == UPDATE else ""
    return (entry.get("manager", ""), operation, version, entry.get("subresource", ""))


def new_manager_key(manager: str, operation: str, api_version: str, subresource: str) -> ManagerKey:
    return (manager or "unknown", operation, api_version if operation == UPDATE else "", subresource)


def parse_stored(entries: list[Obj] | None) -> Managers:
    """Return the managers of an object that this server wrote: their field sets are canonical already."""
    return {manager_key(entry): entry for entry in entries or ()}


def parse_sent(entries: Any) -> Managers:
    """Return the managers as a client wrote them, made canonical. Raises ValueError when they are invalid."""
    found: Managers = {}
    for position, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("operation") not in (UPDATE, APPLY):
            raise ValueError("operation must be `Apply` or `Update`")
        if not entry.get("apiVersion"):
            raise ValueError("apiVersion must not be empty")
        kind = entry.get("fieldsType", "")
        if kind != FIELDS_V1:
            if not kind:
                raise ValueError(f"missing fieldsType in managed fields entry {position}")
            raise ValueError(f'invalid fieldsType "{kind}" in managed fields entry {position}')
        key = manager_key(entry)
        fields = fieldset.parse_fields_v1(entry.get("fieldsV1") or {})
        found[key] = build_entry(key, entry["apiVersion"], fields, _canonical_time(entry.get("time")))
    return found


def _canonical_time(time: Any) -> str | None:
    """Return a client's time as the server writes it: UTC, whole seconds."""
    return timestamp.text(timestamp.parse(time)) if time else None


def build_entry(key: ManagerKey, api_version: str, fields: FieldSet, time: str | None) -> Obj:
    manager, operation, _, subresource = key
    entry: Obj = {"manager": manager, "operation": operation, "apiVersion": api_version}
    if not manager:
        del entry["manager"]
    if time:
        entry["time"] = time
    entry["fieldsType"] = FIELDS_V1
    entry["fieldsV1"] = fields
    if subresource:
        entry["subresource"] = subresource
    return entry


def with_fields(entry: Obj, fields: FieldSet) -> Obj:
    return {**entry, "fieldsV1": fields}


def entry_fields(entry: Obj) -> FieldSet:
    fields: FieldSet = entry.get("fieldsV1") or fieldset.EMPTY
    return fields


def sorted_entries(managers: Managers) -> list[Obj]:
    """Return the entries sorted: appliers first, then by time, name, version, subresource."""
    if len(managers) == 1:
        return list(managers.values())
    return sorted(managers.values(), key=_wire_order)


def _wire_order(entry: Obj) -> tuple[str, ...]:
    return (
        entry["operation"],
        entry.get("time", ""),
        entry.get("manager", ""),
        entry["apiVersion"],
        entry.get("subresource", ""),
    )


def manager_identity(key: ManagerKey) -> str:
    """Return the JSON identity of a manager; only its sort order is visible to clients."""
    manager, operation, version, subresource = key
    parts = {"manager": manager, "operation": operation, "apiVersion": version, "subresource": subresource}
    return json.dumps({k: v for k, v in parts.items() if v}, separators=(",", ":"), ensure_ascii=False)


def managed_fields_of(obj: Obj | None) -> Any:
    """Return the raw managedFields of an object, None when there are none or they are null."""
    metadata = obj.get("metadata") if obj else None
    return metadata.get("managedFields") if metadata else None


def without_managed_fields(obj: Obj) -> Obj:
    """Return the object without its managedFields; everything else is shared."""
    metadata = obj.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def set_managed_fields(obj: Obj, entries: list[Obj]) -> None:
    """Set the managedFields of an object; an empty list removes them."""
    if entries:
        obj.setdefault("metadata", {})["managedFields"] = entries
    elif obj.get("metadata"):
        obj["metadata"].pop("managedFields", None)


# Reset fields: a table of facts about the built-in kinds (GetResetFields in kube-apiserver), plus the rule for custom
# ones.

FieldFilter = Callable[[FieldSet], FieldSet]

_STATUS_RESETS_METADATA = frozenset(
    {
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
        ("internal.apiserver.k8s.io", "StorageVersion"),
        ("resource.k8s.io", "DeviceTaintRule"),
        ("resource.k8s.io", "ResourceClaim"),
        ("storage.k8s.io", "VolumeAttachment"),
        ("storagemigration.k8s.io", "StorageVersionMigration"),
        ("apiregistration.k8s.io", "APIService"),
    }
)
# (group, kind, subresource) -> dotted paths, where they differ from the rule in `_reset_paths`.
_SPECIAL_RESET_PATHS: dict[tuple[str, str, str], tuple[str, ...]] = {
    ("", "Pod", "status"): ("spec", "metadata.deletionTimestamp", "metadata.ownerReferences"),
    ("apps", "Deployment", "status"): ("spec", "metadata.labels"),
    ("certificates.k8s.io", "CertificateSigningRequest", ""): ("spec", "status"),
    ("certificates.k8s.io", "CertificateSigningRequest", "status"): ("spec", "status.conditions"),
    ("certificates.k8s.io", "CertificateSigningRequest", "approval"): ("spec", "status.certificate"),
    ("", "Namespace", "finalize"): ("status",),
    # The real server lists its fields under a group that does not exist, so it resets none.
    ("networking.k8s.io", "ServiceCIDR", ""): (),
    ("networking.k8s.io", "ServiceCIDR", "status"): (),
}


def keep_all_fields(fields: FieldSet) -> FieldSet:
    """Return the fields unchanged: the filter that keeps all fields."""
    return fields


@lru_cache(maxsize=4096)
def ownable(group: str, kind: str, subresource: str = "", *, has_status: bool = True) -> FieldFilter:
    """Return the filter of a (sub)resource. `has_status` is False for a custom kind without that subresource."""
    paths = _reset_paths(group, kind, subresource) if has_status or subresource else ()
    if not paths:
        return keep_all_fields
    reset = from_paths(tuple(f"f:{part}" for part in path.split(".")) for path in paths)
    return lambda fields: without_subtrees(fields, reset)


def _reset_paths(group: str, kind: str, subresource: str) -> tuple[str, ...]:
    special = _SPECIAL_RESET_PATHS.get((group, kind, subresource))
    if special is not None:
        return special
    if not subresource:
        return ("status",)
    if subresource == "status":
        return ("metadata", "spec") if (group, kind) in _STATUS_RESETS_METADATA else ("spec",)
    # The real server also means to limit pods/resize and pods/ephemeralcontainers, but its limits are never asked for:
    # a write to these subresources owns all that was sent, stored or not.
    return ()


STRIPPED_FIELDS: FieldSet = {
    "f:apiVersion": MEMBER,
    "f:kind": MEMBER,
    "f:metadata": {
        SELF: MEMBER,
        "f:clusterName": MEMBER,
        "f:creationTimestamp": MEMBER,
        "f:generation": MEMBER,
        "f:managedFields": MEMBER,
        "f:name": MEMBER,
        "f:namespace": MEMBER,
        "f:resourceVersion": MEMBER,
        "f:selfLink": MEMBER,
        "f:uid": MEMBER,
    },
}
