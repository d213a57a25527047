"""NodeAllocationCache keeps the allocations of all nodes in line with placements and topologies."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from koord.api import custom
from koord.api.annotations import reservation_allocated
from koord.api.annotations.codec import Malformed
from koord.api.protocol import A_RESERVATION_ALLOCATED, A_RESOURCE_SPEC, A_RESOURCE_STATUS
from koord.api.topology import NodeResourceTopology
from koord.policy.topology.binding import Binding
from koord.policy.topology.ledger import Allocation
from koord.policy.topology.status import read_allocation
from koord.scheduler.framework.handle import Handle, Lister
from koord.scheduler.plugins.node_numa_resource.book import Book, Entry
from koord.scheduler.plugins.node_numa_resource.site import Site
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo

_NO_BOOK = Book()
_SPARE = 64


class Promise(msgspec.Struct, frozen=True):
    """The allocation of a pod that is not bound yet. `owners`: running pods whose allocations become part of it."""

    node_name: str
    entry: Entry
    binding: Binding | None
    guests: tuple[str, ...] = ()


class Books:
    """The allocations of all nodes, one for all profiles: get it with `NodeAllocationCache.for_handle(handle)`."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._table = state.table
        self._books: dict[str, Book] = {}  # by node name, where something is allocated
        self._lister: Lister[NodeResourceTopology] | None = None
        self.promises: dict[str, Promise] = {}  # by uid
        self._hosts: dict[str, str] = {}  # by uid of an owner: the reservation that is assumed to take it over
        self.unread: dict[str, Malformed] = {}  # by uid: annotations of placed pods that cannot be read
        state.listen(self._placed)
        state.follow(self._updated)

    @staticmethod
    def of(handle: Handle) -> Books:
        books = handle.state.derived(Books)
        lister = handle.lister(custom.NODE_RESOURCE_TOPOLOGIES)
        if books._lister is None:
            books._lister = lister
            lister.on_change(books._described)
        return books

    def topology(self, name: str) -> NodeResourceTopology | None:
        return None if self._lister is None else self._lister.get("", name)

    def book(self, site: Site, name: str) -> Book:
        book = self._books.get(name)
        if book is None:
            return site.empty
        if book.ledger.topology is not site.topology.cpu:
            fresh = book.on(site.topology.cpu)
            if fresh is not book:
                book = self._books[name] = fresh
        return book

    # What happens ------------------------------------------------------------------------------------------------

    def _described(self, old: NodeResourceTopology | None, new: NodeResourceTopology | None) -> None:
        found = new if new is not None else old
        assert found is not None
        node = self._table.index.get(found.metadata.name)
        if node is not None:
            self._table.note(node.row)
            self._table.node_changes.note(node.row)  # it describes the node as the node's own object does

    def _placed(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        """Handle a placement; the state has noted the row already."""
        if what == "add":
            # The annotation of an assumed pod is of an earlier attempt, or a hint: what it gets is assumed in Reserve.
            if pod.annotations and A_RESOURCE_STATUS in pod.annotations and not self._state.is_assumed(pod.uid):
                self._enter(pod, node.name)
            return
        name = node.name
        if self.promises:
            self._let_go(name, self.promises.pop(pod.uid, None))
        if self.unread:
            self.unread.pop(pod.uid, None)
        book = self._books.get(name)
        if book is not None and pod.uid in book.entries:
            self._set(name, book.take(pod.uid))

    def _updated(self, before: PodInfo, after: PodInfo) -> None:
        """Replace an assumed allocation by the pod's annotation once the pod is seen bound."""
        if after.annotations and A_RESOURCE_STATUS in after.annotations and not self._state.is_assumed(after.uid):
            name, book = after.node_name, self._books.get(after.node_name)
            promise = self.promises.pop(after.uid, None)
            if promise is not None:
                for guest in promise.guests:  # from now on their annotations name their reservation
                    self._hosts.pop(guest, None)
            self._enter(after, name)
            if self._books.get(name) is not book:
                self._note(name)

    def _enter(self, pod: PodInfo, name: str) -> None:
        annotations = pod.annotations
        found = _read(annotations[A_RESOURCE_STATUS], annotations.get(A_RESOURCE_SPEC))
        if isinstance(found, Malformed):
            self.unread[pod.uid] = found
        elif found is not None:
            text = annotations.get(A_RESERVATION_ALLOCATED)
            if text is not None:  # it names its reservation itself
                self._hosts.pop(pod.uid, None)
            entry = Entry(found, _host(text) if text is not None else self._hosts.get(pod.uid, ""))
            self._set(name, self._books.get(name, _NO_BOOK).put(pod.uid, entry))

    def promise(self, uid: str, promise: Promise) -> None:
        name = promise.node_name
        self.promises[uid] = promise
        book = self._books.get(name, _NO_BOOK)
        for guest in promise.guests:
            self._hosts[guest] = uid
            book = _moved(book, guest, uid)
        self._set(name, book.put(uid, promise.entry))
        self._note(name)

    def withdraw(self, uid: str) -> None:
        """Release an assumed allocation; a pod that was seen bound meanwhile keeps its own."""
        promise = self.promises.pop(uid, None)
        book = self._books.get(promise.node_name) if promise is not None else None
        if promise is not None and book is not None:
            self._set(promise.node_name, book.take(uid))
            self._let_go(promise.node_name, promise)
            self._note(promise.node_name)

    def _let_go(self, name: str, promise: Promise | None) -> None:
        """Take the owners out of a reservation that does not come into being."""
        for guest in () if promise is None else promise.guests:
            if self._hosts.pop(guest, None) is not None:
                self._set(name, _moved(self._books.get(name, _NO_BOOK), guest, ""))

    def _set(self, name: str, book: Book) -> None:
        if book.entries:
            self._books[name] = book
        else:
            self._books.pop(name, None)

    def _note(self, name: str) -> None:
        node = self._table.index.get(name)
        if node is not None:
            self._table.note(node.row)

    def held(self) -> dict[str, dict[str, Entry]]:
        """Return the allocations by node name and uid, for comparison."""
        return {name: dict(book.entries) for name, book in self._books.items()}


def _moved(book: Book, guest: str, host: str) -> Book:
    """Return the node's allocation with the pod moved to another reservation, or out of one."""
    entry = book.entries.get(guest)
    return book if entry is None else book.put(guest, Entry(entry.given, host))


class Sites:
    """The topology profiles of all nodes for one scheduling profile: where a node's label does not say, the
    arguments do.
    """

    def __init__(self, books: Books, default_strategy: str, state: ClusterState) -> None:
        self._books = books
        self._default_strategy = default_strategy
        self._table = state.table
        self._known: dict[str, Site] = {}

    def of(self, node: NodeInfo) -> Site:
        assert node.node is not None
        found = self._books.topology(node.name)
        known = self._known.get(node.name)
        if known is None or not known.still_holds(node.node, found):
            if len(self._known) > 2 * self._table.live + _SPARE:  # mostly of nodes that are gone
                self._known.clear()
            known = self._known[node.name] = Site(node.node, found, self._default_strategy)
        return known


@lru_cache(maxsize=1024)
def _read(status: str, spec: str | None) -> Allocation | Malformed | None:
    written = {A_RESOURCE_STATUS: status}
    return read_allocation(written if spec is None else {**written, A_RESOURCE_SPEC: spec})


@lru_cache(maxsize=1024)
def _host(text: str) -> str:
    found = reservation_allocated.parse({A_RESERVATION_ALLOCATED: text})
    return found.uid if isinstance(found, reservation_allocated.ReservationAllocated) else ""
