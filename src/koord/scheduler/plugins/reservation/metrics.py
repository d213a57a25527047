"""Serve the phase and amounts of every Reservation, read when they are served: one that is gone has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.scheduling import AVAILABLE, FAILED, PENDING, SUCCEEDED, Reservation
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.scheduler.live_handle import LiveHandle
from koord.telemetry.metrics import MetricDeclaration, MetricReading, MetricRegistry
from koord.values.resources import CPU, MEMORY

RESERVATION_PHASE = MetricDeclaration(
    "scheduler_reservation_status_phase",
    "1 for the phase that a Reservation is in, 0 for the others.",
    "gauge",
    ("name", "phase"),
)
RESERVATION_RESOURCE = MetricDeclaration(
    "scheduler_reservation_resource",
    "Resources of a Reservation: allocatable, allocated, and their ratio (utilization).",
    "gauge",
    ("type", "name", "resource", "unit"),
)
_PHASES = (PENDING, AVAILABLE, SUCCEEDED, FAILED)

LabelledValue = tuple[tuple[str, ...], float]


def register_reservation_metrics(registry: MetricRegistry, handle: LiveHandle, leads: Callable[[], bool]) -> None:
    """Register the Reservation metrics; only the leader serves values, so that a sum over replicas counts each once."""
    lister = handle.lister(RESERVATIONS)

    def read() -> Iterator[MetricReading]:
        found = lister.list() if leads() else ()
        yield RESERVATION_PHASE.reading(list(_phases(found)))
        yield RESERVATION_RESOURCE.reading(list(_resources(found)))

    registry.source(read)


def _phases(found: Iterable[Reservation]) -> Iterator[LabelledValue]:
    for reservation in found:
        now = reservation.status.phase or PENDING
        for phase in _PHASES:
            yield (reservation.metadata.name, phase), float(phase == now)


def _resources(found: Iterable[Reservation]) -> Iterator[LabelledValue]:
    for reservation in found:
        name = reservation.metadata.name
        allocatable = resource_amounts(reservation.status.allocatable)
        allocated = resource_amounts(reservation.status.allocated)
        yield from _amount_values("allocatable", name, allocatable)
        yield from _amount_values("allocated", name, allocated)
        for resource, amount in allocatable.items():
            if amount:
                yield ("utilization", name, resource, "ratio"), allocated.get(resource, 0) / amount


def _amount_values(kind: str, name: str, held: Mapping[str, int]) -> Iterator[LabelledValue]:
    for resource, amount in held.items():
        unit, share = {CPU: ("core", 1000), MEMORY: ("Gi", 1 << 30)}.get(resource, ("raw", 1))
        yield (kind, name, resource, unit), amount / share
