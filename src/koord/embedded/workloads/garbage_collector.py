"""The garbage collector deletes dependents with their owner (background), before it (foreground) or never (orphan),
by the graph of owners over all kinds.

It watches the metadata of every kind that the server serves, custom ones as they come and go.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from koord.api.kubernetes.builtin_kinds import CUSTOM_RESOURCE_DEFINITIONS
from koord.api.kubernetes.meta import Object, ObjectMeta, OwnerReference
from koord.api.model import to_dict
from koord.embedded.workloads.controller_context import ControllerContext, ServedKind, ServedKinds, discover
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.informer import HandlerRegistration, Informer
from koord.kube.informer.reflector import WatchScope
from koord.kube.rate_limit import JitteredBackoff, RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS

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


_LOG = logging.getLogger(__name__)

# Custom kinds are noticed when they come and go; this is for kinds that appear without a CRD.
REDISCOVER_S = 300.0
_UNKNOWN_KIND_RETRY_S = 30.0
# Owners known to be gone, so that a thousand dependents of one ask once.
_MAX_ABSENT_OWNERS = 500
_REQUIRED_VERBS = frozenset(("list", "watch", "delete"))
# Events own nothing, are owned by nothing, and are half of all writes.
_IGNORED_RESOURCES = frozenset(("events", "events.events.k8s.io"))


class _WatchedKind(msgspec.Struct, frozen=True):
    informer: Informer[Any]
    subscription: HandlerRegistration[Any]
    task: asyncio.Task[None] | None  # None: the informer is shared and runs without us


class GarbageCollector:
    name = "garbage"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._graph = OwnerGraph()
        self._kinds = ServedKinds((), {})
        self._queue: WorkQueue[str] = WorkQueue(context.clock, name=self.name)
        self._watched_kinds: dict[str, _WatchedKind] = {}
        self._absent_owners: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._rediscover = asyncio.Event()
        self._definitions = context.informers.for_resource(CUSTOM_RESOURCE_DEFINITIONS)
        self._definitions.add_event_handler(lambda _: self._rediscover.set())

    async def run(self) -> None:
        try:
            await self._watch_all()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_discovering())
                group.create_task(self._context.run_controller(self.name, self._queue, self.reconcile, ()))
        finally:
            ends = [self._unwatch(qualified) for qualified in list(self._watched_kinds)]
            await asyncio.gather(*(end for end in ends if end is not None), return_exceptions=True)

    # -- watching

    async def _keep_discovering(self) -> None:
        while True:
            self._rediscover.clear()
            timer = asyncio.ensure_future(self._context.clock.sleep(REDISCOVER_S))
            news = asyncio.ensure_future(self._rediscover.wait())
            await asyncio.wait({timer, news}, return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            news.cancel()
            await asyncio.gather(timer, news, return_exceptions=True)
            await self._watch_all()

    async def _watch_all(self) -> None:
        """Watch what is served now, and wait until all of it has synced: half a graph looks like absent owners."""
        self._kinds = found = await self._discover_until_known()
        served = {
            kind.qualified: kind
            for kind in found.served
            if kind.verbs >= _REQUIRED_VERBS and kind.qualified not in _IGNORED_RESOURCES
        }
        for qualified in [known for known in self._watched_kinds if known not in served]:
            self._unwatch(qualified)
            self._enqueue(self._graph.drop_kind(qualified))
        for qualified, kind in served.items():
            if qualified not in self._watched_kinds:
                self._watch(qualified, kind)
        for watched in list(self._watched_kinds.values()):
            await watched.informer.wait_for_sync()

    async def _discover_until_known(self) -> ServedKinds:
        backoff = JitteredBackoff(self._context.clock, self._context.rng_for("garbage discovery"))
        quiet = RateLimitedLog(_LOG, self._context.clock)
        while True:
            try:
                found = await discover(self._client)
            except TRANSIENT_ERRORS as error:
                quiet.warning("cannot discover what the server serves: %s", error)
            else:
                if not isinstance(found, ApiError):
                    return found
                quiet.warning("cannot discover what the server serves: %s", found)
            await self._context.clock.sleep(backoff.next())

    def _watch(self, qualified: str, kind: ServedKind) -> None:
        """Watch one kind, through a shared informer where there is one: most objects are pods, read once."""
        shared = self._shared(kind)
        if shared is not None:
            subscription = shared.add_event_handler(lambda change: self._changed(change, kind))
            self._watched_kinds[qualified] = _WatchedKind(shared, subscription, None)
            return
        informer = Informer(
            self._client,
            kind.resource,
            self._context.clock,
            transform=_slim_metadata,
            rng=self._context.rng_for(f"garbage {qualified}"),
        )
        subscription = informer.add_event_handler(lambda change: self._changed(change, kind))
        task = asyncio.create_task(informer.run(), name=f"garbage-{qualified}")
        self._watched_kinds[qualified] = _WatchedKind(informer, subscription, task)

    def _shared(self, kind: ServedKind) -> Informer[Any] | None:
        for informer in self._context.informers:
            known = informer.resource
            whole = informer.scope == WatchScope() and informer.transform is None
            if whole and (known.group, known.plural) == (kind.resource.group, kind.resource.plural):
                return informer
        return None

    def _unwatch(self, qualified: str) -> asyncio.Task[None] | None:
        watched = self._watched_kinds.pop(qualified)
        watched.informer.remove_event_handler(watched.subscription)
        if watched.task is not None:
            watched.task.cancel()
        return watched.task

    def _changed(self, change: ObjectChange[Object], kind: ServedKind) -> None:
        if change.kind == "deleted":
            self._enqueue(self._graph.remove(change.object.metadata.uid))
        else:
            self._enqueue(self._graph.put(graph_node(change.object, kind)))

    def _enqueue(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._queue.add(uid)

    # -- one object

    async def reconcile(self, uid: str) -> ReconcileResult:
        item = self._graph.get(uid)
        if item is None:
            return Done()
        if item.orphans_dependents:
            return await self._orphan(item)
        if item.deletes_dependents_first:
            may_go, look = decide_waiting_owner(item, self._graph.dependents(uid))
            self._enqueue(look)
            return await self._without_finalizer(item, FOREGROUND_FINALIZER) if may_go else Done()
        if item.deleting or not item.owners:
            return Done()
        standings: dict[str, OwnerState] = {}
        for ref in item.owners:
            standing = await self._owner_state(item, ref)
            if isinstance(standing, RequeueAfter | Requeue):
                return standing
            standings[ref.uid] = standing
        match decide_dependent(item, standings, self._graph.dependents(uid)):
            case RemoveOwnerReferences(owners):
                kept = [ref for ref in item.owners if ref.uid not in owners]
                return await self._patch(item, {"ownerReferences": [to_dict(ref) for ref in kept] or None})
            case DeleteDependent() as verdict:
                return await self._delete(item, verdict)
            case None:
                return Done()

    async def _owner_state(self, item: OwnerGraphNode, ref: OwnerReference) -> OwnerState | RequeueAfter | Requeue:
        """Return the state of an owner. Only the server can say that one is absent: the graph may lack it."""
        owner = self._graph.get(ref.uid)
        if owner is not None and owner.namespace in ("", item.namespace):
            return "waiting" if owner.deletes_dependents_first else "solid"
        if (ref.uid, item.namespace) in self._absent_owners:
            return "absent"
        kind = self._kinds.find(ref.api_version, ref.kind)
        if kind is None:
            self._rediscover.set()
            return RequeueAfter(
                _UNKNOWN_KIND_RETRY_S
            )  # a kind that nobody serves, now: its objects may come back with it
        if kind.resource.namespaced and not item.namespace:
            return "solid"  # it names no namespace to look in: never a reason to delete
        live = await self._client.get(kind.resource, ref.name, item.namespace if kind.resource.namespaced else None)
        if isinstance(live, ApiError):
            if not live.not_found:
                return Requeue(live.message)
        elif live.metadata.uid == ref.uid:
            going = live.metadata.deletion_timestamp is not None and FOREGROUND_FINALIZER in live.metadata.finalizers
            return "waiting" if going else "solid"
        self._absent_owners[ref.uid, item.namespace] = None
        if len(self._absent_owners) > _MAX_ABSENT_OWNERS:
            self._absent_owners.popitem(last=False)
        return "absent"

    async def _delete(self, item: OwnerGraphNode, verdict: DeleteDependent) -> ReconcileResult:
        version = item.version
        if verdict.unblock:
            refs = [to_dict(msgspec.structs.replace(ref, block_owner_deletion=False)) for ref in item.owners]
            outcome = await self._patch(item, {"ownerReferences": refs})
            return Requeue("unblocked") if isinstance(outcome, Done) else outcome
        answer = await self._client.delete(
            item.kind.resource,
            item.name,
            item.namespace or None,
            uid=item.uid,
            resource_version=version,
            propagation=verdict.propagation,
        )
        if isinstance(answer, ApiError) and not answer.not_found:
            return Requeue(answer.message)
        return Done()

    async def _orphan(self, item: OwnerGraphNode) -> ReconcileResult:
        for dependent in self._graph.dependents(item.uid):
            kept = [to_dict(ref) for ref in dependent.owners if ref.uid != item.uid]
            outcome = await self._patch(dependent, {"ownerReferences": kept or None})
            if not isinstance(outcome, Done):
                return outcome
        return await self._without_finalizer(item, ORPHAN_FINALIZER)

    async def _without_finalizer(self, item: OwnerGraphNode, finalizer: str) -> ReconcileResult:
        kept = [name for name in item.finalizers if name != finalizer]
        return await self._patch(item, {"finalizers": kept or None})

    async def _patch(self, item: OwnerGraphNode, change: Unstructured) -> ReconcileResult:
        """Patch metadata over the version that was read, because lists are replaced whole."""
        answer = await self._client.patch(
            item.kind.resource,
            item.name,
            {"metadata": change},
            item.namespace or None,
            kind="merge",
            uid=item.uid,
            resource_version=item.version,
        )
        if isinstance(answer, ApiError) and not answer.not_found:
            return Requeue(answer.message)
        return Done()


def _slim_metadata(obj: Object) -> Object:
    """Drop labels and annotations, which are most of the metadata's size and are not read here."""
    meta = obj.metadata
    return Object(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            deletion_timestamp=meta.deletion_timestamp,
            owner_references=meta.owner_references,
            finalizers=meta.finalizers,
        )
    )
