"""Builders of pods, reservations and nodes for tests."""

from __future__ import annotations

from typing import Any

from koord.api.annotations.reservation_affinity import ReservationAffinity
from koord.api.koord_scheduling import ReservationOwner
from koord.policy.reservation.holding import Holding, restricted_names
from koord.policy.reservation.owner import Owner
from koord.policy.reservation.room import Room
from koord.policy.reservation.seeker import Seeker
from koord.policy.reservation.standing import Standing

GI = 2**30
ANYONE = ReservationOwner()
ANY = ReservationAffinity()


def amounts(cpu: int = 0, gi: int = 0, **other: int) -> dict[str, int]:
    found = {"cpu": cpu * 1000, "memory": gi * GI, **other}
    return {name: amount for name, amount in found.items() if amount}


def pod(name: str = "p", **other: Any) -> Seeker:
    return Seeker(uid=f"uid-{name}", name=name, namespace=other.pop("namespace", "default"), **other)


def holding(name: str = "r", *owners: ReservationOwner, **other: Any) -> Holding:
    reserved = other.setdefault("reserved", amounts(4, 4))
    other.setdefault("restricted", restricted_names(reserved, other.pop("options", ())))
    other.setdefault("node", "n")
    return Holding(
        uid=f"uid-{name}", name=name, owners=tuple(Owner.of(owner) for owner in owners or (ANYONE,)), **other
    )


def standing(name: str = "r", *, allocated: dict[str, int] | None = None, assigned: int = 0, **other: Any) -> Standing:
    return Standing(holding=holding(name, **other), allocated=allocated or {}, assigned=assigned)


def room(*standings: Standing, **other: Any) -> Room:
    return Room(**{"node": "n", "allocatable": amounts(32, 32), "max_pods": 100, "standings": standings, **other})
