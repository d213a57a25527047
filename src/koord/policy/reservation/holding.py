"""A Reservation as matching sees it: where it is, what it reserves, for whom, and what its owners have taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from koord.api.affinity import Taint
from koord.api.annotations import node_reservation, reservation_options
from koord.api.annotations.codec import Malformed
from koord.api.koord_scheduling import ALIGNED, AVAILABLE, RESTRICTED, Reservation, ReservationOwner
from koord.api.pod_resources import amounts, pod_requests
from koord.policy.reservation.owner import Owner
from koord.policy.reservation.seeker import Counts, Seeker
from koord.values.requirement import SelectorError

T = TypeVar("T")

DEFAULT_POLICY = ""  # deprecated on the wire; owners may use more than is reserved, as with Aligned


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    name: str
    node: str = ""
    available: bool = True
    labels: Mapping[str, str] = {}
    owners: tuple[Owner, ...] = ()
    reserved: Counts = {}
    inner: Counts = {}  # of what is reserved, the part that owners may not have
    policy: str = DEFAULT_POLICY
    restricted: tuple[str, ...] = ()  # with the Restricted policy: what owners may take no more of than is reserved
    once: bool = True
    unschedulable: bool = False  # by its spec, or on its way out
    terminating: bool = False
    taints: tuple[Taint, ...] = ()
    order: int = 0
    fault: str = ""  # what of it cannot be read
    is_pod: bool = False  # an operating pod

    @staticmethod
    def of(reservation: Reservation) -> Holding:
        meta, spec, status = reservation.metadata, reservation.spec, reservation.status
        available = status.phase == AVAILABLE
        if available:
            reserved = amounts(status.allocatable)
        else:
            reserved = pod_requests(spec.template.spec) if spec.template is not None else {}
        faults: list[str] = []
        order = _read(reservation_options.parse_order(meta.labels), faults)
        options = _read(reservation_options.parse_restricted(meta.annotations), faults)
        inner = _read(node_reservation.parse(meta.annotations), faults)
        deleting = meta.deletion_timestamp is not None
        return Holding(
            uid=meta.uid,
            name=meta.name,
            node=status.node_name,
            available=available,
            labels=meta.labels,
            owners=compiled(spec.owners, faults),
            reserved=reserved,
            inner=amounts(inner.resources) if inner is not None else {},
            policy=spec.allocate_policy,
            restricted=restricted_names(reserved, options.resources if options is not None else ()),
            once=spec.allocate_once is not False,
            unschedulable=spec.unschedulable or deleting,
            terminating=deleting,
            taints=spec.taints,
            order=order or 0,
            fault="; ".join(faults),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the resources by which a pod and this reservation are compared."""
        return self.restricted if self.policy == RESTRICTED else tuple(sorted(self.reserved))

    @property
    def wire_policy(self) -> str:
        """Return the allocate policy; an operating pod is always Aligned."""
        return ALIGNED if self.is_pod else self.policy

    def is_for(self, pod: Seeker) -> bool:
        return any(owner.matches(pod) for owner in self.owners)


def restricted_names(reserved: Counts, options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the stated resources that are reserved; all that is reserved when none of them is."""
    return tuple(sorted(name for name in reserved if name in options)) or tuple(sorted(reserved))


def compiled(owners: tuple[ReservationOwner, ...], faults: list[str]) -> tuple[Owner, ...]:
    found: list[Owner] = []
    for owner in owners:
        try:
            found.append(Owner.of(owner))
        except SelectorError as error:
            faults.append(str(error))
    return tuple(found)


def invalidity(reservation: Reservation) -> str | None:
    """Return why a Reservation cannot be scheduled at all."""
    spec = reservation.spec
    if spec.template is None:
        return "the reservation misses the template spec"
    if not spec.owners:
        return "the reservation misses the owner spec"
    if spec.ttl is None and spec.expires is None:
        return "the reservation misses the expiration spec"
    return None


def _read(found: T | Malformed, faults: list[str]) -> T | None:
    if isinstance(found, Malformed):
        faults.append(str(found))
        return None
    return found
