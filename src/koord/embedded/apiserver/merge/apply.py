"""These functions apply a configuration to the live object."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.merge.outcome import Obj, PatchFailed, bad_patch, server_error
from koord.embedded.apiserver.merge import entries, fieldset, lastapplied
from koord.embedded.apiserver.merge.compare import compare, same
from koord.embedded.apiserver.merge.conflict import Conflicts, conflicts
from koord.embedded.apiserver.merge.conform import complaint
from koord.embedded.apiserver.merge.entries import APPLY, Key, Managers
from koord.embedded.apiserver.merge.fieldset import Fields
from koord.embedded.apiserver.merge.managed import Change, filtered, reshaped, surrender, track_update
from koord.embedded.apiserver.merge.prune import pruned
from koord.embedded.apiserver.merge.reset import STRIPPED, Filter, everything
from koord.embedded.apiserver.merge.shape import mentioned, overlaid
from koord.embedded.apiserver.merge.versions import Convert, Versions
from koord.embedded.apiserver.schema.node import Node

BEFORE_FIRST_APPLY = "before-first-apply"


class Applied(msgspec.Struct, frozen=True):
    """An ApplyResult holds the object to store; unchanged parts are shared with the live one."""

    obj: Obj


def apply(
    live: Obj | None,
    config: Obj,
    *,
    manager: str,
    force: bool,
    node: Node,
    now: str,
    api_version: str,
    kind: str,
    subresource: str = "",
    ownable: Filter = everything,
    convert: Convert | None = None,
) -> Applied | Conflicts | PatchFailed:
    """Apply `config` as `manager` to the live object; `live` is None when there is none yet."""
    wrong = _unfit(config, node, api_version, kind)
    if wrong is not None:
        return wrong
    held = entries.managed_of(live)
    if live is not None and not held:
        # Whoever wrote it before ownership was kept gets one entry, so that the apply can conflict with it.
        held = track_update(
            None,
            entries.bare(live),
            manager=BEFORE_FIRST_APPLY,
            node=node,
            api_version=api_version,
            now=now,
            subresource=subresource,
            ownable=ownable,
        )
    run = _Run(
        before=entries.bare(live) if live is not None else {},
        config=entries.bare(config),
        managers=reshaped(entries.stored(held), node),
        key=entries.own_key(manager, APPLY, api_version, subresource),
        versions=Versions(api_version, node, convert),
        ownable=ownable,
        now=now,
    )
    outcome = run.apply(force)
    if isinstance(outcome, Conflicts) and manager == lastapplied.MANAGER and live is not None:
        # Fields still as client-side apply left them are its own: server-side apply takes them over unforced.
        allowed = lastapplied.migrating(live, node, api_version)
        if allowed is not None:
            kept = tuple(c for c in outcome.found if not fieldset.has(allowed, c.path))
            outcome = Conflicts(kept) if kept else run.apply(True)
    if isinstance(outcome, Applied) and manager == lastapplied.MANAGER:
        lastapplied.refresh(outcome.obj, config)
    return outcome


class _Run(msgspec.Struct, frozen=True):
    before: Obj
    config: Obj
    managers: Managers
    key: Key
    versions: Versions
    ownable: Filter
    now: str

    def apply(self, force: bool) -> Applied | Conflicts:
        node, version = self.versions.node, self.versions.api_version
        merged: Obj = overlaid(self.before, self.config, node)
        last = self.managers.get(self.key)
        own = self.ownable(mentioned(self.config, node))
        managers = {**self.managers, self.key: entries.entry_of(self.key, version, own, None)}
        after = pruned(merged, managers, last, own, self.versions)
        comparison = filtered(compare(self.before, after, node), self.ownable)
        written = fieldset.union(comparison.modified, comparison.added)
        change = Change(self.before, after, self.versions, self.ownable)
        if not force:
            taken = self._taken(managers, written, change)
            if taken:
                return conflicts(taken)
        left = surrender(managers, comparison, written, change, keep=self.key)
        if self.key in left:
            own = fieldset.difference(own, STRIPPED)
            # Co-owning values that are there already is no change of the object, and gets no time.
            noop = bool(self.before) and same(self.before, after, node)
            time = (last.get("time") if last else None) if noop else self.now
            if own:
                left[self.key] = entries.entry_of(self.key, version, own, time)
            else:
                del left[self.key]
        obj = {**after, "metadata": dict(after.get("metadata") or {})}
        entries.put(obj, entries.written(left))
        return Applied(obj)

    def _taken(self, managers: Managers, written: Fields, change: Change) -> dict[Key, Fields]:
        taken: dict[Key, Fields] = {}
        for key, entry in managers.items():
            if key == self.key:
                continue
            theirs = written
            if not self.versions.same(entry["apiVersion"]):
                there = change.at(entry["apiVersion"])
                if there is None:
                    continue
                theirs = fieldset.union(there.modified, there.added)
            clash = fieldset.intersection(entries.fields_of(entry), theirs)
            if clash:
                taken[key] = clash
        return taken


def _unfit(config: Any, node: Node, api_version: str, kind: str) -> PatchFailed | None:
    said = _text(config.get("apiVersion")), _text(config.get("kind"))
    if said != (api_version, kind):
        return bad_patch(f"invalid object type: {_spelled(*said)}")
    metadata = config.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        return bad_patch("metadata.managedFields must be nil")
    wrong = complaint(config, node)
    if wrong is not None:
        place = metadata if isinstance(metadata, dict) else {}
        where = f"{_text(place.get('namespace'))}/{_text(place.get('name'))}; {_spelled(api_version, kind)}"
        return server_error(f"failed to create typed patch object ({where}): {wrong}")
    return None


def _text(value: Any) -> str:
    """Return the value when it is a string, empty otherwise, because Go does not decode other types here."""
    return value if isinstance(value, str) else ""


def _spelled(api_version: str, kind: str) -> str:
    """Format group, version and kind as Go prints them: the core group is empty, its slash is not."""
    return f"{api_version if '/' in api_version else '/' + api_version}, Kind={kind}"
