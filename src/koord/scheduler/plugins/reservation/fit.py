"""Check whether a pod fits on a node and into a reservation there; reservations are kept from all but their owners.

free = allocatable - what pods request - what reservations still hold. An owner may add what remains of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from koord.api.koordinator.protocol import RESERVATION_ERROR_PREFIX
from koord.api.koordinator.scheduling import RESTRICTED
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage
from koord.values.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Counts, accumulate

_NATIVE = frozenset((CPU, MEMORY, EPHEMERAL_STORAGE, PODS))


class IgnoredResources(msgspec.Struct, frozen=True):
    """Extended resources that are not counted, by name or by the domain before the slash."""

    names: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def covers(self, resource: str) -> bool:
        if resource in _NATIVE:
            return False
        group, slash, _ = resource.partition("/")
        return resource in self.names or bool(slash and group and group in self.groups)


NO_IGNORED_RESOURCES = IgnoredResources()


class NodeFreeResources(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of one node. `used` and `pods` are of real pods, owners included; reservations are counted apart.

    An operating pod is one of the reservations, and not among the pods.
    """

    node: str
    allocatable: Counts
    used: Counts = {}
    pods: int = 0
    max_pods: int = 110
    usages: tuple[ReservationUsage, ...] = ()  # every reservation that holds something here

    def free(self, owner_of: ReservationUsage | None = None) -> dict[str, int]:
        """Return what is free for any pod, or for an owner of one reservation: below zero on an over-committed node."""
        left = dict(self.allocatable)
        accumulate(left, self.used, -1)
        for usage in self.usages:
            accumulate(left, usage.unallocated(), -1)
        if owner_of is not None:
            accumulate(left, owner_of.remaining_for_owners())
        return left

    def free_pod_slots(self, owner_of: ReservationUsage | None = None) -> int:
        """Return the free pod slots. Each reservation holds one, for its owner."""
        held = len(self.usages) - (owner_of is not None)
        return self.max_pods - self.pods - held


NO_MATCH = "node(s) no reservations match reservation affinity"
NO_ROOM = "node(s) no reservation(s) to meet the requirements"
WRONG_NODE = "node(s) didn't match the nodeName specified by reservation"
POLICY_CONFLICT = "node(s) reservation allocate policy conflict"


class ReservationRefusal(msgspec.Struct, frozen=True):
    """The reasons for refusing a node. `resolvable`: preempting pods could help."""

    reasons: tuple[str, ...]
    resolvable: bool = True


def fits_node(
    pod: ReservationRequest,
    room: NodeFreeResources,
    owner_of: ReservationUsage | None = None,
    *,
    ignored: IgnoredResources = NO_IGNORED_RESOURCES,
) -> list[str]:
    """Return what the node is short of, sorted."""
    short: list[str] = []
    if room.free_pod_slots(owner_of) < 1:
        short.append(PODS)
    if any(pod.requests.values()):
        free = room.free(owner_of)
        short += [
            name
            for name, amount in pod.requests.items()
            if amount > 0 and amount > free.get(name, 0) and not ignored.covers(name)
        ]
    return sorted(short)


def fits_reservation(pod: ReservationRequest, usage: ReservationUsage) -> list[str]:
    """Return what a Restricted reservation is short of by itself, in detail for pods that named the reservation."""
    info = usage.info
    detailed = bool(pod.requested_name)
    reasons: list[str] = []
    most = info.reserved.get(PODS)
    if most is not None and usage.owner_count + 1 > most:
        detail = f", requested: 1, used: {usage.owner_count}, capacity: {most}" if detailed else ""
        reasons.append(f"{RESERVATION_ERROR_PREFIX}Too many pods{detail}")
    for name in info.restricted:
        requested = pod.requests.get(name, 0)
        if name == PODS or requested <= 0:
            continue
        capacity = info.reserved.get(name, 0) - info.node_reserved.get(name, 0)
        used = usage.allocated.get(name, 0)
        if requested > capacity - used:
            detail = f", requested: {requested}, used: {used}, capacity: {capacity}" if detailed else ""
            reasons.append(f"{RESERVATION_ERROR_PREFIX}Insufficient {name}{detail}")
    return reasons


def fits_with_reservation(
    pod: ReservationRequest,
    usage: ReservationUsage,
    room: NodeFreeResources,
    *,
    ignored: IgnoredResources = NO_IGNORED_RESOURCES,
) -> tuple[list[str], list[str]]:
    """Return what the node is short of, and the objections of the reservation. Both empty: the pod fits."""
    short = fits_node(pod, room, usage, ignored=ignored)
    return short, fits_reservation(pod, usage) if usage.info.policy == RESTRICTED else []


def filter_node(
    pod: ReservationRequest,
    matched: Sequence[ReservationUsage],
    room: NodeFreeResources,
    *,
    ignored: IgnoredResources = NO_IGNORED_RESOURCES,
    objections: Callable[[ReservationUsage], Sequence[str]] | None = None,
) -> ReservationRefusal | None:
    """Filter one node for the Reservation plugin; `matched` are the reservations there that the pod may use.

    `objections` are those of other plugins to a reservation. Where nothing is held for such pods, other plugins
    filter the node.
    """
    if pod.affinity is not None and not matched:
        return ReservationRefusal((NO_MATCH,), resolvable=False)
    if pod.ignores_reservations or not room.usages:
        return None
    shortages: set[str] = set()
    against: list[str] = []
    for usage in matched:
        short, reasons = fits_with_reservation(pod, usage, room, ignored=ignored)
        if objections is not None:
            reasons = [*reasons, *objections(usage)]
        if not short and not reasons:
            return None
        shortages.update(short)
        against += reasons
    by_node = _insufficient_by_node(shortages)
    if pod.affinity is not None:
        return ReservationRefusal((*by_node, *against) or (NO_ROOM,))
    if by_node:
        return ReservationRefusal(by_node)
    alone = fits_node(pod, room, ignored=ignored)
    return ReservationRefusal(_insufficient_by_node(alone)) if alone else None


def filter_reserve_pod(pinned: str, policy: str, room: NodeFreeResources) -> ReservationRefusal | None:
    """Filter one node for a new reservation with this policy; `pinned` is the node that it names."""
    if pinned and pinned != room.node:
        return ReservationRefusal((WRONG_NODE,), resolvable=False)
    if any((s.info.effective_policy == "") != (policy == "") for s in room.usages if s.is_matchable):
        return ReservationRefusal((POLICY_CONFLICT,), resolvable=False)
    return None


def _insufficient_by_node(short: Sequence[str] | set[str]) -> tuple[str, ...]:
    return tuple(sorted(f"Insufficient {name} by node" for name in short))
