"""This module holds the life of a Reservation: its conditions Scheduled and Ready, its transitions, and the status
patch.

| from                | fact                                | to                                         |
|---------------------|-------------------------------------|--------------------------------------------|
| Pending             | placed                              | Available with node and allocatable        |
| Pending             | not placed                          | Pending, Scheduled=False; ttl not counted  |
| Available           | observed: expired, or node gone     | Failed, Ready=False/Expired                |
| Available, once     | observed: it has an owner           | Succeeded, Ready=False/Succeeded           |
| Available, not once | observed: owners changed            | Available, with its owners                 |
| Succeeded, Expired  | observed: long ago, or node gone    | deleted                                    |
| Failed otherwise    | anything                            | stays, for somebody to look at             |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.scheduling import (
    AVAILABLE,
    FAILED,
    PENDING,
    SUCCEEDED,
    Reservation,
    ReservationCondition,
    ReservationStatus,
)
from koord.api.kubernetes.pod_resources import pod_requests, resource_amounts
from koord.api.model import ObjectReference
from koord.scheduler.cache.reserve_pod import build_reserve_pod
from koord.values import duration
from koord.values.resources import Counts, materialise, to_wire

SCHEDULED_CONDITION = "Scheduled"
READY_CONDITION = "Ready"
STATUS_TRUE = "True"
STATUS_FALSE = "False"

# Reasons
UNSCHEDULABLE_REASON = "Unschedulable"
AVAILABLE_REASON = "Available"
SUCCEEDED_REASON = "Succeeded"
EXPIRED_REASON = "Expired"

ReservationConditions = tuple[ReservationCondition, ...]


def find_condition(conditions: ReservationConditions, kind: str) -> ReservationCondition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def scheduled_conditions(now: datetime) -> ReservationConditions:
    """Return the conditions of a reservation that just got its node; earlier conditions are dropped."""
    return (
        _condition(SCHEDULED_CONDITION, STATUS_TRUE, SCHEDULED_CONDITION, now),
        _condition(READY_CONDITION, STATUS_TRUE, AVAILABLE_REASON, now),
    )


def unschedulable_conditions(conditions: ReservationConditions, message: str, now: datetime) -> ReservationConditions:
    """Record a failed attempt; it does not change a reservation that has its node already."""
    known = find_condition(conditions, SCHEDULED_CONDITION)
    if known is None:
        return (*conditions, _condition(SCHEDULED_CONDITION, STATUS_FALSE, UNSCHEDULABLE_REASON, now, message))
    if known.status == STATUS_TRUE:
        changed = msgspec.structs.replace(known, last_probe_time=now)
    else:
        changed = msgspec.structs.replace(known, reason=UNSCHEDULABLE_REASON, message=message, last_probe_time=now)
    return tuple(changed if condition is known else condition for condition in conditions)


def ended_conditions(conditions: ReservationConditions, reason: str, now: datetime) -> ReservationConditions:
    """Record the end; `reason` says how. The transition time stays that of the first time that it was not ready."""
    known = find_condition(conditions, READY_CONDITION)
    if known is None:
        return (*conditions, _condition(READY_CONDITION, STATUS_FALSE, reason, now))
    since = known.last_transition_time if known.status == STATUS_FALSE and known.reason == reason else now
    changed = msgspec.structs.replace(
        known, status=STATUS_FALSE, reason=reason, last_probe_time=now, last_transition_time=since
    )
    return tuple(changed if condition is known else condition for condition in conditions)


def _condition(kind: str, status: str, reason: str, now: datetime, message: str = "") -> ReservationCondition:
    return ReservationCondition(
        type=kind, status=status, reason=reason, message=message, last_probe_time=now, last_transition_time=now
    )


NOT_ACTIVE = "reservation is not active"


class ReservationPlaced(msgspec.Struct, frozen=True):
    node: str


class ReservationNotPlaced(msgspec.Struct, frozen=True):
    message: str


class CurrentOwner(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on the reservation's node that holds a part of it."""

    namespace: str
    name: str
    uid: str
    requests: Counts = {}


class ReservationObserved(msgspec.Struct, frozen=True, kw_only=True):
    """ReservationObserved is what the cluster shows. `owners` or `node_exists` None are not known yet."""

    node_exists: bool | None
    owners: tuple[CurrentOwner, ...] | None
    keep_ended: timedelta | None = timedelta(days=1)  # None: ended ones are never deleted


ReservationFact: TypeAlias = ReservationPlaced | ReservationNotPlaced | ReservationObserved


class WriteReservationStatus(msgspec.Struct, frozen=True):
    status: ReservationStatus
    why: str


class DeleteReservation(msgspec.Struct, frozen=True):
    why: str


class RequeueReservationAt(msgspec.Struct, frozen=True):
    """Look again at this time: time alone will change something then."""

    at: datetime


class InvalidTransition(msgspec.Struct, frozen=True):
    """The reservation is in no state for this fact."""

    why: str = NOT_ACTIVE


LifecycleEffect: TypeAlias = WriteReservationStatus | DeleteReservation | RequeueReservationAt | InvalidTransition


def step(reservation: Reservation, fact: ReservationFact, now: datetime) -> tuple[LifecycleEffect, ...]:
    phase = reservation.status.phase
    match fact:
        case ReservationPlaced(node):
            return (InvalidTransition(),) if phase in (FAILED, SUCCEEDED) else _decide_placed(reservation, node, now)
        case ReservationNotPlaced(message):
            return () if phase in (FAILED, SUCCEEDED) else _decide_not_placed(reservation, message, now)
        case ReservationObserved():
            if phase in (FAILED, SUCCEEDED):
                return _decide_ended(reservation, fact, now)
            # Only a reservation with a node keeps something from others, so only that can expire.
            return _decide_held(reservation, fact, now) if reservation.status.node_name else ()


def unserved_message(reservation: Reservation, scheduler_names: Sequence[str]) -> str:
    """Return why none of these schedulers takes the Reservation; "" when one does, or another scheduler has."""
    status, template = reservation.status, reservation.spec.template
    stated = template.spec.scheduler_name if template is not None else ""
    named = build_reserve_pod(reservation).spec.scheduler_name
    if (
        named in scheduler_names
        or status.phase not in ("", PENDING)
        or status.node_name
        or find_condition(status.conditions, SCHEDULED_CONDITION) is not None
    ):
        return ""
    serves = " or ".join(scheduler_names)
    if not stated:
        field = "spec.template.spec.schedulerName is not set"
        return f"{field}, which means {named}: it schedules no Reservations; set it to {serves}"
    taken = f"no scheduler named {named} (spec.template.spec.schedulerName) has taken this Reservation"
    return f"{taken}; this one serves {serves}"


def reserved_amounts(reservation: Reservation) -> dict[str, int]:
    """Return what a reservation will hold once it has its node."""
    template = reservation.spec.template
    asked = pod_requests(template.spec) if template is not None else {}
    resized = reservation_codecs.parse_resize_allocatable(reservation.metadata.annotations)
    return (
        asked
        if resized is None or isinstance(resized, MalformedAnnotation)
        else {**asked, **resource_amounts(resized.resources)}
    )


def expiry(reservation: Reservation) -> datetime | None:
    """Return when the reservation ends if no pod takes it; a ttl of 0 means never, whatever else is stated."""
    spec = reservation.spec
    moments = [spec.expires] if spec.expires is not None else []
    if spec.ttl is not None:
        lives = timedelta(microseconds=duration.parse(spec.ttl) / 1000)
        if not lives:
            return None
        if reservation.metadata.creation_timestamp is not None:
            moments.append(reservation.metadata.creation_timestamp + lives)
    return min(moments, default=None)


def _decide_placed(reservation: Reservation, node: str, now: datetime) -> tuple[LifecycleEffect, ...]:
    status = msgspec.structs.replace(
        reservation.status,
        phase=AVAILABLE,
        node_name=node,
        allocatable=dict(to_wire(materialise(reserved_amounts(reservation)))),
        conditions=scheduled_conditions(now),
    )
    return (WriteReservationStatus(status, f"placed on {node}"),)


def _decide_not_placed(reservation: Reservation, message: str, now: datetime) -> tuple[LifecycleEffect, ...]:
    status = reservation.status
    conditions = unschedulable_conditions(status.conditions, message, now)
    waiting = msgspec.structs.replace(status, phase=status.phase or PENDING, conditions=conditions)
    return (WriteReservationStatus(waiting, message),)


def _decide_held(reservation: Reservation, seen: ReservationObserved, now: datetime) -> tuple[LifecycleEffect, ...]:
    status = reservation.status
    ends = expiry(reservation)
    if seen.node_exists is False:
        return (_expired_status(status, now, f"node {status.node_name} is gone"),)
    # One that was taken did its work, even if its time runs out before this is written.
    if seen.owners and reservation.spec.allocate_once is not False:
        owner = seen.owners[0]
        conditions = ended_conditions(status.conditions, SUCCEEDED_REASON, now)
        done = msgspec.structs.replace(_with_owners(status, seen.owners), phase=SUCCEEDED, conditions=conditions)
        return (WriteReservationStatus(done, f"taken by {owner.namespace}/{owner.name}"),)
    if ends is not None and now >= ends:
        return (_expired_status(status, now, f"expired at {ends.isoformat()}"),)
    again: tuple[LifecycleEffect, ...] = () if ends is None else (RequeueReservationAt(ends),)
    if seen.owners is None:
        return again
    changed = _with_owners(status, seen.owners)
    return again if changed == status else (WriteReservationStatus(changed, f"{len(seen.owners)} owner(s)"), *again)


def _with_owners(status: ReservationStatus, owners: tuple[CurrentOwner, ...]) -> ReservationStatus:
    """Return the status with these owners; the same object when nothing changed."""
    listed = tuple(
        ObjectReference(namespace=owner.namespace, name=owner.name, uid=owner.uid)
        for owner in sorted(owners, key=lambda owner: owner.uid)
    )
    held: dict[str, int] = {}
    for owner in owners:
        for name, amount in owner.requests.items():
            if name in status.allocatable:
                held[name] = held.get(name, 0) + amount
    same = held == {name: n for name, n in resource_amounts(status.allocated).items() if n or name in held}
    if same and listed == status.current_owners:
        return status
    return msgspec.structs.replace(status, current_owners=listed, allocated=dict(to_wire(materialise(held))))


def _expired_status(status: ReservationStatus, now: datetime, why: str) -> WriteReservationStatus:
    conditions = ended_conditions(status.conditions, EXPIRED_REASON, now)
    return WriteReservationStatus(msgspec.structs.replace(status, phase=FAILED, conditions=conditions), why)


def _decide_ended(reservation: Reservation, seen: ReservationObserved, now: datetime) -> tuple[LifecycleEffect, ...]:
    ready = find_condition(reservation.status.conditions, READY_CONDITION)
    if seen.keep_ended is None or ready is None or ready.reason not in (EXPIRED_REASON, SUCCEEDED_REASON):
        return ()
    if seen.node_exists is False:
        return (DeleteReservation(f"{ready.reason}, and node {reservation.status.node_name} is gone"),)
    since = ready.last_transition_time if ready.reason == EXPIRED_REASON else ready.last_probe_time
    if since is None:
        return ()
    until = since + seen.keep_ended
    return (
        (DeleteReservation(f"{ready.reason} at {since.isoformat()}"),)
        if now >= until
        else (RequeueReservationAt(until),)
    )


def status_patch(before: ReservationStatus, after: ReservationStatus) -> dict[str, Any]:
    """Build the patch: whole lists, and null for amounts that are removed."""
    return {
        "phase": after.phase,
        "nodeName": after.node_name,
        "conditions": msgspec.to_builtins(after.conditions),
        "currentOwners": msgspec.to_builtins(after.current_owners),
        "allocatable": _replacement(before.allocatable, after.allocatable),
        "allocated": _replacement(before.allocated, after.allocated),
    }


def _replacement(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any] | None:
    return {**dict.fromkeys(before, None), **after} if after else None
