"""This module decides who owns which field after a create, an update or a patch.

Server-side apply builds on it.

It also views an object at the API version in which a manager last wrote it, and detects writes that change nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.api.patch.merge_patch import Obj
from koord.embedded.apiserver.merge import fieldset, managed_entries
from koord.embedded.apiserver.merge.compare import Comparison, compare
from koord.embedded.apiserver.merge.typed_value import collapse_atomic_fields, zero_object
from koord.embedded.apiserver.schema.schema_node import SchemaNode

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
    ownable: managed_entries.FieldFilter = managed_entries.keep_all_fields,
    convert: VersionConverter | None = None,
) -> list[Obj]:
    """Return the managedFields of `new` after `manager` turned `old` into it; `old` is None on create.

    `new` may carry managedFields of its own, which an update may edit or reset. `ownable` is the filter of the
    resource or subresource from `managed_entries`. `now` is RFC 3339 in UTC with whole seconds; None writes no
    time, as the scale subresource does.
    """
    held = managed_entries.managed_fields_of(old)
    managers = fit_to_schema(_initial_managers(held, new, subresource, custom=not node.go_type), node)
    if not managers and old is not None and old.get("metadata", {}).get("uid"):
        return []  # an object that has lost its managers is left alone until the first apply
    before = managed_entries.without_managed_fields(old) if old is not None else zero_object(node)
    after = managed_entries.without_managed_fields(new)
    versions = ObjectVersions(api_version, node, convert)
    comparison = filter_comparison(compare(before, after, node), ownable)
    own = fieldset.union(comparison.modified, comparison.added)
    if not own and not comparison.removed and held and managers == managed_entries.parse_stored(held):
        return list(held)
    managers = release_fields(managers, comparison, own, VersionedChange(before, after, versions, ownable))
    own = fieldset.difference(own, managed_entries.STRIPPED_FIELDS)
    if own:
        key = managed_entries.new_manager_key(manager, managed_entries.UPDATE, api_version, subresource)
        if key in managers:
            own = fieldset.union(own, managed_entries.entry_fields(managers[key]))
        managers[key] = managed_entries.build_entry(key, api_version, own, now)
    return managed_entries.sorted_entries(_cap_updaters(managers))


def fit_to_schema(managers: managed_entries.Managers, node: SchemaNode) -> managed_entries.Managers:
    """Collapse the fields that a custom kind's schema has made atomic since; built-in schemas do not change."""
    if node.go_type:
        return managers
    out: managed_entries.Managers = {}
    for key, entry in managers.items():
        fields = managed_entries.entry_fields(entry)
        fitted = collapse_atomic_fields(fields, node)
        out[key] = entry if fitted is fields else managed_entries.with_fields(entry, fitted)
    return out


class VersionedChange:
    """A VersionedChange is one write as other versions of the kind see it. A comparison is computed once, on demand."""

    def __init__(self, before: Obj, after: Obj, versions: ObjectVersions, ownable: managed_entries.FieldFilter) -> None:
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


def filter_comparison(comparison: Comparison, ownable: managed_entries.FieldFilter) -> Comparison:
    if ownable is managed_entries.keep_all_fields:
        return comparison
    return Comparison(ownable(comparison.removed), ownable(comparison.modified), ownable(comparison.added))


def release_fields(
    managers: managed_entries.Managers,
    comparison: Comparison,
    written: fieldset.FieldSet,
    change: VersionedChange,
    keep: managed_entries.ManagerKey | None = None,
) -> managed_entries.Managers:
    """Return the managers without the fields that the write took or removed; managers left with none are dropped."""
    left: managed_entries.Managers = {}
    removed = comparison.removed
    for key, entry in managers.items():
        version = entry["apiVersion"]
        fields = managed_entries.entry_fields(entry)
        if key != keep:
            taken, lost = written, removed
            if not change.versions.is_same_shape(version):
                there = change.at(version)
                if there is None:
                    continue
                taken, lost = fieldset.union(there.modified, there.added), there.removed
            kept = fieldset.difference(fieldset.difference(fields, taken), lost)
            if kept is not fields:
                entry = managed_entries.with_fields(entry, kept)
                fields = kept
        if fields:
            left[key] = entry
    return left


def _initial_managers(held: list[Obj] | None, new: Obj, subresource: str, *, custom: bool) -> managed_entries.Managers:
    """Return the managers to start from: the stored ones, unless the request edits or resets them.

    An empty list resets a built-in object; in a custom one the real server cannot tell it from no list.
    """
    given = managed_entries.managed_fields_of(new)
    if subresource or given is None or given == held or (custom and not given):
        return managed_entries.parse_stored(held)
    if _is_reset(given):
        return {}
    try:
        managers = managed_entries.parse_sent(given)
    except (ValueError, TypeError):
        managers = {}  # the real server also goes on with what it has
    return managers or managed_entries.parse_stored(held)


def _is_reset(given: list[Obj]) -> bool:
    return not given or (len(given) == 1 and not any(v or isinstance(v, dict) for v in given[0].values()))


def _cap_updaters(managers: managed_entries.Managers) -> managed_entries.Managers:
    """Limit the updaters to MAX_UPDATERS: the oldest ones of one version share an entry."""
    updaters = [key for key in managers if key[1] == managed_entries.UPDATE]
    extra = len(updaters) - MAX_UPDATERS
    if extra <= 0:
        return managers
    updaters.sort(key=lambda key: (managers[key].get("time", ""), managed_entries.manager_identity(key)))
    out = dict(managers)
    first: dict[str, managed_entries.ManagerKey] = {}
    for key in updaters:
        if extra <= 0:
            break
        entry = managers[key]
        version = entry["apiVersion"]
        if version not in first:
            first[version] = key
            continue
        bucket: managed_entries.ManagerKey = (ANCIENT_CHANGES, managed_entries.UPDATE, version, "")
        pot = out[bucket] if bucket in out else out.pop(first[version])
        fields = fieldset.union(managed_entries.entry_fields(entry), managed_entries.entry_fields(pot))
        out.pop(key)
        out[bucket] = managed_entries.build_entry(bucket, version, fields, entry.get("time"))
        extra -= 1
    return out
