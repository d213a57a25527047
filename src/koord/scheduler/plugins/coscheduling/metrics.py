"""Serve Koordinator's gang metrics under its names, read from the gang cache when metrics are served."""

from __future__ import annotations

from collections.abc import Iterator

from koord.scheduler.metrics import KoordinatorMetrics, gang_size_label
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.telemetry.metrics import MetricDeclaration, MetricReading, MetricRegistry

WAITING_GANG_GROUPS = MetricDeclaration(
    "scheduler_waiting_gang_group_number", "Gang groups that have pods waiting at Permit."
)


def register_gang_metrics(registry: MetricRegistry, metrics: KoordinatorMetrics, gang_manager: GangManager) -> None:
    def ended(_: str, reason: str, members: int, seconds: float) -> None:
        metrics.gang_cycle_s.labels(reason, gang_size_label(members)).observe(seconds)

    def searched(group: str, found: bool, seconds: float) -> None:
        metrics.job_preemption_s.labels(group, "success" if found else "failure").observe(seconds)

    def planned(held: bool, seconds: float) -> None:
        metrics.batch_s.labels("success" if held else "failure").observe(seconds)

    def left(group: str) -> None:
        metrics.job_preemption_s.remove_where(jobName=group)

    def read() -> Iterator[MetricReading]:
        gangs = gang_manager.gangs
        waiting = sum(1 for group in gangs.groups.values() if any(gang.waiting for gang in gangs.gangs_in_group(group)))
        yield WAITING_GANG_GROUPS.reading([((), float(waiting))])

    gang_manager.round_ended_callbacks.append(ended)
    gang_manager.search_done_callbacks.append(searched)
    gang_manager.batch_done_callbacks.append(planned)
    gang_manager.group_removed_callbacks.append(left)
    registry.source(read)
