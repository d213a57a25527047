"""Reports on Reservations for people: who holds which part of each, what is left, and which pods wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests
from koord.scheduler.plugins.reservation import lifecycle
from koord.scheduler.plugins.reservation.matching import ReservationMatcher
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_info import ReservationInfo, validation_error

ENDED_PHASES = ("Succeeded", "Failed")


class OwnerShare(msgspec.Struct, frozen=True, kw_only=True):
    pod: str
    amounts: dict[str, int]


class ReservationWaiter(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting pod. `why` is what keeps it from this reservation, if known; else what its condition says."""

    pod: str
    why: str = ""


class ReservationReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    phase: str
    node: str = ""
    policy: str = ""
    once: bool = True
    reserved: dict[str, int] = {}
    left: dict[str, int] = {}  # for its owners
    holders: tuple[OwnerShare, ...] = ()
    waiting: tuple[ReservationWaiter, ...] = ()
    ends: datetime | None = None  # when its time is up, if nobody takes it
    message: str = ""  # why it has no node, or what is wrong with it


def reservation_reports(reservations: Iterable[Reservation], pods: Iterable[Pod]) -> list[ReservationReport]:
    """Report on all reservations by name. Pods that have ended hold nothing and wait for nothing."""
    live = [pod for pod in pods if pod.status.phase not in ENDED_PHASES]
    holders: dict[str, list[Pod]] = {}
    waiting: list[tuple[Pod, ReservationRequest]] = []
    for pod in live:
        if pod.spec.node_name:
            allocated = reservation_codecs.parse_reservation_allocated(pod.metadata.annotations)
            if allocated is not None and not isinstance(allocated, MalformedAnnotation):
                holders.setdefault(allocated.uid, []).append(pod)
        elif (request := _request_of_pod(pod)) is not None:
            waiting.append((pod, request))
    return [
        _report(reservation, holders, waiting) for reservation in sorted(reservations, key=lambda r: r.metadata.name)
    ]


def _report(
    reservation: Reservation, holders: Mapping[str, list[Pod]], waiting: Iterable[tuple[Pod, ReservationRequest]]
) -> ReservationReport:
    meta, status = reservation.metadata, reservation.status
    info = ReservationInfo.from_reservation(reservation)
    parts = tuple(
        OwnerShare(pod=_pod_key(pod), amounts=dict(pod_requests(pod.spec, pod.status)))
        for pod in sorted(holders.get(meta.uid, ()), key=_pod_key)
        if pod.spec.node_name == status.node_name
    )
    ended = status.phase in ENDED_PHASES
    left = {
        name: max(0, there - info.node_reserved.get(name, 0) - sum(part.amounts.get(name, 0) for part in parts))
        for name, there in info.reserved.items()
    }
    said = lifecycle.find_condition(status.conditions, lifecycle.SCHEDULED_CONDITION)
    why = said.message if said is not None and said.status == lifecycle.STATUS_FALSE else ""
    return ReservationReport(
        name=meta.name,
        phase=status.phase or "Pending",
        node=status.node_name,
        policy=reservation.spec.allocate_policy or "Default",
        once=info.allocate_once,
        reserved=dict(info.reserved),
        left={} if ended or (info.allocate_once and parts) else left,
        holders=parts,
        waiting=() if ended else tuple(_waiting_pods(info, waiting)),
        ends=None if ended else lifecycle.expiry(reservation),
        message=info.parse_error or validation_error(reservation) or why,
    )


def _waiting_pods(
    info: ReservationInfo, waiting: Iterable[tuple[Pod, ReservationRequest]]
) -> Iterable[ReservationWaiter]:
    for pod, request in waiting:
        answer = ReservationMatcher(request).match(info)
        if not info.matches_owner(request) or (request.requested_name and request.requested_name != info.name):
            continue
        if answer.mismatch is not None:
            yield ReservationWaiter(pod=_pod_key(pod), why=f"it does not match: {answer.mismatch.value}")
            continue
        said = next((c.message for c in pod.status.conditions if c.type == "PodScheduled"), "")
        yield ReservationWaiter(pod=_pod_key(pod), why=said)


def _request_of_pod(pod: Pod) -> ReservationRequest | None:
    meta = pod.metadata
    found = ReservationRequest.from_pod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        labels=meta.labels,
        annotations=meta.annotations,
        owners=meta.owner_references,
        requests=pod_requests(pod.spec),
    )
    return None if isinstance(found, MalformedAnnotation) else found


def _pod_key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
