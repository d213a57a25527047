"""These functions detect writes that change nothing: the resource version stays, and new times are taken back."""

from __future__ import annotations

from koord.api.merge.outcome import Obj
from koord.embedded.apiserver.merge import entries
from koord.embedded.apiserver.merge.compare import same
from koord.embedded.apiserver.merge.walk import ANY
from koord.embedded.apiserver.schema.node import Node


def equal_ignoring_managed(old: Obj, new: Obj, node: Node = ANY) -> bool:
    """Return whether the two objects differ at most in their managedFields; it is faster with the kind's node."""
    return same(entries.bare(old), entries.bare(new), node)


def kept_times(old: Obj, new: Obj, node: Node = ANY) -> list[Obj] | None:
    """Return the old managedFields when only times differ and nothing else changed, else the new ones.

    Without this a repeated apply would bump the resource version each second.
    """
    before: list[Obj] | None = entries.managed_of(old)
    after: list[Obj] | None = entries.managed_of(new)
    if not before or not after or len(before) != len(after) or before == after:
        return after
    if [_timeless(entry) for entry in before] != [_timeless(entry) for entry in after]:
        return after
    return before if equal_ignoring_managed(old, new, node) else after


def _timeless(entry: Obj) -> Obj:
    return {k: v for k, v in entry.items() if k != "time"}
