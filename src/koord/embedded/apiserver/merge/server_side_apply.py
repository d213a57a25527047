"""This module implements server-side apply: it checks that a configuration fits its kind, and merges it into the live
object by ownership of fields.

It also detects conflicts with other managers, prunes the fields that the applier dropped, and takes over
from kubectl's client-side apply. The caller applies defaults and validates afterwards, as for any write.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from koord.api.patch.merge_patch import Obj, PatchFailed, bad_patch, server_error
from koord.embedded.apiserver.merge import fieldset, managed_fields
from koord.embedded.apiserver.merge.compare import compare, equal_values
from koord.embedded.apiserver.merge.fieldset import EMPTY, FieldPath, FieldSet
from koord.embedded.apiserver.merge.typed_value import (
    UNTYPED,
    item_node,
    item_step,
    mentioned_fields,
    overlay,
    remove_fields,
    with_struct_parents,
)
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.values import go_format
from koord.values.go_format import quoted

# This module checks that an applied configuration fits the structure of its kind, in kube-apiserver's words.
#
# This is coarser than validation: it only ensures that every field and item of the configuration has a field path.

_STRICT_STRING_FORMATS = ("", "byte")  # every other format of a string accepts any scalar


def config_error(config: dict[str, Any], node: SchemaNode) -> str | None:
    """Return the text of all errors, None when there are none."""
    found: list[str] = []
    _check(config, node, "", found)
    if len(found) <= 1:
        return found[0] if found else None
    return "\n".join(["errors:", *(f"  {one}" for one in found)])


def _check(value: Any, node: SchemaNode, path: str, found: list[str]) -> None:
    kind = node.kind
    if value is None or kind in ("any", "quantity", "int-or-string"):
        return
    if kind in ("object", "map"):
        if isinstance(value, dict):
            _check_map(value, node, path, found)
        else:
            _add_error(found, path, f"expected map, got {_go_value(value)}")
    elif kind == "list":
        if isinstance(value, list):
            _check_list(value, node, path, found)
        else:
            _add_error(found, path, f"expected list, got {_go_value(value)}")
    else:
        _check_scalar(value, node, path, found)


def _check_scalar(value: Any, node: SchemaNode, path: str, found: list[str]) -> None:
    kind = node.kind
    if kind == "string" and node.format not in _STRICT_STRING_FORMATS:
        if isinstance(value, dict | list):
            _add_error(found, path, f"expected any scalar, got {_go_value(value)}")
    elif kind == "string":
        if not isinstance(value, str):
            _add_error(
                found,
                path,
                f"expected string, got &value.valueUnstructured{{Value:{go_format.format_go_syntax(value)}}}",
            )
    elif kind == "boolean":
        if not isinstance(value, bool):
            _add_error(found, path, f"expected boolean, got {_go_value(value)}")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        _add_error(found, path, f"expected numeric (int or float), got {go_format.go_type_name(value)}")


def _check_map(value: dict[str, Any], node: SchemaNode, path: str, found: list[str]) -> None:
    for key, item in value.items():
        if node.kind == "map":
            inner = node.values or UNTYPED
        elif key in node.fields:
            inner = node.fields[key]
        elif node.preserve_unknown:
            inner = UNTYPED
        else:
            _add_error(found, f"{path}.{key}", "field not declared in schema")
            return
        _check(item, inner, f"{path}.{key}", found)


def _check_list(value: list[Any], node: SchemaNode, path: str, found: list[str]) -> None:
    inner = item_node(node)
    if node.list_type == "atomic":
        for position, item in enumerate(value):
            _check(item, inner, f"{path}[{position}]", found)
        return
    steps: set[str] = set()
    for position, item in enumerate(value):
        try:
            step = item_step(node, item)
        except ValueError as wrong:
            _add_error(found, path, f"element {position}: {wrong}")
            return
        if step in steps:
            _add_error(found, path, f"duplicate entries for key {fieldset.step_text(step)}")
        steps.add(step)
        _check(item, inner, path + fieldset.step_text(step), found)


def _add_error(found: list[str], path: str, words: str) -> None:
    found.append(f"{path}: {words}" if path else words)


def _go_value(value: Any) -> str:
    return f"&{{{go_format.format_v(value)}}}"


class FieldConflict(msgspec.Struct, frozen=True):
    """A FieldConflict is one field that another manager owns."""

    owner: managed_fields.ManagerKey
    path: FieldPath

    @property
    def field(self) -> str:
        return fieldset.path_text(self.path)

    @property
    def owner_text(self) -> str:
        """Return the owner as messages name it."""
        manager, operation, version, subresource = self.owner
        shown = quoted(manager)
        if subresource:
            shown += f" with subresource {quoted(subresource)}"
        return f"{shown} using {version}" if operation == managed_fields.UPDATE else shown


class ApplyConflicts(msgspec.Struct, frozen=True):
    """ApplyConflicts is the result of an apply without force that would take fields from their owners."""

    found: tuple[FieldConflict, ...]

    @property
    def message(self) -> str:
        if len(self.found) == 1:
            one = self.found[0]
            return f"Apply failed with 1 conflict: conflict with {one.owner_text}: {one.field}"
        lines: list[str] = []
        owner: managed_fields.ManagerKey | None = None
        for conflict in self.found:
            if conflict.owner != owner:
                owner = conflict.owner
                lines.append(f"conflicts with {conflict.owner_text}:")
            lines.append(f"- {conflict.field}")
        return f"Apply failed with {len(self.found)} conflicts: " + "\n".join(lines)

    def to_patch_failed(self) -> PatchFailed:
        causes = [
            {"reason": "FieldManagerConflict", "message": f"conflict with {c.owner_text}", "field": c.field}
            for c in self.found
        ]
        return PatchFailed(409, self.message, "Conflict", {"causes": causes})


def build_conflicts(taken: dict[managed_fields.ManagerKey, FieldSet]) -> ApplyConflicts:
    """Build the conflicts sorted by owner, as the real server's message is; its causes have a random order."""
    return ApplyConflicts(
        tuple(
            FieldConflict(owner, path)
            for owner in sorted(taken, key=managed_fields.manager_identity)
            for path in fieldset.paths(taken[owner])
        )
    )


def prune_dropped_fields(
    merged: Obj,
    managers: managed_fields.Managers,
    last: Obj | None,
    own: FieldSet,
    versions: managed_fields.ObjectVersions,
) -> Obj:
    """Return the merged object without what only the applier's last configuration had set.

    `last` is the applier's old entry, `own` the fields that its new configuration mentions.
    """
    mine = managed_fields.entry_fields(last) if last else EMPTY
    if last is None or not mine:
        return merged
    version = last["apiVersion"]
    if versions.is_same_shape(version) and not fieldset.difference(mine, own):
        return merged  # it let go of nothing: the common case, and the rest is costly
    there = versions.at(merged, version)
    if there is None:
        return merged
    whole, node = there
    mine = with_struct_parents(mine, node)
    cut = _without_fields(whole, mine, node)
    cut = _restore_owned(whole, cut, managers, version, versions)
    # Only what the applier owned may go; anything else that lost its last owner was never ours to remove.
    had = with_struct_parents(mentioned_fields(whole, node), node)
    has = with_struct_parents(mentioned_fields(cut, node), node)
    cut = _without_fields(whole, fieldset.intersection(fieldset.difference(had, has), mine), node)
    back = versions.at(cut, versions.api_version)
    if back is None:
        raise LookupError(f"{versions.api_version} is being applied but cannot be converted to")
    return back[0]


def _restore_owned(
    whole: Obj, cut: Obj, managers: managed_fields.Managers, version: str, versions: managed_fields.ObjectVersions
) -> Obj:
    """Restore what any manager, the applier included, owns now."""
    owned: dict[str, FieldSet] = {version: EMPTY}
    for entry in managers.values():
        at = (
            version
            if versions.is_same_shape(entry["apiVersion"]) and versions.is_same_shape(version)
            else entry["apiVersion"]
        )
        owned[at] = fieldset.union(owned.get(at, EMPTY), managed_fields.entry_fields(entry))
    for at, fields in owned.items():
        full = versions.at(whole, at)
        part = versions.at(cut, at)
        if not fields or full is None or part is None:
            continue
        node = full[1]
        had = with_struct_parents(mentioned_fields(full[0], node), node)
        stays = fieldset.union(
            with_struct_parents(mentioned_fields(part[0], node), node), with_struct_parents(fields, node)
        )
        cut = _without_fields(full[0], fieldset.difference(had, stays), node)
        whole = full[0]
    here = versions.at(cut, version)
    return here[0] if here is not None else cut


def _without_fields(value: Obj, fields: FieldSet, node: SchemaNode) -> Obj:
    return (remove_fields(value, fields, node) or {}) if fields else value


KUBECTL_MANAGER = "kubectl"
LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
MAX_ANNOTATIONS_BYTES = 256 * 1024


def unchanged_since_client_apply(live: Obj, node: SchemaNode, api_version: str) -> FieldSet | None:
    """Return the fields of the annotation's configuration that the live object has unchanged; None without one."""
    text = _annotations(live).get(LAST_APPLIED_ANNOTATION)
    if not text:
        return None
    try:
        config = json.loads(text)
    except ValueError:
        return None
    if (
        not isinstance(config, dict)
        or config.get("apiVersion") != api_version
        or config_error(config, node) is not None
    ):
        return None
    found = compare(config, managed_fields.without_managed_fields(live), node)
    fields = mentioned_fields(config, node)
    for gone in (found.modified, found.added, found.removed):
        fields = fieldset.difference(fields, gone)
    return fields


def refresh_last_applied(obj: Obj, config: Obj) -> None:
    """Update an existing annotation from the applied configuration; drop it when it exceeds the size limit."""
    annotations = _annotations(obj)
    if not annotations.get(LAST_APPLIED_ANNOTATION):
        return
    kept = {k: v for k, v in _annotations(config).items() if k != LAST_APPLIED_ANNOTATION}
    metadata = {**(config.get("metadata") or {}), "annotations": kept}
    if not kept:
        del metadata["annotations"]
    text = json.dumps({**config, "metadata": metadata}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    changed = {**annotations, LAST_APPLIED_ANNOTATION: text + "\n"}
    if sum(len(k.encode()) + len(v.encode()) for k, v in changed.items()) > MAX_ANNOTATIONS_BYTES:
        del changed[LAST_APPLIED_ANNOTATION]
    obj["metadata"]["annotations"] = changed


def _annotations(obj: Obj) -> dict[str, str]:
    found: dict[str, str] = (obj.get("metadata") or {}).get("annotations") or {}
    return found


BEFORE_FIRST_APPLY = "before-first-apply"


class ApplyResult(msgspec.Struct, frozen=True):
    """An ApplyResult holds the object to store; unchanged parts are shared with the live one."""

    obj: Obj


def apply_config(
    live: Obj | None,
    config: Obj,
    *,
    manager: str,
    force: bool,
    node: SchemaNode,
    now: str,
    api_version: str,
    kind: str,
    subresource: str = "",
    ownable: managed_fields.FieldFilter = managed_fields.keep_all_fields,
    convert: managed_fields.VersionConverter | None = None,
) -> ApplyResult | ApplyConflicts | PatchFailed:
    """Apply `config` as `manager` to the live object; `live` is None when there is none yet."""
    wrong = _config_failure(config, node, api_version, kind)
    if wrong is not None:
        return wrong
    held = managed_fields.managed_fields_of(live)
    if live is not None and not held:
        # Whoever wrote it before ownership was kept gets one entry, so that the apply can conflict with it.
        held = managed_fields.track_update(
            None,
            managed_fields.without_managed_fields(live),
            manager=BEFORE_FIRST_APPLY,
            node=node,
            api_version=api_version,
            now=now,
            subresource=subresource,
            ownable=ownable,
        )
    run = _ApplyRun(
        before=managed_fields.without_managed_fields(live) if live is not None else {},
        config=managed_fields.without_managed_fields(config),
        managers=managed_fields.fit_to_schema(managed_fields.parse_stored(held), node),
        key=managed_fields.new_manager_key(manager, managed_fields.APPLY, api_version, subresource),
        versions=managed_fields.ObjectVersions(api_version, node, convert),
        ownable=ownable,
        now=now,
    )
    outcome = run.apply(force)
    if isinstance(outcome, ApplyConflicts) and manager == KUBECTL_MANAGER and live is not None:
        # Fields still as client-side apply left them are its own: server-side apply takes them over unforced.
        allowed = unchanged_since_client_apply(live, node, api_version)
        if allowed is not None:
            kept = tuple(c for c in outcome.found if not fieldset.has_path(allowed, c.path))
            outcome = ApplyConflicts(kept) if kept else run.apply(True)
    if isinstance(outcome, ApplyResult) and manager == KUBECTL_MANAGER:
        refresh_last_applied(outcome.obj, config)
    return outcome


class _ApplyRun(msgspec.Struct, frozen=True):
    before: Obj
    config: Obj
    managers: managed_fields.Managers
    key: managed_fields.ManagerKey
    versions: managed_fields.ObjectVersions
    ownable: managed_fields.FieldFilter
    now: str

    def apply(self, force: bool) -> ApplyResult | ApplyConflicts:
        node, version = self.versions.node, self.versions.api_version
        merged: Obj = overlay(self.before, self.config, node)
        last = self.managers.get(self.key)
        own = self.ownable(mentioned_fields(self.config, node))
        managers = {**self.managers, self.key: managed_fields.build_entry(self.key, version, own, None)}
        after = prune_dropped_fields(merged, managers, last, own, self.versions)
        comparison = managed_fields.filter_comparison(compare(self.before, after, node), self.ownable)
        written = fieldset.union(comparison.modified, comparison.added)
        change = managed_fields.VersionedChange(self.before, after, self.versions, self.ownable)
        if not force:
            taken = self._conflicting_fields(managers, written, change)
            if taken:
                return build_conflicts(taken)
        left = managed_fields.release_fields(managers, comparison, written, change, keep=self.key)
        if self.key in left:
            own = fieldset.difference(own, managed_fields.STRIPPED_FIELDS)
            # Co-owning values that are there already is no change of the object, and gets no time.
            noop = bool(self.before) and equal_values(self.before, after, node)
            time = (last.get("time") if last else None) if noop else self.now
            if own:
                left[self.key] = managed_fields.build_entry(self.key, version, own, time)
            else:
                del left[self.key]
        obj = {**after, "metadata": dict(after.get("metadata") or {})}
        managed_fields.set_managed_fields(obj, managed_fields.sorted_entries(left))
        return ApplyResult(obj)

    def _conflicting_fields(
        self, managers: managed_fields.Managers, written: FieldSet, change: managed_fields.VersionedChange
    ) -> dict[managed_fields.ManagerKey, FieldSet]:
        taken: dict[managed_fields.ManagerKey, FieldSet] = {}
        for key, entry in managers.items():
            if key == self.key:
                continue
            theirs = written
            if not self.versions.is_same_shape(entry["apiVersion"]):
                there = change.at(entry["apiVersion"])
                if there is None:
                    continue
                theirs = fieldset.union(there.modified, there.added)
            clash = fieldset.intersection(managed_fields.entry_fields(entry), theirs)
            if clash:
                taken[key] = clash
        return taken


def _config_failure(config: Any, node: SchemaNode, api_version: str, kind: str) -> PatchFailed | None:
    said = _string_or_empty(config.get("apiVersion")), _string_or_empty(config.get("kind"))
    if said != (api_version, kind):
        return bad_patch(f"invalid object type: {_go_gvk(*said)}")
    metadata = config.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        return bad_patch("metadata.managedFields must be nil")
    wrong = config_error(config, node)
    if wrong is not None:
        place = metadata if isinstance(metadata, dict) else {}
        key = f"{_string_or_empty(place.get('namespace'))}/{_string_or_empty(place.get('name'))}"
        where = f"{key}; {_go_gvk(api_version, kind)}"
        return server_error(f"failed to create typed patch object ({where}): {wrong}")
    return None


def _string_or_empty(value: Any) -> str:
    """Return the value when it is a string, empty otherwise, because Go does not decode other types here."""
    return value if isinstance(value, str) else ""


def _go_gvk(api_version: str, kind: str) -> str:
    """Format group, version and kind as Go prints them: the core group is empty, its slash is not."""
    return f"{api_version if '/' in api_version else '/' + api_version}, Kind={kind}"
