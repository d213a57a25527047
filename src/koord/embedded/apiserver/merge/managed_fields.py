"""This module reads and writes metadata.managedFields, and decides who owns which field after a create, an update or
a patch.

Server-side apply builds on it.

It also views an object at the API version in which a manager last wrote it, and detects writes that change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from koord.api.patch.merge_patch import Obj
from koord.embedded.apiserver.merge import fieldset
from koord.embedded.apiserver.merge.compare import Comparison, compare
from koord.embedded.apiserver.merge.fieldset import MEMBER, SELF, FieldSet, from_paths, without_subtrees
from koord.embedded.apiserver.merge.typed_value import collapse_atomic_fields, zero_object
from koord.embedded.apiserver.schema.schema_node import SchemaNode
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


# (object, api version) -> the object and its node at that version, or None when the version is not served any more.
VersionConverter = Callable[[Obj, str], "tuple[Obj, SchemaNode] | None"]


class ObjectVersions:
    """ObjectVersions views objects at other API versions; without a converter every version has the same shape."""

    def __init__(self, api_version: str, node: SchemaNode, convert: VersionConverter | None) -> None:
        self.api_version = api_version
        self.node = node
        self._convert = convert

    def is_same_shape(self, api_version: str) -> bool:
        return api_version == self.api_version or self._convert is None

    def at(self, obj: Obj, api_version: str) -> tuple[Obj, SchemaNode] | None:
        if self._convert is None or obj.get("apiVersion") == api_version:
            return obj, self.node
        return self._convert(obj, api_version)


MAX_UPDATERS = 10
ANCIENT_CHANGES = "ancient-changes"
MAX_MANAGER_BYTES = 128


def manager_name(field_manager: str, user_agent: str) -> str:
    """Return the fieldManager of the request, else the printable start of the user agent up to the first slash."""
    if field_manager:
        return field_manager
    name = ""
    size = 0
    for c in user_agent.partition("/")[0]:
        if not c.isprintable():
            continue
        size += len(c.encode())
        if size > MAX_MANAGER_BYTES:
            break
        name += c
    return name


def track_update(
    old: Obj | None,
    new: Obj,
    *,
    manager: str,
    node: SchemaNode,
    api_version: str,
    now: str | None,
    subresource: str = "",
    ownable: FieldFilter = keep_all_fields,
    convert: VersionConverter | None = None,
) -> list[Obj]:
    """Return the managedFields of `new` after `manager` turned `old` into it; `old` is None on create.

    `new` may carry managedFields of its own, which an update may edit or reset. `ownable` is the filter of the
    resource or subresource from `managed_entries`. `now` is RFC 3339 in UTC with whole seconds; None writes no
    time, as the scale subresource does.
    """
    held = managed_fields_of(old)
    managers = fit_to_schema(_initial_managers(held, new, subresource, custom=not node.go_type), node)
    if not managers and old is not None and old.get("metadata", {}).get("uid"):
        return []  # an object that has lost its managers is left alone until the first apply
    before = without_managed_fields(old) if old is not None else zero_object(node)
    after = without_managed_fields(new)
    versions = ObjectVersions(api_version, node, convert)
    comparison = filter_comparison(compare(before, after, node), ownable)
    own = fieldset.union(comparison.modified, comparison.added)
    if not own and not comparison.removed and held and managers == parse_stored(held):
        return list(held)
    managers = release_fields(managers, comparison, own, VersionedChange(before, after, versions, ownable))
    own = fieldset.difference(own, STRIPPED_FIELDS)
    if own:
        key = new_manager_key(manager, UPDATE, api_version, subresource)
        if key in managers:
            own = fieldset.union(own, entry_fields(managers[key]))
        managers[key] = build_entry(key, api_version, own, now)
    return sorted_entries(_cap_updaters(managers))


def fit_to_schema(managers: Managers, node: SchemaNode) -> Managers:
    """Collapse the fields that a custom kind's schema has made atomic since; built-in schemas do not change."""
    if node.go_type:
        return managers
    out: Managers = {}
    for key, entry in managers.items():
        fields = entry_fields(entry)
        fitted = collapse_atomic_fields(fields, node)
        out[key] = entry if fitted is fields else with_fields(entry, fitted)
    return out


class VersionedChange:
    """A VersionedChange is one write as other versions of the kind see it. A comparison is computed once, on demand."""

    def __init__(self, before: Obj, after: Obj, versions: ObjectVersions, ownable: FieldFilter) -> None:
        self._before = before
        self._after = after
        self._ownable = ownable
        self._seen: dict[str, Comparison | None] = {}
        self.versions = versions

    def at(self, api_version: str) -> Comparison | None:
        """Return the comparison at a version, None when that version is not served any more."""
        if api_version not in self._seen:
            old = self.versions.at(self._before, api_version)
            new = self.versions.at(self._after, api_version)
            self._seen[api_version] = (
                filter_comparison(compare(old[0], new[0], new[1]), self._ownable)
                if old is not None and new is not None
                else None
            )
        return self._seen[api_version]


def filter_comparison(comparison: Comparison, ownable: FieldFilter) -> Comparison:
    if ownable is keep_all_fields:
        return comparison
    return Comparison(ownable(comparison.removed), ownable(comparison.modified), ownable(comparison.added))


def release_fields(
    managers: Managers,
    comparison: Comparison,
    written: fieldset.FieldSet,
    change: VersionedChange,
    keep: ManagerKey | None = None,
) -> Managers:
    """Return the managers without the fields that the write took or removed; managers left with none are dropped."""
    left: Managers = {}
    removed = comparison.removed
    for key, entry in managers.items():
        version = entry["apiVersion"]
        fields = entry_fields(entry)
        if key != keep:
            taken, lost = written, removed
            if not change.versions.is_same_shape(version):
                there = change.at(version)
                if there is None:
                    continue
                taken, lost = fieldset.union(there.modified, there.added), there.removed
            kept = fieldset.difference(fieldset.difference(fields, taken), lost)
            if kept is not fields:
                entry = with_fields(entry, kept)
                fields = kept
        if fields:
            left[key] = entry
    return left


def _initial_managers(held: list[Obj] | None, new: Obj, subresource: str, *, custom: bool) -> Managers:
    """Return the managers to start from: the stored ones, unless the request edits or resets them.

    An empty list resets a built-in object; in a custom one the real server cannot tell it from no list.
    """
    given = managed_fields_of(new)
    if subresource or given is None or given == held or (custom and not given):
        return parse_stored(held)
    if _is_reset(given):
        return {}
    try:
        managers = parse_sent(given)
    except (ValueError, TypeError):
        managers = {}  # the real server also goes on with what it has
    return managers or parse_stored(held)


def _is_reset(given: list[Obj]) -> bool:
    return not given or (len(given) == 1 and not any(v or isinstance(v, dict) for v in given[0].values()))


def _cap_updaters(managers: Managers) -> Managers:
    """Limit the updaters to MAX_UPDATERS: the oldest ones of one version share an entry."""
    updaters = [key for key in managers if key[1] == UPDATE]
    extra = len(updaters) - MAX_UPDATERS
    if extra <= 0:
        return managers
    updaters.sort(key=lambda key: (managers[key].get("time", ""), manager_identity(key)))
    out = dict(managers)
    first: dict[str, ManagerKey] = {}
    for key in updaters:
        if extra <= 0:
            break
        entry = managers[key]
        version = entry["apiVersion"]
        if version not in first:
            first[version] = key
            continue
        bucket: ManagerKey = (ANCIENT_CHANGES, UPDATE, version, "")
        pot = out[bucket] if bucket in out else out.pop(first[version])
        fields = fieldset.union(entry_fields(entry), entry_fields(pot))
        out.pop(key)
        out[bucket] = build_entry(bucket, version, fields, entry.get("time"))
        extra -= 1
    return out
