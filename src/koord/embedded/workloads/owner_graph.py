"""The owner graph over all kinds, and what it means for an object: keep it, drop owner references, delete it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from koord.api.kubernetes.meta import Object, OwnerReference
from koord.embedded.workloads.controller_context import ServedKind

ORPHAN_FINALIZER = "orphan"
FOREGROUND_FINALIZER = "foregroundDeletion"

OwnerState = Literal["solid", "waiting", "absent"]


class OwnerGraphNode(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    kind: ServedKind
    namespace: str
    name: str
    version: str
    owners: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def deletes_dependents_first(self) -> bool:
        """Return whether the object is deleted after its dependents."""
        return self.deleting and FOREGROUND_FINALIZER in self.finalizers

    @property
    def orphans_dependents(self) -> bool:
        """Return whether the object is deleted after its dependents were orphaned."""
        return self.deleting and ORPHAN_FINALIZER in self.finalizers

    def blocks(self, owner: str) -> bool:
        return any(ref.uid == owner and ref.block_owner_deletion for ref in self.owners)


def graph_node(obj: Object, kind: ServedKind) -> OwnerGraphNode:
    meta = obj.metadata
    return OwnerGraphNode(
        uid=meta.uid,
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        version=meta.resource_version,
        owners=meta.owner_references,
        finalizers=meta.finalizers,
        deleting=meta.deletion_timestamp is not None,
    )


class OwnerGraph:
    """Nodes by UID, and dependents by the UID of their owner. `put` and `remove` return the UIDs to process."""

    def __init__(self) -> None:
        self._items: dict[str, OwnerGraphNode] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def get(self, uid: str) -> OwnerGraphNode | None:
        return self._items.get(uid)

    def dependents(self, uid: str) -> list[OwnerGraphNode]:
        return [item for dependent in self._dependents.get(uid, ()) if (item := self._items.get(dependent)) is not None]

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: OwnerGraphNode) -> list[str]:
        old = self._items.get(item.uid)
        self._items[item.uid] = item
        links_changed = old is None or old.owners != item.owners
        if links_changed:
            for ref in old.owners if old is not None else ():
                self._unlink(ref.uid, item.uid)
            for ref in item.owners:
                self._dependents.setdefault(ref.uid, {})[item.uid] = None
        look: list[str] = []
        if item.deletes_dependents_first or item.orphans_dependents:
            if old is None or links_changed or old.finalizers != item.finalizers or not old.deleting:
                look.append(item.uid)
        elif links_changed and not item.deleting and any(self._is_owner_uncertain(item, ref) for ref in item.owners):
            look.append(item.uid)
        if old is not None and links_changed:
            # An owner may have waited for a reference that no longer blocks it.
            look += [ref.uid for ref in old.owners if self._is_waiting(ref.uid)]
        if item.deleting and not (old is not None and old.deleting):
            look += [ref.uid for ref in item.owners if self._is_waiting(ref.uid)]
        return look

    def remove(self, uid: str) -> list[str]:
        item = self._items.pop(uid, None)
        if item is None:
            return []
        for ref in item.owners:
            self._unlink(ref.uid, uid)
        return [*self._dependents.get(uid, ()), *(ref.uid for ref in item.owners if self._is_waiting(ref.uid))]

    def drop_kind(self, qualified: str) -> list[str]:
        """Remove all objects of a kind that is no longer served."""
        gone = [item.uid for item in self._items.values() if item.kind.qualified == qualified]
        return [look for uid in gone for look in self.remove(uid)]

    def _is_owner_uncertain(self, item: OwnerGraphNode, ref: OwnerReference) -> bool:
        owner = self._items.get(ref.uid)
        return owner is None or owner.deletes_dependents_first or owner.namespace not in ("", item.namespace)

    def _is_waiting(self, uid: str) -> bool:
        item = self._items.get(uid)
        return item is not None and item.deletes_dependents_first

    def _unlink(self, owner: str, dependent: str) -> None:
        known = self._dependents.get(owner)
        if known is not None:
            known.pop(dependent, None)
            if not known:
                del self._dependents[owner]


# -- decisions


class RemoveOwnerReferences(msgspec.Struct, frozen=True):
    """Remove these owner references; the object has other owners."""

    owners: frozenset[str]


class DeleteDependent(msgspec.Struct, frozen=True):
    propagation: Literal["Background", "Foreground", "Orphan"]
    unblock: bool = False  # first stop holding up the owners: it and they wait for each other


def decide_dependent(
    item: OwnerGraphNode, standings: Mapping[str, OwnerState], dependents: Iterable[OwnerGraphNode]
) -> RemoveOwnerReferences | DeleteDependent | None:
    """Decide what becomes of an object whose owners are in these states; None to leave it alone."""
    lost = frozenset(uid for uid, standing in standings.items() if standing != "solid")
    if not lost:
        return None
    if len(lost) < len(standings):
        return RemoveOwnerReferences(lost)
    below = list(dependents)
    if below and "waiting" in standings.values():
        return DeleteDependent("Foreground", unblock=any(dependent.deletes_dependents_first for dependent in below))
    if ORPHAN_FINALIZER in item.finalizers:
        return DeleteDependent("Orphan")
    return DeleteDependent("Foreground" if FOREGROUND_FINALIZER in item.finalizers else "Background")


def decide_waiting_owner(item: OwnerGraphNode, dependents: Iterable[OwnerGraphNode]) -> tuple[bool, list[str]]:
    """Decide whether an owner that waits for its dependents may go; else return the dependents to process."""
    blocking = [dependent for dependent in dependents if dependent.blocks(item.uid)]
    return not blocking, [dependent.uid for dependent in blocking if not dependent.deletes_dependents_first]
