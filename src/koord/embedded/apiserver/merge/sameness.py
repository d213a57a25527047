"""When a write changed nothing: the resource version stays, and times written for nothing are taken back."""

from __future__ import annotations

from koord.api.merge.outcome import Obj
from koord.embedded.apiserver.merge import entries
from koord.embedded.apiserver.merge.compare import same
from koord.embedded.apiserver.merge.walk import ANY
from koord.embedded.apiserver.schema.node import Node


def equal_ignoring_managed(old: Obj, new: Obj, node: Node = ANY) -> bool:
    """Whether the two objects differ at most in who owns them. With the kind's node it is quicker."""
    return same(entries.bare(old), entries.bare(new), node)


def kept_times(old: Obj, new: Obj, node: Node = ANY) -> list[Obj] | None:
    """The managedFields to store: the old ones when the new ones differ only in their times and nothing else changed.

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
