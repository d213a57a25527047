"""An index of every reservation and its owners, which finds the reservations for a pod without scanning all
of them.

Its content is a function of the live reservations and of the pods that hold a part of one, assumed pods
included; `ReservationIndex.build` makes the same from those alone. `handle` is the only mutator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from koord.api.meta import OwnerReference
from koord.policy.reservation.holding import Holding
from koord.policy.reservation.owner import ANYONE, Key, keys_of
from koord.policy.reservation.seeker import Counts, Seeker
from koord.policy.reservation.standing import Standing


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod with a part of a reservation, by its annotation or assumed and not yet confirmed by the API server."""

    uid: str
    reservation: str  # uid
    node: str
    requests: Counts = {}


class Seen(msgspec.Struct, frozen=True):
    holding: Holding


class Gone(msgspec.Struct, frozen=True):
    """The reservation was deleted, or it ended: from now on its owners are pods like any other."""

    uid: str


class Occupied(msgspec.Struct, frozen=True):
    occupant: Occupant


class Vacated(msgspec.Struct, frozen=True):
    """The pod ended, or its assumption was withdrawn."""

    pod: str  # uid


Event: TypeAlias = Seen | Gone | Occupied | Vacated


class Eased(msgspec.Struct, frozen=True):
    """Pods that were refused on these nodes may fit now: something was released, or opened to more pods."""

    nodes: frozenset[str]
    cause: Event


_NO_PARTS: Mapping[str, Occupant] = {}


class Register:
    def __init__(self) -> None:
        self._holdings: dict[str, Holding] = {}
        self._occupants: dict[str, Occupant] = {}
        self._parts: dict[str, dict[str, Occupant]] = {}  # reservation -> pod -> part
        self._standings: dict[str, Standing] = {}
        self._on_node: dict[str, dict[str, Standing]] = {}
        self._index: dict[Key, set[str]] = {}
        self._names: dict[str, str] = {}
        # How many keys of the index are of one pod, of whoever comes, of a controller's pods.
        self._personal = self._public = self._controlled = 0
        self._labels: dict[str, Counter[str]] = {}  # key -> values, of those among them that are labels

    @staticmethod
    def of(holdings: Iterable[Holding], occupants: Iterable[Occupant]) -> Register:
        register = Register()
        for holding in holdings:
            register.handle(Seen(holding))
        for occupant in occupants:
            register.handle(Occupied(occupant))
        return register

    # -- changing

    def handle(self, event: Event) -> tuple[Eased, ...]:
        nodes: set[str] = set()
        match event:
            case Seen(holding):
                before = self._holdings.get(holding.uid)
                if before != holding:
                    self._forget(holding.uid)
                    self._holdings[holding.uid] = holding
                    self._names[holding.name] = holding.uid
                    for key in _keys(holding):
                        self._index.setdefault(key, set()).add(holding.uid)
                        self._count(key, 1)
                    self._settle(holding.uid)
                    nodes = {held.node for held in (before, holding) if held is not None}
            case Gone(uid):
                gone = self._holdings.get(uid)
                if gone is not None:
                    nodes = {gone.node}
                    self._forget(uid)
            case Occupied(occupant):
                old = self._occupants.get(occupant.uid)
                if old != occupant:
                    if old is not None:
                        nodes = {old.node}
                        self._vacate(old)
                    self._occupants[occupant.uid] = occupant
                    self._parts.setdefault(occupant.reservation, {})[occupant.uid] = occupant
                    self._settle(occupant.reservation)
            case Vacated(pod):
                left = self._occupants.get(pod)
                if left is not None:
                    nodes = {left.node}
                    self._vacate(left)
        nodes.discard("")
        return (Eased(frozenset(nodes), event),) if nodes else ()

    def _vacate(self, occupant: Occupant) -> None:
        del self._occupants[occupant.uid]
        parts = self._parts[occupant.reservation]
        del parts[occupant.uid]
        if not parts:
            del self._parts[occupant.reservation]
        self._settle(occupant.reservation)

    def _forget(self, uid: str) -> None:
        holding = self._holdings.pop(uid, None)
        if holding is None:
            return
        for key in _keys(holding):
            found = self._index[key]
            found.discard(uid)
            self._count(key, -1)
            if not found:
                del self._index[key]
        if self._names.get(holding.name) == uid:
            del self._names[holding.name]
        self._settle(uid, holding.node)

    def _count(self, key: Key, sign: int) -> None:
        kind = key[0]
        if kind in ("name", "uid"):
            self._personal += sign
        elif kind in ("controller", "controller-uid"):
            self._controlled += sign
        elif kind != "label":
            self._public += sign
        else:
            values = self._labels.setdefault(key[1], Counter())
            values[key[2]] += sign
            if not values[key[2]]:
                del values[key[2]]
                if not values:
                    del self._labels[key[1]]

    def _settle(self, uid: str, last_node: str = "") -> None:
        """Recompute what is derived from one reservation."""
        before = self._standings.pop(uid, None)
        node = before.holding.node if before is not None else last_node
        on_node = self._on_node.get(node)
        if on_node is not None:
            on_node.pop(uid, None)
            if not on_node:
                del self._on_node[node]
        holding = self._holdings.get(uid)
        if holding is None or not holding.available or not holding.node:
            return
        parts = [part for part in self._parts.get(uid, {}).values() if part.node == holding.node]
        standing = _standing(holding, parts)
        self._standings[uid] = standing
        self._on_node.setdefault(holding.node, {})[uid] = standing

    # -- reading

    def get(self, uid: str) -> Standing | None:
        """Return a reservation that holds something now."""
        return self._standings.get(uid)

    def named(self, name: str) -> Standing | None:
        return self._standings.get(self._names.get(name, ""))

    def occupant(self, pod: str) -> Occupant | None:
        return self._occupants.get(pod)

    def parts(self, uid: str) -> Mapping[str, Occupant]:
        """Return the owner pods of a reservation by uid, also on other nodes and after it is gone."""
        return self._parts.get(uid, _NO_PARTS)

    def holding(self, uid: str) -> Holding | None:
        """Return any known reservation, whether or not it holds something now."""
        return self._holdings.get(uid)

    def with_parts(self, standing: Standing, there: Container[str]) -> Standing:
        """Return the reservation as it would be with only those of its owners that are in `there`."""
        parts = self.parts(standing.holding.uid)
        node = standing.holding.node
        left = [part for pod, part in parts.items() if part.node == node and pod in there]
        return standing if len(left) == standing.assigned else _standing(standing.holding, left)

    def reached_in_person(self, uid: str, name: str) -> bool:
        """Return whether some reservation is for a pod of exactly this name or uid."""
        if not self._personal:
            return False
        return ("name", name) in self._index or ("uid", uid) in self._index

    def reached_by(self, namespace: str, labels: Mapping[str, str], owners: tuple[OwnerReference, ...]) -> bool:
        """Return whether pods like this may match some reservation. It is asked of every pod, so it looks up little."""
        known = self._labels
        if known:
            if len(known) < len(labels):
                if any(labels.get(key) in values for key, values in known.items()):
                    return True
            else:
                for key, value in labels.items():
                    if key in known and value in known[key]:
                        return True
        index = self._index
        if self._public and (ANYONE in index or ("namespace", namespace) in index):
            return True
        if not self._controlled:
            return False
        return any(("controller", o.name) in index or ("controller-uid", o.uid) in index for o in owners)

    @property
    def standings(self) -> Mapping[str, Standing]:
        return self._standings

    @property
    def nodes(self) -> Collection[str]:
        """Return the nodes on which something is reserved."""
        return self._on_node.keys()

    def on(self, node: str) -> tuple[Standing, ...]:
        """Return every reservation that holds something on a node, by name."""
        found = self._on_node.get(node)
        return tuple(sorted(found.values(), key=lambda s: (s.holding.name, s.holding.uid))) if found else ()

    def candidates(self, pod: Seeker) -> dict[str, list[Standing]]:
        """Return, by node, the matchable reservations that this pod can own.

        A pod that names one is shown what is on that one's node, and everywhere when there is no such
        reservation. A pod that ignores reservations is shown all. The cost is that of what is found, not of what
        exists.
        """
        if pod.ignores:
            found: Collection[str] = self._standings.keys()
        else:
            found = set[str]().union(*(self._index.get(key, ()) for key in keys_of(pod)))
        one = self.named(pod.named) if pod.named else None
        by_node: dict[str, list[Standing]] = {}
        for uid in found:
            standing = self._standings.get(uid)
            if standing is None or not standing.is_matchable:
                continue
            if one is not None and standing.holding.node != one.holding.node:
                continue
            if pod.ignores or standing.holding.is_for(pod):
                by_node.setdefault(standing.holding.node, []).append(standing)
        for standings in by_node.values():
            standings.sort(key=lambda s: (s.holding.name, s.holding.uid))
        return by_node

    def refusal_to_take(self, uid: str) -> str | None:
        """Return why a pod cannot be assumed into a reservation."""
        standing = self._standings.get(uid)
        if standing is None:
            return "cannot find target reservation"
        return "target reservation is terminating" if standing.holding.terminating else None


def _standing(holding: Holding, parts: Sequence[Occupant]) -> Standing:
    allocated: dict[str, int] = {}
    for part in parts:
        for name, amount in part.requests.items():
            if name in holding.reserved:
                allocated[name] = allocated.get(name, 0) + amount
    return Standing(holding=holding, allocated=allocated, assigned=len(parts))


def _keys(holding: Holding) -> set[Key]:
    return {key for owner in holding.owners for key in owner.index_keys()}
