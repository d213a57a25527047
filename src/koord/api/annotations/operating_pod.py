"""A pod that stands as a reservation itself: its mode, its owners, and who holds it now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.annotations.codec import Malformed, read, written
from koord.api.koord_scheduling import ReservationOwner
from koord.api.part import ObjectReference
from koord.api.protocol import A_RESERVATION_CURRENT_OWNER, A_RESERVATION_OWNERS, L_OPERATING_MODE

RUNNABLE = "Runnable"
RESERVATION = "Reservation"


def is_reservation(labels: Mapping[str, str]) -> bool:
    """Return whether the pod operates as a reservation itself."""
    return labels.get(L_OPERATING_MODE) == RESERVATION


def parse_owners(annotations: Mapping[str, str]) -> tuple[ReservationOwner, ...] | Malformed | None:
    return read(annotations, A_RESERVATION_OWNERS, tuple[ReservationOwner, ...])


def dump_owners(value: Sequence[ReservationOwner]) -> str:
    return written(value)


def parse_current_owner(annotations: Mapping[str, str]) -> ObjectReference | Malformed | None:
    return read(annotations, A_RESERVATION_CURRENT_OWNER, ObjectReference)


def dump_current_owner(value: ObjectReference) -> str:
    return written(value)
