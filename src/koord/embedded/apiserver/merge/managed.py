"""These functions track the managers of an object's fields."""

from __future__ import annotations

from koord.api.merge.outcome import Obj
from koord.embedded.apiserver.merge import entries, fieldset
from koord.embedded.apiserver.merge.compare import Comparison, compare
from koord.embedded.apiserver.merge.entries import UPDATE, Key, Managers
from koord.embedded.apiserver.merge.reset import STRIPPED, Filter, everything
from koord.embedded.apiserver.merge.shape import fitting
from koord.embedded.apiserver.merge.versions import Convert, Versions
from koord.embedded.apiserver.merge.walk import zero
from koord.embedded.apiserver.schema.node import Node

MAX_UPDATERS = 10
BUCKET = "ancient-changes"
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
    node: Node,
    api_version: str,
    now: str | None,
    subresource: str = "",
    ownable: Filter = everything,
    convert: Convert | None = None,
) -> list[Obj]:
    """Return the managedFields of `new` after `manager` turned `old` into it; `old` is None on create.

    `new` may carry managedFields of its own, which an update may edit or reset. `ownable` is the filter of the
    resource or subresource from `reset_fields`. `now` is RFC 3339 in UTC with whole seconds; None writes no
    time, as the scale subresource does.
    """
    held = entries.managed_of(old)
    managers = reshaped(_start(held, new, subresource, custom=not node.go_type), node)
    if not managers and old is not None and old.get("metadata", {}).get("uid"):
        return []  # an object that has lost its managers is left alone until the first apply
    before = entries.bare(old) if old is not None else zero(node)
    after = entries.bare(new)
    versions = Versions(api_version, node, convert)
    comparison = filtered(compare(before, after, node), ownable)
    own = fieldset.union(comparison.modified, comparison.added)
    if not own and not comparison.removed and held and managers == entries.stored(held):
        return list(held)
    managers = surrender(managers, comparison, own, Change(before, after, versions, ownable))
    own = fieldset.difference(own, STRIPPED)
    if own:
        key = entries.own_key(manager, UPDATE, api_version, subresource)
        if key in managers:
            own = fieldset.union(own, entries.fields_of(managers[key]))
        managers[key] = entries.entry_of(key, api_version, own, now)
    return entries.written(_capped(managers))


def reshaped(managers: Managers, node: Node) -> Managers:
    """Collapse the fields that a custom kind's schema has made atomic since; built-in schemas do not change."""
    if node.go_type:
        return managers
    out: Managers = {}
    for key, entry in managers.items():
        fields = entries.fields_of(entry)
        fitted = fitting(fields, node)
        out[key] = entry if fitted is fields else entries.with_fields(entry, fitted)
    return out


class Change:
    """A VersionedChange is one write as other versions of the kind see it.

    Each comparison is computed once, on demand.
    """

    def __init__(self, before: Obj, after: Obj, versions: Versions, ownable: Filter) -> None:
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
                filtered(compare(old[0], new[0], new[1]), self._ownable)
                if old is not None and new is not None
                else None
            )
        return self._seen[api_version]


def filtered(comparison: Comparison, ownable: Filter) -> Comparison:
    if ownable is everything:
        return comparison
    return Comparison(ownable(comparison.removed), ownable(comparison.modified), ownable(comparison.added))


def surrender(
    managers: Managers, comparison: Comparison, written: fieldset.Fields, change: Change, keep: Key | None = None
) -> Managers:
    """Return the managers without the fields that the write took or removed; managers left with none are dropped."""
    left: Managers = {}
    removed = comparison.removed
    for key, entry in managers.items():
        version = entry["apiVersion"]
        fields = entries.fields_of(entry)
        if key != keep:
            taken, lost = written, removed
            if not change.versions.same(version):
                there = change.at(version)
                if there is None:
                    continue
                taken, lost = fieldset.union(there.modified, there.added), there.removed
            kept = fieldset.difference(fieldset.difference(fields, taken), lost)
            if kept is not fields:
                entry = entries.with_fields(entry, kept)
                fields = kept
        if fields:
            left[key] = entry
    return left


def _start(held: list[Obj] | None, new: Obj, subresource: str, *, custom: bool) -> Managers:
    """Return the managers to start from: the stored ones, unless the request edits or resets them.

    An empty list resets a built-in object; in a custom one the real server cannot tell it from no list.
    """
    given = entries.managed_of(new)
    if subresource or given is None or given == held or (custom and not given):
        return entries.stored(held)
    if _resets(given):
        return {}
    try:
        managers = entries.sent(given)
    except (ValueError, TypeError):
        managers = {}  # the real server also goes on with what it has
    return managers or entries.stored(held)


def _resets(given: list[Obj]) -> bool:
    return not given or (len(given) == 1 and not any(v or isinstance(v, dict) for v in given[0].values()))


def _capped(managers: Managers) -> Managers:
    """Limit the updaters to MAX_UPDATERS: the oldest ones of one version share an entry."""
    updaters = [key for key in managers if key[1] == UPDATE]
    extra = len(updaters) - MAX_UPDATERS
    if extra <= 0:
        return managers
    updaters.sort(key=lambda key: (managers[key].get("time", ""), entries.identity(key)))
    out = dict(managers)
    first: dict[str, Key] = {}
    for key in updaters:
        if extra <= 0:
            break
        entry = managers[key]
        version = entry["apiVersion"]
        if version not in first:
            first[version] = key
            continue
        bucket: Key = (BUCKET, UPDATE, version, "")
        pot = out[bucket] if bucket in out else out.pop(first[version])
        fields = fieldset.union(entries.fields_of(entry), entries.fields_of(pot))
        out.pop(key)
        out[bucket] = entries.entry_of(bucket, version, fields, entry.get("time"))
        extra -= 1
    return out
