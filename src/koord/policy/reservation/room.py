"""Check whether a pod fits on a node and into a reservation there, with reservations kept from pods they are
not for.

free = allocatable - what pods request - what reservations still hold. An owner may add what remains of
its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.policy.reservation.seeker import Counts
from koord.policy.reservation.standing import Standing
from koord.values.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS

_NATIVE = frozenset((CPU, MEMORY, EPHEMERAL_STORAGE, PODS))


class Ignored(msgspec.Struct, frozen=True):
    """Extended resources that are not counted, by name or by the domain before the slash."""

    names: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def covers(self, resource: str) -> bool:
        if resource in _NATIVE:
            return False
        group, slash, _ = resource.partition("/")
        return resource in self.names or bool(slash and group and group in self.groups)


NOTHING_IGNORED = Ignored()


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of one node. `used` and `pods` are of real pods, owners included; reservations are counted
    beside them.

    An operating pod is one of the reservations, and not among the pods.
    """

    node: str
    allocatable: Counts
    used: Counts = {}
    pods: int = 0
    max_pods: int = 110
    standings: tuple[Standing, ...] = ()  # every reservation that holds something here
    preemptible: Counts = {}  # of pods preempted in a dry run
    preemptible_pods: int = 0

    def free(self, owner_of: Standing | None = None) -> dict[str, int]:
        """Return what is free for any pod, or for an owner of one reservation. Below zero where a node is over-
        committed.
        """
        left = dict(self.allocatable)
        _take(left, self.used)
        _take(left, self.preemptible, -1)
        for standing in self.standings:
            _take(left, standing.unconsumed())
        if owner_of is not None:
            _take(left, owner_of.remaining(), -1)
        return left

    def free_of_all(self, ignored: Iterable[Standing]) -> dict[str, int]:
        """Return what is free for a pod that may use what these reservations hold and nobody took."""
        left = self.free()
        for standing in ignored:
            _take(left, standing.unconsumed(), -1)
        return left

    def slots(self, owner_of: Standing | None = None) -> int:
        """Return the free pod slots. Each reservation holds one, for its owner."""
        held = len(self.standings) - (owner_of is not None)
        return self.max_pods - self.pods + self.preemptible_pods - held


def _take(left: dict[str, int], amounts: Mapping[str, int], sign: int = 1) -> None:
    for name, amount in amounts.items():
        left[name] = left.get(name, 0) - sign * amount
