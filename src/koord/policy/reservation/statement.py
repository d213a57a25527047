"""Reports on Reservations for people: who holds which part of each, what is left, and which pods wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from koord.api.annotations import reservation_allocated
from koord.api.annotations.codec import Malformed
from koord.api.koord_scheduling import Reservation
from koord.api.pod import Pod
from koord.api.pod_resources import pod_requests
from koord.policy.reservation import condition, lifecycle
from koord.policy.reservation.holding import Holding, invalidity
from koord.policy.reservation.matching import Wish
from koord.policy.reservation.seeker import Seeker

ENDED = ("Succeeded", "Failed")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    pod: str
    amounts: dict[str, int]


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting pod. `why` is what keeps it from this reservation, if known; else what its condition says."""

    pod: str
    why: str = ""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    phase: str
    node: str = ""
    policy: str = ""
    once: bool = True
    reserved: dict[str, int] = {}
    left: dict[str, int] = {}  # for its owners
    holders: tuple[Part, ...] = ()
    waiting: tuple[Waiter, ...] = ()
    ends: datetime | None = None  # when its time is up, if nobody takes it
    message: str = ""  # why it has no node, or what is wrong with it


def statements(reservations: Iterable[Reservation], pods: Iterable[Pod]) -> list[Statement]:
    """Report on all reservations by name. Pods that have ended hold nothing and wait for nothing."""
    live = [pod for pod in pods if pod.status.phase not in ENDED]
    holders: dict[str, list[Pod]] = {}
    waiting: list[tuple[Pod, Seeker]] = []
    for pod in live:
        if pod.spec.node_name:
            taken = reservation_allocated.parse(pod.metadata.annotations)
            if taken is not None and not isinstance(taken, Malformed):
                holders.setdefault(taken.uid, []).append(pod)
        elif (seeker := _seeker(pod)) is not None:
            waiting.append((pod, seeker))
    return [
        _statement(reservation, holders, waiting) for reservation in sorted(reservations, key=lambda r: r.metadata.name)
    ]


def _statement(
    reservation: Reservation, holders: Mapping[str, list[Pod]], waiting: Iterable[tuple[Pod, Seeker]]
) -> Statement:
    meta, status = reservation.metadata, reservation.status
    holding = Holding.of(reservation)
    parts = tuple(
        Part(pod=_key(pod), amounts=dict(pod_requests(pod.spec, pod.status)))
        for pod in sorted(holders.get(meta.uid, ()), key=_key)
        if pod.spec.node_name == status.node_name
    )
    ended = status.phase in ENDED
    left = {
        name: max(0, there - holding.inner.get(name, 0) - sum(part.amounts.get(name, 0) for part in parts))
        for name, there in holding.reserved.items()
    }
    said = condition.find(status.conditions, condition.SCHEDULED)
    why = said.message if said is not None and said.status == condition.FALSE else ""
    return Statement(
        name=meta.name,
        phase=status.phase or "Pending",
        node=status.node_name,
        policy=reservation.spec.allocate_policy or "Default",
        once=holding.once,
        reserved=dict(holding.reserved),
        left={} if ended or (holding.once and parts) else left,
        holders=parts,
        waiting=() if ended else tuple(_waiters(holding, waiting)),
        ends=None if ended else lifecycle.expiry(reservation),
        message=holding.fault or invalidity(reservation) or why,
    )


def _waiters(holding: Holding, waiting: Iterable[tuple[Pod, Seeker]]) -> Iterable[Waiter]:
    for pod, seeker in waiting:
        answer = Wish(seeker).match(holding)
        if not holding.is_for(seeker) or (seeker.named and seeker.named != holding.name):
            continue
        if answer.mismatch is not None:
            yield Waiter(pod=_key(pod), why=f"it does not match: {answer.mismatch.value}")
            continue
        said = next((c.message for c in pod.status.conditions if c.type == "PodScheduled"), "")
        yield Waiter(pod=_key(pod), why=said)


def _seeker(pod: Pod) -> Seeker | None:
    meta = pod.metadata
    found = Seeker.of(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        labels=meta.labels,
        annotations=meta.annotations,
        owners=meta.owner_references,
        requests=pod_requests(pod.spec),
    )
    return None if isinstance(found, Malformed) else found


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
