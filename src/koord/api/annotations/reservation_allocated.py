"""scheduling.koordinator.sh/reservation-allocated: the reservation that a pod consumes."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_RESERVATION_ALLOCATED


class ReservationAllocated(Part, frozen=True, kw_only=True):
    """ReservationAllocated is scheduling.koordinator.sh/reservation-allocated: the reservation that a pod consumes."""
    name: str = ""
    uid: str = ""


def parse(annotations: Mapping[str, str]) -> ReservationAllocated | Malformed | None:
    return read(annotations, A_RESERVATION_ALLOCATED, ReservationAllocated)


def dump(value: ReservationAllocated) -> str:
    return written(value)
