"""The owner graph over all kinds, and what it means for an object: keep it, remove owner references, or
delete it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from koord.api.meta import Object, OwnerReference
from koord.embedded.workloads.discovery import Kind

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"

Standing = Literal["solid", "waiting", "absent"]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    kind: Kind
    namespace: str
    name: str
    version: str
    owners: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def foreground(self) -> bool:
        """Return whether the object is deleted after its dependents."""
        return self.deleting and FOREGROUND in self.finalizers

    @property
    def orphaning(self) -> bool:
        """Return whether the object is deleted after its dependents were orphaned."""
        return self.deleting and ORPHAN in self.finalizers

    def blocks(self, owner: str) -> bool:
        return any(ref.uid == owner and ref.block_owner_deletion for ref in self.owners)


def item_of(obj: Object, kind: Kind) -> Item:
    meta = obj.metadata
    return Item(
        uid=meta.uid,
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        version=meta.resource_version,
        owners=meta.owner_references,
        finalizers=meta.finalizers,
        deleting=meta.deletion_timestamp is not None,
    )


class Graph:
    """Nodes by UID, and dependents by the UID of their owner. `put` and `remove` return the UIDs to process."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def get(self, uid: str) -> Item | None:
        return self._items.get(uid)

    def dependents(self, uid: str) -> list[Item]:
        return [item for dependent in self._dependents.get(uid, ()) if (item := self._items.get(dependent)) is not None]

    def has_dependents(self, uid: str) -> bool:
        return bool(self._dependents.get(uid))

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> list[str]:
        old = self._items.get(item.uid)
        self._items[item.uid] = item
        links_changed = old is None or old.owners != item.owners
        if links_changed:
            for ref in old.owners if old is not None else ():
                self._unlink(ref.uid, item.uid)
            for ref in item.owners:
                self._dependents.setdefault(ref.uid, {})[item.uid] = None
        look: list[str] = []
        if item.foreground or item.orphaning:
            if old is None or links_changed or old.finalizers != item.finalizers or not old.deleting:
                look.append(item.uid)
        elif links_changed and not item.deleting and any(self._doubtful(item, ref) for ref in item.owners):
            look.append(item.uid)
        if old is not None and links_changed:
            # An owner may have waited for a reference that no longer blocks it.
            look += [ref.uid for ref in old.owners if self._waits(ref.uid)]
        if item.deleting and not (old is not None and old.deleting):
            look += [ref.uid for ref in item.owners if self._waits(ref.uid)]
        return look

    def remove(self, uid: str) -> list[str]:
        item = self._items.pop(uid, None)
        if item is None:
            return []
        for ref in item.owners:
            self._unlink(ref.uid, uid)
        return [*self._dependents.get(uid, ()), *(ref.uid for ref in item.owners if self._waits(ref.uid))]

    def drop_kind(self, qualified: str) -> list[str]:
        """Remove all objects of a kind that is no longer served."""
        gone = [item.uid for item in self._items.values() if item.kind.qualified == qualified]
        return [look for uid in gone for look in self.remove(uid)]

    def _doubtful(self, item: Item, ref: OwnerReference) -> bool:
        owner = self._items.get(ref.uid)
        return owner is None or owner.foreground or owner.namespace not in ("", item.namespace)

    def _waits(self, uid: str) -> bool:
        item = self._items.get(uid)
        return item is not None and item.foreground

    def _unlink(self, owner: str, dependent: str) -> None:
        known = self._dependents.get(owner)
        if known is not None:
            known.pop(dependent, None)
            if not known:
                del self._dependents[owner]


# -- decisions


class Unlink(msgspec.Struct, frozen=True):
    """Remove these owner references; the object has other owners."""

    owners: frozenset[str]


class Delete(msgspec.Struct, frozen=True):
    propagation: Literal["Background", "Foreground", "Orphan"]
    unblock: bool = False  # first stop holding up the owners: it and they wait for each other


def decide_dependent(
    item: Item, standings: Mapping[str, Standing], dependents: Iterable[Item]
) -> Unlink | Delete | None:
    """Decide what becomes of an object whose owners are in these states; None to leave it alone."""
    lost = frozenset(uid for uid, standing in standings.items() if standing != "solid")
    if not lost:
        return None
    if len(lost) < len(standings):
        return Unlink(lost)
    below = list(dependents)
    if below and "waiting" in standings.values():
        return Delete("Foreground", unblock=any(dependent.foreground for dependent in below))
    if ORPHAN in item.finalizers:
        return Delete("Orphan")
    return Delete("Foreground" if FOREGROUND in item.finalizers else "Background")


def decide_owner(item: Item, dependents: Iterable[Item]) -> tuple[bool, list[str]]:
    """Decide whether an owner that waits for its dependents may go; else return the dependents to process."""
    blocking = [dependent for dependent in dependents if dependent.blocks(item.uid)]
    return not blocking, [dependent.uid for dependent in blocking if not dependent.foreground]
