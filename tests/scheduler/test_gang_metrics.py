"""Koordinator's numbers of gangs."""

from __future__ import annotations

from koord.policy.gang import wording
from koord.policy.gang.declaration import Member, Settings
from koord.scheduler.gang_metrics import watch_gangs
from koord.scheduler.koordinator_metrics import KoordinatorMetrics
from koord.scheduler.plugins.coscheduling.company import Company
from koord.scheduler.state.cluster import ClusterState
from koord.telemetry.metrics import exposition
from koord.telemetry.metrics.registry import Registry


def test_rounds_by_how_they_ended_and_groups_that_wait() -> None:
    registry = Registry()
    company = Company(ClusterState())
    watch_gangs(registry, KoordinatorMetrics(registry), company)
    stated = Settings(minimum=2, total=2, group=("ns/g",))
    for uid in ("a", "b"):
        company.gangs.seen(Member(uid=uid, key=f"ns/{uid}", gang="ns/g", stated=stated))
    company.start(company.gangs.groups["ns/g"], "a")
    company.gangs.hold("a", "n")
    assert "scheduler_waiting_gang_group_number 1" in exposition.render([registry]).decode()
    company.end(wording.ALL_TRIED)
    company.gangs.release("a")
    said = exposition.render([registry]).decode()
    assert "scheduler_waiting_gang_group_number 0" in said
    labels = f'job_size="1-100",reason="{wording.ALL_TRIED}"'
    assert f"scheduler_gang_schedule_cycle_duration_seconds_count{{{labels}}} 1" in said.replace(
        f'reason="{wording.ALL_TRIED}",job_size="1-100"', labels
    )
