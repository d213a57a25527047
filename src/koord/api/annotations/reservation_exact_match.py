"""scheduling.koordinator.sh/exact-match-reservation: resources of which pod and reservation must hold the same."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_EXACT_MATCH_RESERVATION


class ExactMatchReservation(Part, frozen=True, kw_only=True):
    """ExactMatchReservation names resources of which pod and reservation must hold the same amount."""
    resource_names: tuple[str, ...] = ()


def parse(annotations: Mapping[str, str]) -> ExactMatchReservation | Malformed | None:
    return read(annotations, A_EXACT_MATCH_RESERVATION, ExactMatchReservation)


def dump(value: ExactMatchReservation) -> str:
    return written(value)
