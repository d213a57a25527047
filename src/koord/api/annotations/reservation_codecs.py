"""This module holds the codecs of reservations: affinity and allocation of pods, options, pods that operate as one."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import MalformedAnnotation, parse_json
from koord.api.koordinator import protocol
from koord.api.koordinator.scheduling import ReservationOwner
from koord.api.kubernetes.affinity import NodeSelectorTerm, Toleration
from koord.api.model import ObjectReference, ResourceList, Submodel
from koord.values.go_format import parse_decimal_int, parse_finite_float


class ReservationSelector(Submodel, frozen=True, kw_only=True):
    """ReservationSelector matches when one of its terms does."""

    reservation_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class ReservationAffinity(Submodel, frozen=True, kw_only=True):
    """ReservationAffinity selects the reservations that a pod must run in, tolerating taints; `name` overrides all."""

    name: str = ""
    required_during_scheduling_ignored_during_execution: ReservationSelector | None = None
    reservation_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


def parse_reservation_affinity(annotations: Mapping[str, str]) -> ReservationAffinity | MalformedAnnotation | None:
    """Parse the affinity. Empty text is an affinity without conditions: any reservation, but a reservation."""
    if annotations.get(protocol.A_RESERVATION_AFFINITY) == "":
        return ReservationAffinity()
    return parse_json(annotations, protocol.A_RESERVATION_AFFINITY, ReservationAffinity)


class ReservationAllocated(Submodel, frozen=True, kw_only=True):
    """ReservationAllocated is scheduling.koordinator.sh/reservation-allocated: the reservation that a pod consumes."""

    name: str = ""
    uid: str = ""


def parse_reservation_allocated(annotations: Mapping[str, str]) -> ReservationAllocated | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_RESERVATION_ALLOCATED, ReservationAllocated)


class ExactMatchReservation(Submodel, frozen=True, kw_only=True):
    """ExactMatchReservation names resources of which pod and reservation must hold the same amount."""

    resource_names: tuple[str, ...] = ()


def parse_exact_match_reservation(annotations: Mapping[str, str]) -> ExactMatchReservation | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_EXACT_MATCH_RESERVATION, ExactMatchReservation)


class ReservationRestrictedOptions(Submodel, frozen=True, kw_only=True):
    """ReservationRestrictedOptions names the resources that the Restricted policy covers; none means all."""

    resources: tuple[str, ...] = ()


class ReservationResizeAllocatable(Submodel, frozen=True, kw_only=True):
    """ReservationResizeAllocatable is an allocatable that replaces the one of a Reservation's template."""

    resources: ResourceList = {}


def parse_reservation_order(labels: Mapping[str, str]) -> int | MalformedAnnotation:
    """Parse the order: lower non-zero orders are preferred; 0, which is also the default, leaves it to the score."""
    text = labels.get(protocol.L_RESERVATION_ORDER)
    if text is None:
        return 0
    value = parse_decimal_int(text)
    return MalformedAnnotation(protocol.L_RESERVATION_ORDER, f"{text!r} is not an integer") if value is None else value


def parse_restricted_options(
    annotations: Mapping[str, str],
) -> ReservationRestrictedOptions | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_RESERVATION_RESTRICTED_OPTIONS, ReservationRestrictedOptions)


def parse_resize_allocatable(
    annotations: Mapping[str, str],
) -> ReservationResizeAllocatable | MalformedAnnotation | None:
    return parse_json(
        annotations,
        protocol.A_RESERVATION_RESIZE_ALLOCATABLE,
        ReservationResizeAllocatable,
        lambda v: v.resources.values(),
    )


def requires_pre_allocation(labels: Mapping[str, str]) -> bool:
    return labels.get(protocol.L_PRE_ALLOCATION_REQUIRED) == protocol.TRUE


def ignores_reservations(labels: Mapping[str, str]) -> bool:
    """Return whether a pod may use reserved but unallocated capacity and never becomes an owner."""
    return labels.get(protocol.L_RESERVATION_IGNORED) == protocol.TRUE


OPERATING_MODE_RESERVATION = "Reservation"


def is_in_reservation_mode(labels: Mapping[str, str]) -> bool:
    """Return whether the pod operates as a reservation itself."""
    return labels.get(protocol.L_OPERATING_MODE) == OPERATING_MODE_RESERVATION


def parse_reservation_owners(
    annotations: Mapping[str, str],
) -> tuple[ReservationOwner, ...] | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_RESERVATION_OWNERS, tuple[ReservationOwner, ...])


def parse_reservation_current_owner(annotations: Mapping[str, str]) -> ObjectReference | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_RESERVATION_CURRENT_OWNER, ObjectReference)


def is_pre_allocatable(labels: Mapping[str, str], key: str = protocol.L_IS_PRE_ALLOCATABLE) -> bool:
    """Return whether a running pod may be pre-allocated to a reservation. The key is configurable."""
    return labels.get(key) == protocol.TRUE


def parse_pre_allocatable_priority(
    annotations: Mapping[str, str], key: str = protocol.A_PRE_ALLOCATABLE_PRIORITY
) -> float:
    """Parse the pre-allocation priority: higher goes first; missing and unreadable are 0."""
    return parse_finite_float(annotations.get(key, "")) or 0.0
