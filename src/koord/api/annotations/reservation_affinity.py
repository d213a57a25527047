"""This module holds the codecs of reservations: the affinity and allocation of pods, the options of
Reservations, and pods that operate as reservations.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.affinity import NodeSelectorTerm, Toleration
from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_RESERVATION_AFFINITY


class ReservationSelector(Part, frozen=True, kw_only=True):
    """ReservationSelector matches when one of its terms does."""

    reservation_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class ReservationAffinity(Part, frozen=True, kw_only=True):
    """ReservationAffinity selects the reservations that a pod must run in. `name` overrides everything else;
    `tolerations` are for the taints of reservations.
    """

    name: str = ""
    required_during_scheduling_ignored_during_execution: ReservationSelector | None = None
    reservation_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


def parse(annotations: Mapping[str, str]) -> ReservationAffinity | Malformed | None:
    """Parse the affinity. Empty text is an affinity without conditions: any reservation, but a reservation."""
    if annotations.get(A_RESERVATION_AFFINITY) == "":
        return ReservationAffinity()
    return read(annotations, A_RESERVATION_AFFINITY, ReservationAffinity)


def dump(value: ReservationAffinity) -> str:
    return written(value)
