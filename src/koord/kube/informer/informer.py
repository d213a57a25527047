"""This module is the informer: a live, indexed copy of one kind, and handlers that are notified of every
change after the copy shows it.

Staying in step with the server is the reflector's work, holding objects the cache's. Everything here
belongs to one event loop: reads are plain calls, handlers are plain functions that must return quickly.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable, Iterable
from random import Random
from typing import Generic, TypeVar

import msgspec

from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.resource import Resource
from koord.kube.client.list_watch import DELETED, Listing, WatchEvent
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import IndexFunc, ObjectCache, ObjectChange, ObjectKey
from koord.kube.informer.reflector import MalformedObject, MalformedObjectLog, Reflector, ReflectorCounts, WatchScope
from koord.kube.rate_limit import RateLimitedLog
from koord.telemetry.clock import Clock

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_LOG = logging.getLogger(__name__)


class HandlerRegistration(Generic[O]):
    __slots__ = ("_filter", "_handler", "_limited_log", "_live", "errors", "name")

    def __init__(
        self, handler: Callable[[ObjectChange[O]], object], filter: Callable[[O], bool] | None, clock: Clock
    ) -> None:
        self.name: str = getattr(handler, "__qualname__", None) or repr(handler)
        self.errors = 0
        self._handler = handler
        self._filter = filter
        self._live = True
        self._limited_log = RateLimitedLog(
            _LOG, clock
        )  # a handler that fails on everything fails 50,000 times in one list

    def notify(self, change: ObjectChange[O]) -> None:
        """Notify the handler. One that raises is logged by name and counted; it misses this change alone."""
        if not self._live:
            return
        try:
            seen = change if self._filter is None else filter_change(change, self._filter)
            if seen is not None:
                self._handler(seen)
        except Exception as error:  # noqa: BLE001  other people's code: what it raises is theirs, and is said
            self.errors += 1
            meta = change.object.metadata
            self._limited_log.error(
                "handler %s failed on %s %s %s/%s",
                self.name,
                change.kind,
                type(change.object).__name__,
                meta.namespace,
                meta.name,
                exc_info=error,
            )

    def close(self) -> None:
        self._live = False


def filter_change(change: ObjectChange[O], wanted: Callable[[O], bool]) -> ObjectChange[O] | None:
    """Convert a change to what a handler sees that knows only the objects that match."""
    if change.kind == "added":
        return change if wanted(change.object) else None
    assert change.old is not None, f"{change.kind} without what was there before"
    before = wanted(change.old)
    if change.kind == "deleted":
        return change if before else None
    after = wanted(change.object)
    if before and after:
        return change
    if after:
        return ObjectChange(kind="added", object=change.object, initial=change.initial)
    if before:
        return msgspec.structs.replace(change, kind="deleted")
    return None


# Changes told before other tasks get a turn: a list of a whole cluster must not hold up a lease renewal.
_NOTIFY_BATCH = 2000


class Informer(Generic[O]):
    """Informer caches one kind. An InformerFactory makes it, or it stands alone: run it in a task."""

    def __init__(
        self,
        client: Client,
        resource: Resource[O],
        clock: Clock,
        *,
        scope: WatchScope = WatchScope(),  # noqa: B008 - a frozen value
        transform: Callable[[O], O | None] | None = None,
        resync_s: float | None = None,
        on_malformed: Callable[[MalformedObject], None] | None = None,
        rng: Random | None = None,
    ) -> None:
        """Create an informer. `transform` trims objects before they are cached, or drops them by returning None."""
        self.resource = resource
        self.scope = scope
        self.transform = transform
        self._clock = clock
        self._resync_s = resync_s
        self._malformed = MalformedObjectLog(resource.kind, on_malformed)
        self._cache: ObjectCache[O] = ObjectCache(self._malformed.report_index_error)
        self._handlers: tuple[HandlerRegistration[O], ...] = ()
        self._filled = False  # the first list is in the cache; its handlers may still be hearing of it
        self._synced = asyncio.Event()
        self._notify_lock = asyncio.Lock()
        self._reflector = Reflector(client, resource, scope, self, clock, rng or Random())

    # -- reads

    def get(self, namespace: str, name: str) -> O | None:
        """Return the cached object or None. `namespace` is "" for cluster-scoped kinds."""
        return self._cache.get(namespace, name)

    def list(self, namespace: str | None = None) -> builtins.list[O]:
        return self._cache.list(namespace)

    def by_index(self, name: str, value: str) -> builtins.list[O]:
        return self._cache.by_index(name, value)

    def index_values(self, name: str) -> builtins.list[str]:
        return self._cache.index_values(name)

    def add_index(self, name: str, key_fn: IndexFunc[O]) -> None:
        self._cache.add_index(name, key_fn)

    def has_index(self, name: str) -> bool:
        return self._cache.has_index(name)

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def has_synced(self) -> bool:
        """Return whether the first list is cached and every handler has been notified of all of it."""
        return self._synced.is_set()

    async def wait_for_sync(self) -> None:
        await self._synced.wait()

    @property
    def counts(self) -> ReflectorCounts:
        return self._reflector.counts

    @property
    def handler_errors(self) -> int:
        return sum(handler.errors for handler in self._handlers)

    @property
    def malformed_count(self) -> int:
        return self._malformed.reports

    # -- handlers

    def add_event_handler(
        self, handler: Callable[[ObjectChange[O]], object], *, filter: Callable[[O], bool] | None = None
    ) -> HandlerRegistration[O]:
        """Notify `handler` of every change, beginning with what is cached now as initial adds.

        With `filter` it sees a subset: an object that begins to match is added, one that ceases to match is
        deleted.
        """
        subscription = HandlerRegistration(handler, filter, self._clock)
        if self._filled:
            # Changes that are still being told to others are in the cache already; this handler is not in their round.
            for obj in self._cache.list():
                subscription.notify(ObjectChange(kind="added", object=obj, initial=True))
        self._handlers = (*self._handlers, subscription)
        return subscription

    def remove_event_handler(self, subscription: HandlerRegistration[O]) -> None:
        subscription.close()
        self._handlers = tuple(other for other in self._handlers if other is not subscription)

    # -- life

    async def run(self) -> None:
        """Run until cancelled."""
        if self._resync_s is None:
            await self._reflector.run()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name=f"reflector-{self.resource.plural}")
            group.create_task(self._resync(self._resync_s), name=f"resync-{self.resource.plural}")

    async def _resync(self, every_s: float) -> None:
        """Repeat all cached objects as updates without a difference, for handlers that missed their chance to act."""
        while True:
            await self._clock.sleep(every_s)
            async with self._notify_lock:
                handlers = self._handlers
                for number, stale in enumerate(self._cache.list(), 1):
                    # Watch events go on meanwhile: tell the state of now, and nothing of what has gone.
                    obj = self._cache.get(stale.metadata.namespace, stale.metadata.name)
                    if obj is not None:
                        _notify(handlers, (ObjectChange(kind="updated", object=obj, old=obj),))
                    if number % _NOTIFY_BATCH == 0:
                        await asyncio.sleep(0)

    # -- news from the reflector

    async def replace(self, listing: Listing[O]) -> None:
        initial = not self._filled
        unread: dict[ObjectKey, str] = {}  # who could not be read, with its UID
        for misfit in listing.undecodable:
            unread[misfit.namespace, misfit.name] = misfit.uid
            self._malformed.report(misfit.namespace, misfit.name, misfit.uid, misfit.why)
        kept: builtins.list[O] = []
        for obj in listing.items:
            try:
                slim = obj if self.transform is None else self.transform(obj)
            except Exception as error:  # noqa: BLE001  reported like any object that cannot be read; the rest goes on
                self._report_transform_error(obj.metadata, error)
                unread[obj.metadata.namespace, obj.metadata.name] = obj.metadata.uid
                continue
            if slim is not None:
                kept.append(slim)
        async with self._notify_lock:
            self._malformed.forget_all_but(unread)
            changes = self._cache.replace(kept, unread, initial=initial)  # publish, then wake
            self._filled = True
            await self._notify_all(changes)
        self._synced.set()

    def receive(self, event: WatchEvent[O]) -> None:
        obj = event.object
        if obj is None:
            self._receive_undecodable(event)
            return
        try:
            slim = obj if self.transform is None else self.transform(obj)
        except Exception as error:  # noqa: BLE001  as above
            self._report_transform_error(obj.metadata, error)
            if event.type == DELETED:
                self._remove_unseen(obj.metadata)
            return
        self._malformed.forget(obj.metadata.namespace, obj.metadata.name)
        if slim is None:
            self._remove_unseen(obj.metadata)
        elif event.type == DELETED:
            _notify(self._handlers, self._cache.remove(slim))
        else:
            _notify(self._handlers, self._cache.upsert(slim))

    def _receive_undecodable(self, event: WatchEvent[O]) -> None:
        """Handle an undecodable object: its last good state stays cached, but a deletion needs no decoding."""
        meta = event.body.typed(Object).metadata
        known = self._cache.get(meta.namespace, meta.name)
        if event.type == DELETED or (known is not None and known.metadata.uid != meta.uid):
            self._remove_unseen(meta)
        if event.type == DELETED:
            self._malformed.forget(meta.namespace, meta.name)
        else:
            why = event.status.message if event.status else "unreadable"
            self._malformed.report(meta.namespace, meta.name, meta.uid, why)

    def _remove_unseen(self, meta: ObjectMeta) -> None:
        _notify(self._handlers, self._cache.remove_unseen((meta.namespace, meta.name)))

    def _report_transform_error(self, meta: ObjectMeta, error: Exception) -> None:
        self._malformed.report(meta.namespace, meta.name, meta.uid, f"transform: {error!r}")

    async def _notify_all(self, changes: builtins.list[ObjectChange[O]]) -> None:
        handlers = self._handlers
        for start in range(0, len(changes), _NOTIFY_BATCH):
            _notify(handlers, changes[start : start + _NOTIFY_BATCH])
            if start + _NOTIFY_BATCH < len(changes):
                await asyncio.sleep(0)


def _notify(handlers: tuple[HandlerRegistration[O], ...], changes: Iterable[ObjectChange[O]]) -> None:
    for change in changes:
        for handler in handlers:
            handler.notify(change)
