"""What a Reservation says about itself beside its spec: order, restricted resources, a resized allocatable."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.annotations.number import decimal
from koord.api.part import Part, ResourceList
from koord.api.protocol import (
    A_RESERVATION_RESIZE_ALLOCATABLE,
    A_RESERVATION_RESTRICTED_OPTIONS,
    L_PRE_ALLOCATION_REQUIRED,
    L_RESERVATION_IGNORED,
    L_RESERVATION_ORDER,
    TRUE,
)


class RestrictedOptions(Part, frozen=True, kw_only=True):
    """ReservationRestrictedOptions names the resources that the Restricted policy covers; none stated means all
    reserved ones.
    """

    resources: tuple[str, ...] = ()


class ResizeAllocatable(Part, frozen=True, kw_only=True):
    """ReservationResizeAllocatable is an allocatable that replaces the one of a Reservation's template."""
    resources: ResourceList = {}


def parse_order(labels: Mapping[str, str]) -> int | Malformed:
    """Parse the order: lower non-zero orders are preferred; 0, which is also the default, leaves it to the score."""
    text = labels.get(L_RESERVATION_ORDER)
    if text is None:
        return 0
    value = decimal(text)
    return Malformed(L_RESERVATION_ORDER, f"{text!r} is not an integer") if value is None else value


def parse_restricted(annotations: Mapping[str, str]) -> RestrictedOptions | Malformed | None:
    return read(annotations, A_RESERVATION_RESTRICTED_OPTIONS, RestrictedOptions)


def dump_restricted(value: RestrictedOptions) -> str:
    return written(value)


def parse_resize(annotations: Mapping[str, str]) -> ResizeAllocatable | Malformed | None:
    return read(annotations, A_RESERVATION_RESIZE_ALLOCATABLE, ResizeAllocatable, lambda v: v.resources.values())


def dump_resize(value: ResizeAllocatable) -> str:
    return written(value)


def needs_pre_allocation(labels: Mapping[str, str]) -> bool:
    return labels.get(L_PRE_ALLOCATION_REQUIRED) == TRUE


def ignores_reservations(labels: Mapping[str, str]) -> bool:
    """Return whether a pod may use reserved but unallocated capacity and never becomes an owner."""
    return labels.get(L_RESERVATION_IGNORED) == TRUE
