"""NodeAllocationCache keeps the CPU and NUMA allocations of all nodes in line with placements and topologies.

    pod placed, with resource-status  -------------------------------------+
    Reserve: assumed for a pod on its way to the node  --> PodAllocation --+--> the node's NodeAllocation
    pod gone, or Unreserve  ---------------------------> no PodAllocation

An assumed allocation ends when its pod is seen bound: from then on its annotation counts. Everything is
derived, and at any time equal to a rebuild. A reservation and the pods in it are both on the node: what
such a pod was given is taken off the reservation's part of the ledger, so that nothing is counted twice,
and returns to it when the pod leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.policy.topology.cpu_topology import CpuTopology, Invalid
from koord.policy.topology.ledger import Allocation, Ledger, ZoneAmounts, sum_of
from koord.values.cpuset import CPUSet


class Entry(msgspec.Struct, frozen=True):
    """What a pod was given. `reservation_uid` is the uid of the reservation that it was taken from."""

    given: Allocation
    lives_in: str = ""


class Book(msgspec.Struct, frozen=True):
    """The allocations of one node and their sums: an immutable value, so that a dry run is a copy."""
    entries: Mapping[str, Entry] = {}  # by uid
    ledger: Ledger = Ledger()
    guests: Mapping[str, tuple[str, ...]] = {}  # by uid of a reservation, the pods that own a part of it

    @staticmethod
    def over(topology: CpuTopology | Invalid | None, entries: Mapping[str, Entry] | None = None) -> Book:
        book = Book(ledger=Ledger.over(topology))
        for uid, entry in (entries or {}).items():
            book = book.put(uid, entry)
        return book

    def on(self, topology: CpuTopology | Invalid) -> Book:
        """Return the same allocations on the topology that is now known."""
        ledger = self.ledger.on(topology)
        return self if ledger is self.ledger else Book(self.entries, ledger, self.guests)

    def put(self, uid: str, entry: Entry) -> Book:
        before = self.entries.get(uid)
        if before == entry:
            return self
        book = self if before is None else self.take(uid)
        if entry.given.is_empty():
            return book
        guests = book.guests
        if entry.lives_in:
            guests = {**guests, entry.lives_in: (*guests.get(entry.lives_in, ()), uid)}
        entries = {**book.entries, uid: entry}
        ledger = book.ledger.add(uid, _own(uid, entries, guests))
        return Book(entries, _settled(ledger, entry.lives_in, entries, guests), guests)

    def take(self, uid: str) -> Book:
        entry = self.entries.get(uid)
        if entry is None:
            return self
        entries = {other: kept for other, kept in self.entries.items() if other != uid}
        guests = self.guests
        if entry.lives_in:
            others = tuple(guest for guest in guests[entry.lives_in] if guest != uid)
            guests = {host: listed for host, listed in guests.items() if host != entry.lives_in}
            if others:
                guests = {**guests, entry.lives_in: others}
        ledger = self.ledger.remove(uid)
        return Book(entries, _settled(ledger, entry.lives_in, entries, guests), guests)


def _settled(ledger: Ledger, host: str, entries: Mapping[str, Entry], guests: Mapping[str, tuple[str, ...]]) -> Ledger:
    """Return the ledger with the reservation's own part updated for its owners."""
    return ledger.add(host, _own(host, entries, guests)) if host and host in entries else ledger


def _own(uid: str, entries: Mapping[str, Entry], guests: Mapping[str, tuple[str, ...]]) -> Allocation:
    """Return what a pod holds itself: a reservation holds what its owners do not use."""
    given = entries[uid].given
    inside = guests.get(uid)
    if not inside:
        return given
    cpus, zones = given.cpus.bits, []
    for guest in inside:
        cpus &= ~entries[guest].given.cpus.bits
        zones.append(entries[guest].given.zones)
    return Allocation(CPUSet(cpus), given.exclusive if cpus else "", _less(given.zones, sum_of(zones)))


def _less(zones: ZoneAmounts, gone: ZoneAmounts) -> ZoneAmounts:
    """Subtract amounts, never below zero: an owner may have taken more than its reservation has, from what was
    free.
    """
    rest: dict[int, dict[str, int]] = {}
    for number, amounts in zones.items():
        taken = gone.get(number, {})
        left = {name: amount - taken.get(name, 0) for name, amount in amounts.items() if amount > taken.get(name, 0)}
        if left:
            rest[number] = left
    return rest
