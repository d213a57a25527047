"""These functions prune the fields that an applier applied before, left out now, and that nobody else owns."""

from __future__ import annotations

from koord.api.merge.outcome import Obj
from koord.embedded.apiserver.merge import entries, fieldset
from koord.embedded.apiserver.merge.entries import Managers
from koord.embedded.apiserver.merge.fieldset import EMPTY, Fields
from koord.embedded.apiserver.merge.shape import mentioned, removed, with_parents
from koord.embedded.apiserver.merge.versions import Versions
from koord.embedded.apiserver.schema.node import Node


def pruned(merged: Obj, managers: Managers, last: Obj | None, own: Fields, versions: Versions) -> Obj:
    """Return the merged object without what only the applier's last configuration had set.

    `last` is the applier's old entry, `own` the fields that its new configuration mentions.
    """
    mine = entries.fields_of(last) if last else EMPTY
    if last is None or not mine:
        return merged
    version = last["apiVersion"]
    if versions.same(version) and not fieldset.difference(mine, own):
        return merged  # it let go of nothing: the common case, and the rest is costly
    there = versions.at(merged, version)
    if there is None:
        return merged
    whole, node = there
    mine = with_parents(mine, node)
    cut = _kept(whole, mine, node)
    cut = _give_back(whole, cut, managers, version, versions)
    # Only what the applier owned may go; anything else that lost its last owner was never ours to remove.
    had = with_parents(mentioned(whole, node), node)
    has = with_parents(mentioned(cut, node), node)
    cut = _kept(whole, fieldset.intersection(fieldset.difference(had, has), mine), node)
    back = versions.at(cut, versions.api_version)
    if back is None:
        raise LookupError(f"{versions.api_version} is being applied but cannot be converted to")
    return back[0]


def _give_back(whole: Obj, cut: Obj, managers: Managers, version: str, versions: Versions) -> Obj:
    """Restore what any manager, the applier included, owns now."""
    owned: dict[str, Fields] = {version: EMPTY}
    for entry in managers.values():
        at = version if versions.same(entry["apiVersion"]) and versions.same(version) else entry["apiVersion"]
        owned[at] = fieldset.union(owned.get(at, EMPTY), entries.fields_of(entry))
    for at, fields in owned.items():
        full = versions.at(whole, at)
        part = versions.at(cut, at)
        if not fields or full is None or part is None:
            continue
        node = full[1]
        had = with_parents(mentioned(full[0], node), node)
        stays = fieldset.union(with_parents(mentioned(part[0], node), node), with_parents(fields, node))
        cut = _kept(full[0], fieldset.difference(had, stays), node)
        whole = full[0]
    here = versions.at(cut, version)
    return here[0] if here is not None else cut


def _kept(value: Obj, fields: Fields, node: Node) -> Obj:
    return (removed(value, fields, node) or {}) if fields else value
