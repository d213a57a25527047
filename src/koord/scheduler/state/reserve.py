"""Make the reserve pod of a Reservation."""

from __future__ import annotations

import msgspec

from koord.api.koord_scheduling import Reservation
from koord.api.model import convert
from koord.policy.reservation.reserve_pod import reserve_pod
from koord.scheduler.state.wire import Pod


def standing_for(reservation: Reservation) -> Pod:
    """Return the reserve pod of a Reservation in the scheduler's pod model."""
    return convert(msgspec.to_builtins(reserve_pod(reservation)), Pod)
