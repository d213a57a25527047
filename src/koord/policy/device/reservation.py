"""Allocate devices that reservations hold for a pod, with the node's own devices as the fallback.

The ledger counts both a reservation and the pods inside it. Returning the pods' part once, and what is
left of the reservation to its owners, makes the sum right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from koord.policy.device import holding
from koord.policy.device.allocator import Allocation
from koord.policy.device.holding import NOTHING, Holdings
from koord.policy.device.refusal import RESERVATION_PREFIX, Code, Refusal
from koord.policy.device.view import Terms

Attempt: TypeAlias = Callable[[Terms], Allocation | Refusal]


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one reservation that the pod may use, or of a pod whose devices a reservation takes over."""

    uid: str
    devices: Holdings
    allocated: Holdings = NOTHING  # by its pods, on its own devices
    preemptible: Holdings = NOTHING  # of its pods that would be evicted
    restricted: bool = False
    taken_over: bool = False

    @property
    def remained(self) -> Holdings:
        return holding.positive(holding.minus(self.devices, self.allocated))


class Placed(msgspec.Struct, frozen=True):
    allocation: Allocation
    reservation: str = ""  # UID; empty for the node's own devices


class Reusable(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is not simply free. `double_counted` is held by pods inside reservations of others, plus
    victims.
    """

    counted_twice: Holdings = NOTHING
    matched: Sequence[Reserved] = ()
    required: bool = False  # the pod must use a reservation
    ignores_reservations: bool = False  # the pod may take what is reserved as if it were free

    def on_node(self) -> Holdings:
        """Return what the node can offer when all matched reservations are opened."""
        total = self.counted_twice
        for one in self.matched:
            total = holding.plus(holding.plus(total, one.allocated), one.remained)
        return total


def allocate_with(reusable: Reusable, attempt: Attempt, terms: Terms) -> Placed | Refusal:
    """Allocate from the first reservation, by UID, that serves, otherwise from the node. `terms` hold in any case."""
    if reusable.ignores_reservations:
        return _placed(attempt(_with(terms, reusable.on_node())))
    reasons: list[str] = []
    matched = sorted(reusable.matched, key=lambda one: one.uid)
    shared = reusable.counted_twice
    for one in matched:
        shared = holding.plus(shared, one.allocated)
    for one in matched:
        found = _inside(one, shared, attempt, terms)
        if isinstance(found, Allocation):
            return Placed(found, one.uid)
        reasons += found.reasons
    if reusable.required:
        return Refusal(Code.UNSCHEDULABLE, tuple(dict.fromkeys(RESERVATION_PREFIX + reason for reason in reasons)))
    return _placed(attempt(_with(terms, reusable.on_node())))


def _inside(one: Reserved, shared: Holdings, attempt: Attempt, terms: Terms) -> Allocation | Refusal:
    remained = one.remained
    offered = holding.plus(holding.plus(shared, remained), one.preemptible)
    if one.taken_over:  # all of its devices, whichever they are
        included = {kind: frozenset(minors) for kind, minors in one.devices.items()}
        return attempt(msgspec.structs.replace(_with(terms, offered), included=included))
    if not one.restricted:
        return attempt(_with(terms, offered, preferred=remained))
    inside = holding.plus(remained, holding.within(one.preemptible, one.devices))
    # A device of which nothing is left stays in the map with nothing: absent would mean that it is unrestricted.
    required = {
        kind: {minor: inside.get(kind, {}).get(minor, {}) for minor in minors} for kind, minors in one.devices.items()
    }
    return attempt(_with(terms, offered, required=required))


def _with(
    terms: Terms, reusable: Holdings, *, required: Holdings | None = None, preferred: Holdings = NOTHING
) -> Terms:
    return msgspec.structs.replace(
        terms,
        reusable=holding.plus(terms.reusable, reusable),
        required=terms.required if required is None else required,
        preferred={kind: frozenset(minors) for kind, minors in preferred.items()} or terms.preferred,
    )


def _placed(found: Allocation | Refusal) -> Placed | Refusal:
    return found if isinstance(found, Refusal) else Placed(found)
