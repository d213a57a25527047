"""This module holds the objects of one kind with their indexes and computes what each update changed.

It does no I/O and never waits: the reflector delivers updates, the informer notifies the handlers.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Generic, Literal, TypeVar

import msgspec

from koord.api.kubernetes.meta import Object

O = TypeVar("O", bound=Object)  # noqa: E741  an object

ChangeKind = Literal["added", "updated", "deleted"]
ObjectKey = tuple[str, str]  # namespace ("" when cluster-scoped) and name
IndexFunc = Callable[[O], Iterable[str]]
NOTHING_KEPT: Mapping[ObjectKey, str] = MappingProxyType({})
OnIndexError = Callable[[str, O, Exception], None]


class ObjectChange(msgspec.Struct, Generic[O], frozen=True, kw_only=True):
    """ObjectChange is one step from the state that was cached to the state that is cached now."""

    kind: ChangeKind
    object: O  # the state after the step; for "deleted" the last state seen
    old: O | None = None  # the state before it, except for "added"
    initial: bool = False  # part of the content that was there when the handler began to look
    final_unknown: bool = False  # deleted while no watch was open: `object` may lack its last updates


def object_key(obj: Object) -> ObjectKey:
    return obj.metadata.namespace, obj.metadata.name


def _identity(obj: Object) -> str:
    """Return the UID, which is unique among live objects and costs an index no new string."""
    return obj.metadata.uid or f"{obj.metadata.namespace}/{obj.metadata.name}"


class _Index(Generic[O]):
    __slots__ = ("_buckets", "_key_fn", "_name", "_on_error")

    def __init__(self, name: str, key_fn: IndexFunc[O], on_error: OnIndexError[O]) -> None:
        self._name = name
        self._key_fn = key_fn
        self._on_error = on_error
        self._buckets: dict[str, dict[str, O]] = {}

    def values(self, obj: O) -> tuple[str, ...]:
        try:
            found = self._key_fn(obj)
            return (found,) if isinstance(found, str) else tuple(dict.fromkeys(found))
        except Exception as error:  # noqa: BLE001  an object that one index cannot place is still an object: say so, keep it
            self._on_error(self._name, obj, error)
            return ()

    def move(self, old: O | None, new: O | None) -> None:
        before = () if old is None else self.values(old)
        after = () if new is None else self.values(new)
        if old is not None:
            identity = _identity(old)
            stays = after if new is not None and _identity(new) == identity else ()
            for value in before:
                if value not in stays:
                    bucket = self._buckets[value]
                    del bucket[identity]
                    if not bucket:
                        del self._buckets[value]
        if new is not None:
            identity = _identity(new)
            for value in after:
                self._buckets.setdefault(value, {})[identity] = new

    def get(self, value: str) -> builtins.list[O]:
        bucket = self._buckets.get(value)
        return list(bucket.values()) if bucket else []

    def keys(self) -> builtins.list[str]:
        return list(self._buckets)


class ObjectCache(Generic[O]):
    """ObjectCache keeps objects by namespace and name. Objects are frozen, so a reader's copy never changes."""

    def __init__(self, on_index_error: OnIndexError[O]) -> None:
        self._on_index_error = on_index_error
        self._by_namespace: dict[str, dict[str, O]] = {}
        self._indexes: dict[str, _Index[O]] = {}
        self._size = 0

    # -- reads

    def get(self, namespace: str, name: str) -> O | None:
        found = self._by_namespace.get(namespace)
        return None if found is None else found.get(name)

    def list(self, namespace: str | None = None) -> builtins.list[O]:
        if namespace is not None:
            return [*self._by_namespace.get(namespace, {}).values()]
        return [*self]

    def __iter__(self) -> Iterator[O]:
        for names in self._by_namespace.values():
            yield from names.values()

    def __len__(self) -> int:
        return self._size

    def add_index(self, name: str, key_fn: IndexFunc[O]) -> None:
        """Add an index over the values that `key_fn` returns; objects that are already cached are included."""
        if name in self._indexes:
            raise ValueError(f"there is an index named {name!r} already")
        index = _Index(name, key_fn, self._on_index_error)
        for obj in self:
            index.move(None, obj)
        self._indexes[name] = index

    def has_index(self, name: str) -> bool:
        return name in self._indexes

    def by_index(self, name: str, value: str) -> builtins.list[O]:
        return self._indexes[name].get(value)

    def index_values(self, name: str) -> builtins.list[str]:
        return self._indexes[name].keys()

    # -- news

    def upsert(self, obj: O) -> builtins.list[ObjectChange[O]]:
        """Store the current state of an object. The same name with another UID is another object."""
        old = self.get(obj.metadata.namespace, obj.metadata.name)
        if old is None:
            self._put(None, obj)
            return [ObjectChange(kind="added", object=obj)]
        if old.metadata.uid != obj.metadata.uid:
            self._put(old, obj)
            return [_deleted_unseen(old), ObjectChange(kind="added", object=obj)]
        self._put(old, obj)
        return [ObjectChange(kind="updated", object=obj, old=old)]

    def remove(self, obj: O) -> builtins.list[ObjectChange[O]]:
        """Remove an object that the server reported as deleted in this last state."""
        old = self.get(obj.metadata.namespace, obj.metadata.name)
        if old is None:
            return []
        self._put(old, None)
        if old.metadata.uid != obj.metadata.uid:
            return [
                _deleted_unseen(old)
            ]  # its deletion and the creation and deletion of its successor were not observed
        return [ObjectChange(kind="deleted", object=obj, old=old)]

    def remove_unseen(self, key: ObjectKey) -> builtins.list[ObjectChange[O]]:
        """Remove the object at a key whose last state nobody saw."""
        old = self.get(*key)
        if old is None:
            return []
        self._put(old, None)
        return [_deleted_unseen(old)]

    def replace(
        self, objects: Iterable[O], keep: Mapping[ObjectKey, str] = NOTHING_KEPT, *, initial: bool = False
    ) -> builtins.list[ObjectChange[O]]:
        """Replace the whole content, except for `keep` (key to UID): objects that exist but could not be decoded.

        Objects that are not listed were deleted unseen. Deletions are returned first, so that a handler that sums
        never counts a name twice.
        """
        incoming: dict[ObjectKey, O] = {object_key(obj): obj for obj in objects}
        gone = [key for obj in self if (key := object_key(obj)) not in incoming and keep.get(key) != obj.metadata.uid]
        changes = [change for key in gone for change in self.remove_unseen(key)]
        for obj in incoming.values():
            old = self.get(obj.metadata.namespace, obj.metadata.name)
            if old is not None and _same_version(old, obj):
                continue
            if initial and old is None:
                self._put(None, obj)
                changes.append(ObjectChange(kind="added", object=obj, initial=True))
            else:
                changes += self.upsert(obj)
        return changes

    def _put(self, old: O | None, new: O | None) -> None:
        if new is not None:
            meta = new.metadata
            names = self._by_namespace.get(meta.namespace)
            if names is None:
                names = self._by_namespace[meta.namespace] = {}
            names[meta.name] = new
            self._size += old is None
        elif old is not None:
            names = self._by_namespace[old.metadata.namespace]
            del names[old.metadata.name]
            if not names:
                del self._by_namespace[old.metadata.namespace]
            self._size -= 1
        for index in self._indexes.values():
            index.move(old, new)


def _deleted_unseen(old: O) -> ObjectChange[O]:
    return ObjectChange(kind="deleted", object=old, old=old, final_unknown=True)


def _same_version(old: O, new: O) -> bool:
    """Return whether both are the same version of one object, which needs servers that set resource versions."""
    return (
        old.metadata.uid == new.metadata.uid
        and old.metadata.resource_version == new.metadata.resource_version
        and new.metadata.resource_version != ""
    )
