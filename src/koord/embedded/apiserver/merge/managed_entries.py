"""This module reads and writes metadata.managedFields, in kube-apiserver's order."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from koord.api.patch.merge_patch import Obj
from koord.embedded.apiserver.merge import fieldset
from koord.embedded.apiserver.merge.fieldset import FieldSet
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
    """Return the managers as a client wrote them, made canonical.

    Raises ValueError with the message when they are invalid.
    """
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
    if not time:
        return None
    return timestamp.text(datetime.fromisoformat(time).astimezone(UTC))


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
