"""Serve the phase and amounts of every Reservation, read when they are served: one that is gone has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from koord.api.custom import RESERVATIONS
from koord.api.koord_scheduling import AVAILABLE, FAILED, PENDING, SUCCEEDED, Reservation
from koord.api.pod_resources import amounts
from koord.scheduler.shell.handle import LiveHandle
from koord.telemetry.metrics.registry import Reading, Registry
from koord.values.resources import CPU, MEMORY

PHASE = "scheduler_reservation_status_phase"
RESOURCE = "scheduler_reservation_resource"
_PHASES = (PENDING, AVAILABLE, SUCCEEDED, FAILED)

Value = tuple[tuple[str, ...], float]


def watch_reservations(registry: Registry, handle: LiveHandle, leads: Callable[[], bool]) -> None:
    """Register the Reservation metrics; only the leader serves values, so that a sum over replicas counts each once."""
    lister = handle.lister(RESERVATIONS)

    def read() -> Iterator[Reading]:
        found = lister.list() if leads() else ()
        yield Reading(PHASE, "Phase it is in.", "gauge", ("name", "phase"), list(_phases(found)))
        labels = ("type", "name", "resource", "unit")
        yield Reading(RESOURCE, "What is reserved and used.", "gauge", labels, list(_resources(found)))

    registry.source(read)


def _phases(found: Iterable[Reservation]) -> Iterator[Value]:
    for reservation in found:
        now = reservation.status.phase or PENDING
        for phase in _PHASES:
            yield (reservation.metadata.name, phase), float(phase == now)


def _resources(found: Iterable[Reservation]) -> Iterator[Value]:
    for reservation in found:
        name = reservation.metadata.name
        there, taken = amounts(reservation.status.allocatable), amounts(reservation.status.allocated)
        yield from _told("allocatable", name, there)
        yield from _told("allocated", name, taken)
        for resource, amount in there.items():
            if amount:
                yield ("utilization", name, resource, "ratio"), taken.get(resource, 0) / amount


def _told(kind: str, name: str, held: Mapping[str, int]) -> Iterator[Value]:
    for resource, amount in held.items():
        unit, share = {CPU: ("core", 1000), MEMORY: ("Gi", 1 << 30)}.get(resource, ("raw", 1))
        yield (kind, name, resource, unit), amount / share
