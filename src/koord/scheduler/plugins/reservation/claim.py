"""This module holds what the plugin keeps for one class of pods, computed before PreFilter, and nominates
reservations.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koord.policy.reservation.fit import fits
from koord.policy.reservation.nomination import nominate, score
from koord.policy.reservation.register import Register
from koord.policy.reservation.room import Ignored, Room
from koord.policy.reservation.seeker import Seeker
from koord.policy.reservation.standing import Standing
from koord.scheduler.plugins.reservation.interest import Interest
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


class Claim:
    """The state of pods that may use reservations. Nodes come as the pod sees them: without the reserve pods for
    it.
    """

    __slots__ = ("_ignored", "_register", "interest", "seeker")

    def __init__(self, interest: Interest, pod: PodInfo, register: Register, ignored: Ignored) -> None:
        self.interest = interest
        self.seeker: Seeker = msgspec.structs.replace(interest.seeker, requests=pod.requests)
        self._register = register
        self._ignored = ignored

    def matched(self, node: NodeInfo) -> tuple[Standing, ...]:
        """Return the matched reservations with those of their owners that are on the node: in a dry run some are not.

        """
        found = self.interest.by_node.get(node.name, ())
        return tuple(self._register.with_parts(standing, node.pods) for standing in found)

    def room(self, node: NodeInfo, matched: tuple[Standing, ...]) -> Room:
        return Room(
            node=node.name,
            allocatable=node.allocatable,
            used=node.requested,
            pods=len(node.pods),
            max_pods=node.allowed_pods,
            standings=matched,
        )

    def nominated(self, node: NodeInfo, also: Callable[[Standing], bool] | None = None) -> Standing | None:
        """Return the reservation that such a pod takes on the node; `also` is a further check of each."""
        matched = self.matched(node)
        if not matched or self.seeker.ignores:
            return None
        room = self.room(node, matched)

        def suits(standing: Standing) -> bool:
            if any(fits(self.seeker, standing, room, ignored=self._ignored)):
                return False
            return also is None or also(standing)

        return nominate(self.seeker, matched, suits, lambda standing: score(self.seeker, standing))


class Reserving(msgspec.Struct, frozen=True):
    """The state of a reserve pod: whether its Reservation names a node, and its allocate policy."""

    pinned: str
    policy: str
    invalid: str = ""
    attempt: str = ""  # one that pre-allocates running pods is evaluated anew every time
