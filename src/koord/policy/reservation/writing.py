"""Build the merge patch of a Reservation's status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koord.api.koord_scheduling import ReservationStatus


def status_patch(before: ReservationStatus, after: ReservationStatus) -> dict[str, Any]:
    """Build the patch: whole lists, and null for amounts that are removed."""
    return {
        "phase": after.phase,
        "nodeName": after.node_name,
        "conditions": msgspec.to_builtins(after.conditions),
        "currentOwners": msgspec.to_builtins(after.current_owners),
        "allocatable": _replaced(before.allocatable, after.allocatable),
        "allocated": _replaced(before.allocated, after.allocated),
    }


def _replaced(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any] | None:
    return {**dict.fromkeys(before, None), **after} if after else None
