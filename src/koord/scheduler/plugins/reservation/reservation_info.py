"""A Reservation as matching sees it: where it is, what it reserves, for whom, and what its owners have taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from koord.api.annotations import node_codecs, reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation, value_or_none
from koord.api.koordinator.scheduling import ALIGNED, AVAILABLE, RESTRICTED, Reservation, ReservationOwner
from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests, resource_amounts
from koord.scheduler.plugins.reservation.owner_matching import OwnerMatcher, ReservationRequest
from koord.values.resources import PODS, Counts
from koord.values.selector import SelectorError


class ReservationOwnerPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod with a part of a reservation, by its annotation or assumed and not yet confirmed by the API server."""

    uid: str
    reservation: str  # uid
    node: str
    requests: Counts = {}


T = TypeVar("T")

DEFAULT_POLICY = ""  # deprecated on the wire; owners may use more than is reserved, as with Aligned


class ReservationInfo(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    name: str
    node: str = ""
    available: bool = True
    labels: Mapping[str, str] = {}
    owners: tuple[OwnerMatcher, ...] = ()
    reserved: Counts = {}
    node_reserved: Counts = {}  # of what is reserved, the part that owners may not have
    policy: str = DEFAULT_POLICY
    restricted: tuple[str, ...] = ()  # with the Restricted policy: what owners may take no more of than is reserved
    allocate_once: bool = True
    unschedulable: bool = False  # by its spec, or on its way out
    terminating: bool = False
    taints: tuple[Taint, ...] = ()
    order: int = 0
    parse_error: str = ""  # what of it cannot be read
    is_operating_pod: bool = False  # an operating pod

    @staticmethod
    def from_reservation(reservation: Reservation) -> ReservationInfo:
        meta, spec, status = reservation.metadata, reservation.spec, reservation.status
        available = status.phase == AVAILABLE
        if available:
            reserved = resource_amounts(status.allocatable)
        else:
            reserved = pod_requests(spec.template.spec) if spec.template is not None else {}
        faults: list[str] = []
        order = value_or_none(reservation_codecs.parse_reservation_order(meta.labels), faults)
        options = value_or_none(reservation_codecs.parse_restricted_options(meta.annotations), faults)
        inner = value_or_none(node_codecs.parse_node_reservation(meta.annotations), faults)
        deleting = meta.deletion_timestamp is not None
        return ReservationInfo(
            uid=meta.uid,
            name=meta.name,
            node=status.node_name,
            available=available,
            labels=meta.labels,
            owners=compile_owners(spec.owners, faults),
            reserved=reserved,
            node_reserved=resource_amounts(inner.resources) if inner is not None else {},
            policy=spec.allocate_policy,
            restricted=restricted_resource_names(reserved, options.resources if options is not None else ()),
            allocate_once=spec.allocate_once is not False,
            unschedulable=spec.unschedulable or deleting,
            terminating=deleting,
            taints=spec.taints,
            order=order or 0,
            parse_error="; ".join(faults),
        )

    @property
    def resource_names(self) -> tuple[str, ...]:
        """Return the resources by which a pod and this reservation are compared."""
        return self.restricted if self.policy == RESTRICTED else tuple(sorted(self.reserved))

    @property
    def effective_policy(self) -> str:
        """Return the allocate policy; an operating pod is always Aligned."""
        return ALIGNED if self.is_operating_pod else self.policy

    def matches_owner(self, pod: ReservationRequest) -> bool:
        return any(owner.matches(pod) for owner in self.owners)

    def has_resources_for(self, pod: ReservationRequest) -> bool:
        """Return whether the pod requests something that is reserved, or demands a reservation whatever it has."""
        return pod.affinity is not None or self.shares_resource(pod.requests)

    def shares_resource(self, requests: Counts) -> bool:
        """Return whether the requests name something reserved; without amounts it is for pods without requests."""
        names = [name for name in self.resource_names if name != PODS and self.reserved.get(name, 0)]
        return any(requests.get(name, 0) for name in names) if names else not any(requests.values())


def restricted_resource_names(reserved: Counts, options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the stated resources that are reserved; all that is reserved when none of them is."""
    return tuple(sorted(name for name in reserved if name in options)) or tuple(sorted(reserved))


def compile_owners(owners: tuple[ReservationOwner, ...], faults: list[str]) -> tuple[OwnerMatcher, ...]:
    found: list[OwnerMatcher] = []
    for owner in owners:
        try:
            found.append(OwnerMatcher.from_spec(owner))
        except SelectorError as error:
            faults.append(str(error))
    return tuple(found)


def validation_error(reservation: Reservation) -> str | None:
    """Return why a Reservation cannot be scheduled at all."""
    spec = reservation.spec
    if spec.template is None:
        return "the reservation misses the template spec"
    if not spec.owners:
        return "the reservation misses the owner spec"
    if spec.ttl is None and spec.expires is None:
        return "the reservation misses the expiration spec"
    return None


class ReservationUsage(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation and its use. `allocated` is what owners request of the reserved resources; it may exceed those."""

    info: ReservationInfo
    allocated: Counts = {}
    owner_count: int = 0  # how many owners

    @property
    def is_matchable(self) -> bool:
        """Return whether any pod could become an owner now."""
        held = self.info
        return bool(
            held.available and held.node and not held.parse_error and not (held.allocate_once and self.owner_count)
        )

    def unallocated(self) -> dict[str, int]:
        """Return what the reservation still keeps from everyone but its owners.

        Owners who took more than it had do not make it negative: the rest came from the node.
        """
        return {
            name: left
            for name, there in self.info.reserved.items()
            if (left := there - self.allocated.get(name, 0)) > 0
        }

    def remaining_for_owners(self) -> dict[str, int]:
        """Return what the next owner may have of it."""
        inner = self.info.node_reserved
        return {name: left - kept for name, left in self.unallocated().items() if (kept := inner.get(name, 0)) < left}


RUNNING = "Running"


def reservation_info_of_pod(pod: Pod) -> ReservationInfo | None:
    """Read the pod as a reservation: Aligned, for one owner, available while it runs and is ready; None if ordinary."""
    meta = pod.metadata
    if not reservation_codecs.is_in_reservation_mode(meta.labels):
        return None
    faults: list[str] = []
    owners = value_or_none(reservation_codecs.parse_reservation_owners(meta.annotations), faults)
    options = value_or_none(reservation_codecs.parse_restricted_options(meta.annotations), faults)
    reserved = pod_requests(pod.spec, pod.status)
    deleting = meta.deletion_timestamp is not None
    return ReservationInfo(
        uid=meta.uid,
        name=meta.name,
        node=pod.spec.node_name,
        available=pod.status.phase == RUNNING and _is_ready(pod),
        labels=meta.labels,
        owners=compile_owners(owners or (), faults),
        reserved=reserved,
        policy=ALIGNED,
        restricted=restricted_resource_names(reserved, options.resources if options is not None else ()),
        allocate_once=True,
        unschedulable=deleting,
        terminating=deleting,
        parse_error="; ".join(faults),
        is_operating_pod=True,
    )


def current_owner_of(pod: Pod) -> ReservationOwnerPod | MalformedAnnotation | None:
    """Return the current owner by the annotation. There is only one, so it has all of the reservation."""
    owner = reservation_codecs.parse_reservation_current_owner(pod.metadata.annotations)
    if owner is None or isinstance(owner, MalformedAnnotation):
        return owner
    return ReservationOwnerPod(
        uid=owner.uid or f"{owner.namespace}/{owner.name}",
        reservation=pod.metadata.uid,
        node=pod.spec.node_name,
        requests=pod_requests(pod.spec, pod.status),
    )


def _is_ready(pod: Pod) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)
