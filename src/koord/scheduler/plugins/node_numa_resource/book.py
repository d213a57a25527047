"""One node's entries: who was given what, and the sums that follow. A value, so that a what-if is a copy.

A reservation and the pods that live in it are both on the node. What such a pod was given is taken off the
reservation's entry in the ledger, so that nothing is counted twice, and comes back to it when the pod leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.policy.topology.cpu_topology import CpuTopology, Invalid
from koord.policy.topology.ledger import Allocation, Ledger, ZoneAmounts, sum_of
from koord.values.cpuset import CPUSet


class Entry(msgspec.Struct, frozen=True):
    """As given. `lives_in` is the uid of the reservation that it comes out of."""

    given: Allocation
    lives_in: str = ""


class Book(msgspec.Struct, frozen=True):
    entries: Mapping[str, Entry] = {}  # by uid
    ledger: Ledger = Ledger()
    guests: Mapping[str, tuple[str, ...]] = {}  # by uid of a reservation, the pods that live in it

    @staticmethod
    def over(topology: CpuTopology | Invalid | None, entries: Mapping[str, Entry] | None = None) -> Book:
        book = Book(ledger=Ledger.over(topology))
        for uid, entry in (entries or {}).items():
            book = book.put(uid, entry)
        return book

    def on(self, topology: CpuTopology | Invalid) -> Book:
        """The same on what the machine is now known to be."""
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
    """With the reservation's own part brought in line with its guests."""
    return ledger.add(host, _own(host, entries, guests)) if host and host in entries else ledger


def _own(uid: str, entries: Mapping[str, Entry], guests: Mapping[str, tuple[str, ...]]) -> Allocation:
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
    """Never below nothing: a guest may have taken more than its reservation has, from what was free."""
    rest: dict[int, dict[str, int]] = {}
    for number, amounts in zones.items():
        taken = gone.get(number, {})
        left = {name: amount - taken.get(name, 0) for name, amount in amounts.items() if amount > taken.get(name, 0)}
        if left:
            rest[number] = left
    return rest
