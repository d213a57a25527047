"""How a Reservation lives and ends. Applying the effects is left to others.

| from                | fact                                  | to                                                    |
|---------------------|---------------------------------------|-------------------------------------------------------|
| Pending             | Placed                                | Available with node and allocatable                   |
| Pending             | NotPlaced                             | Pending, Scheduled=False; its time does not run yet   |
| Available           | Looked: expired, or its node is gone  | Failed, Ready=False/Expired                           |
| Available, once     | Looked: it has an owner               | Succeeded, Ready=False/Succeeded                      |
| Available, not once | Looked: owners changed                | Available, with its owners                            |
| Succeeded, Expired  | Looked: long ago, or its node is gone | deleted                                               |
| Failed otherwise    | anything                              | stays, for somebody to look at                        |
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypeAlias

import msgspec

from koord.api.annotations import reservation_options
from koord.api.annotations.codec import Malformed
from koord.api.koord_scheduling import AVAILABLE, FAILED, SUCCEEDED, Reservation, ReservationStatus
from koord.api.part import ObjectReference
from koord.api.pod_resources import amounts, pod_requests
from koord.policy.reservation import condition
from koord.policy.reservation.seeker import Counts
from koord.values import duration
from koord.values.resources import materialise, to_wire

NOT_ACTIVE = "reservation is not active"


class Placed(msgspec.Struct, frozen=True):
    node: str


class NotPlaced(msgspec.Struct, frozen=True):
    message: str


class HeldBy(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on the reservation's node that holds a part of it."""

    namespace: str
    name: str
    uid: str
    requests: Counts = {}


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster shows. With `owners` or `node_exists` None they are not known yet, and nothing follows from
    absence.
    """

    node_exists: bool | None
    owners: tuple[HeldBy, ...] | None
    keep_ended: timedelta | None = timedelta(days=1)  # None: ended ones are never deleted


Fact: TypeAlias = Placed | NotPlaced | Looked


class WriteStatus(msgspec.Struct, frozen=True):
    status: ReservationStatus
    why: str


class Delete(msgspec.Struct, frozen=True):
    why: str


class LookAgain(msgspec.Struct, frozen=True):
    """Look again at this time: time alone will change something then."""

    at: datetime


class Impossible(msgspec.Struct, frozen=True):
    """The reservation is in no state for this fact."""

    why: str = NOT_ACTIVE


Effect: TypeAlias = WriteStatus | Delete | LookAgain | Impossible


def step(reservation: Reservation, fact: Fact, now: datetime) -> tuple[Effect, ...]:
    phase = reservation.status.phase
    match fact:
        case Placed(node):
            return (Impossible(),) if phase in (FAILED, SUCCEEDED) else _placed(reservation, node, now)
        case NotPlaced(message):
            return () if phase in (FAILED, SUCCEEDED) else _not_placed(reservation, message, now)
        case Looked():
            if phase in (FAILED, SUCCEEDED):
                return _ended(reservation, fact, now)
            # Only a reservation with a node keeps something from others, so only that can expire.
            return _held(reservation, fact, now) if reservation.status.node_name else ()


def reserved(reservation: Reservation) -> dict[str, int]:
    """Return what a reservation will hold once it has its node."""
    template = reservation.spec.template
    asked = pod_requests(template.spec) if template is not None else {}
    resized = reservation_options.parse_resize(reservation.metadata.annotations)
    return asked if resized is None or isinstance(resized, Malformed) else {**asked, **amounts(resized.resources)}


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


def _placed(reservation: Reservation, node: str, now: datetime) -> tuple[Effect, ...]:
    status = msgspec.structs.replace(
        reservation.status,
        phase=AVAILABLE,
        node_name=node,
        allocatable=dict(to_wire(materialise(reserved(reservation)))),
        conditions=condition.placed(now),
    )
    return (WriteStatus(status, f"placed on {node}"),)


def _not_placed(reservation: Reservation, message: str, now: datetime) -> tuple[Effect, ...]:
    conditions = condition.not_placed(reservation.status.conditions, message, now)
    return (WriteStatus(msgspec.structs.replace(reservation.status, conditions=conditions), message),)


def _held(reservation: Reservation, seen: Looked, now: datetime) -> tuple[Effect, ...]:
    status = reservation.status
    ends = expiry(reservation)
    if seen.node_exists is False:
        return (_failed(status, now, f"node {status.node_name} is gone"),)
    # One that was taken did its work, even if its time runs out before this is written.
    if seen.owners and reservation.spec.allocate_once is not False:
        taken = seen.owners[0]
        conditions = condition.not_ready(status.conditions, condition.SUCCEEDED, now)
        done = msgspec.structs.replace(_with_owners(status, seen.owners), phase=SUCCEEDED, conditions=conditions)
        return (WriteStatus(done, f"taken by {taken.namespace}/{taken.name}"),)
    if ends is not None and now >= ends:
        return (_failed(status, now, f"expired at {ends.isoformat()}"),)
    again: tuple[Effect, ...] = () if ends is None else (LookAgain(ends),)
    if seen.owners is None:
        return again
    changed = _with_owners(status, seen.owners)
    return again if changed == status else (WriteStatus(changed, f"{len(seen.owners)} owner(s)"), *again)


def _with_owners(status: ReservationStatus, owners: tuple[HeldBy, ...]) -> ReservationStatus:
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
    same = held == {name: n for name, n in amounts(status.allocated).items() if n or name in held}
    if same and listed == status.current_owners:
        return status
    return msgspec.structs.replace(status, current_owners=listed, allocated=dict(to_wire(materialise(held))))


def _failed(status: ReservationStatus, now: datetime, why: str) -> WriteStatus:
    conditions = condition.not_ready(status.conditions, condition.EXPIRED, now)
    return WriteStatus(msgspec.structs.replace(status, phase=FAILED, conditions=conditions), why)


def _ended(reservation: Reservation, seen: Looked, now: datetime) -> tuple[Effect, ...]:
    ready = condition.find(reservation.status.conditions, condition.READY)
    if seen.keep_ended is None or ready is None or ready.reason not in (condition.EXPIRED, condition.SUCCEEDED):
        return ()
    if seen.node_exists is False:
        return (Delete(f"{ready.reason}, and node {reservation.status.node_name} is gone"),)
    since = ready.last_transition_time if ready.reason == condition.EXPIRED else ready.last_probe_time
    if since is None:
        return ()
    until = since + seen.keep_ended
    return (Delete(f"{ready.reason} at {since.isoformat()}"),) if now >= until else (LookAgain(until),)
