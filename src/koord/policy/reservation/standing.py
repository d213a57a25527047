"""A reservation with what its owners have taken of it so far, and what that leaves for whom."""

from __future__ import annotations

import msgspec

from koord.policy.reservation.holding import Holding
from koord.policy.reservation.seeker import Counts


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation and its use. `allocated` is what owners request of the reserved resources; it may exceed the
    reserved.
    """

    holding: Holding
    allocated: Counts = {}
    assigned: int = 0  # how many owners

    @property
    def is_matchable(self) -> bool:
        """Return whether any pod could become an owner now."""
        held = self.holding
        return bool(held.available and held.node and not held.fault and not (held.once and self.assigned))

    def unconsumed(self) -> dict[str, int]:
        """Return what the reservation still keeps from everyone but its owners.

        Owners who took more than it had do not make it negative: the rest came from the node.
        """
        return {
            name: left
            for name, there in self.holding.reserved.items()
            if (left := there - self.allocated.get(name, 0)) > 0
        }

    def remaining(self) -> dict[str, int]:
        """Return what the next owner may have of it."""
        inner = self.holding.inner
        return {name: left - kept for name, left in self.unconsumed().items() if (kept := inner.get(name, 0)) < left}
