"""Builders of pods, reservations and nodes for tests."""

from __future__ import annotations

from typing import Any

from koord.api.annotations.reservation_codecs import ReservationAffinity
from koord.api.koordinator.scheduling import ReservationOwner
from koord.scheduler.plugins.reservation.fit import NodeFreeResources
from koord.scheduler.plugins.reservation.owner_matching import OwnerMatcher, ReservationRequest
from koord.scheduler.plugins.reservation.reservation_info import (
    ReservationInfo,
    ReservationUsage,
    restricted_resource_names,
)

GI = 2**30
ANYONE = ReservationOwner()
ANY = ReservationAffinity()


def amounts(cpu: int = 0, gi: int = 0, **other: int) -> dict[str, int]:
    found = {"cpu": cpu * 1000, "memory": gi * GI, **other}
    return {name: amount for name, amount in found.items() if amount}


def pod(name: str = "p", **other: Any) -> ReservationRequest:
    return ReservationRequest(uid=f"uid-{name}", name=name, namespace=other.pop("namespace", "default"), **other)


def reservation_info(name: str = "r", *owners: ReservationOwner, **other: Any) -> ReservationInfo:
    reserved = other.setdefault("reserved", amounts(4, 4))
    other.setdefault("restricted", restricted_resource_names(reserved, other.pop("options", ())))
    other.setdefault("node", "n")
    return ReservationInfo(
        uid=f"uid-{name}",
        name=name,
        owners=tuple(OwnerMatcher.from_spec(owner) for owner in owners or (ANYONE,)),
        **other,
    )


def reservation_usage(
    name: str = "r", *, allocated: dict[str, int] | None = None, owner_count: int = 0, **other: Any
) -> ReservationUsage:
    return ReservationUsage(info=reservation_info(name, **other), allocated=allocated or {}, owner_count=owner_count)


def node_free(*usages: ReservationUsage, **other: Any) -> NodeFreeResources:
    return NodeFreeResources(
        **{"node": "n", "allocatable": amounts(32, 32), "max_pods": 100, "usages": usages, **other}
    )
