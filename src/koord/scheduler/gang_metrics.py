"""Serve Koordinator's gang metrics under its names, read from the gang cache when metrics are served."""

from __future__ import annotations

from collections.abc import Iterator

from koord.scheduler.koordinator_metrics import KoordinatorMetrics, job_size
from koord.scheduler.plugins.coscheduling.company import Company
from koord.telemetry.metrics.registry import Reading, Registry


def watch_gangs(registry: Registry, metrics: KoordinatorMetrics, company: Company) -> None:
    def ended(reason: str, members: int, seconds: float) -> None:
        metrics.gang_cycle_s.labels(reason, job_size(members)).observe(seconds)

    def searched(group: str, found: bool, seconds: float) -> None:
        metrics.job_preemption_s.labels(group, "success" if found else "failure").observe(seconds)

    def planned(held: bool, seconds: float) -> None:
        metrics.batch_s.labels("success" if held else "failure").observe(seconds)

    def left(group: str) -> None:
        metrics.job_preemption_s.remove_where(jobName=group)

    def read() -> Iterator[Reading]:
        gangs = company.gangs
        waiting = sum(1 for group in gangs.groups.values() if any(gang.waiting for gang in gangs.of_group(group)))
        yield Reading(
            "scheduler_waiting_gang_group_number", "Gang groups that wait.", "gauge", (), [((), float(waiting))]
        )

    company.watchers.append(ended)
    company.searchers.append(searched)
    company.batchers.append(planned)
    company.leavers.append(left)
    registry.source(read)
