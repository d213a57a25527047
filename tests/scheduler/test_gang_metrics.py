"""Koordinator's gang metrics follow the gangs."""

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


def test_searches_for_room_by_group_until_it_is_gone_and_plans_by_whether_they_held_R29() -> None:
    registry = Registry()
    company = Company(ClusterState())
    watch_gangs(registry, KoordinatorMetrics(registry), company)
    stated = Settings(minimum=1, total=1, group=("ns/g",))
    company.hear(company.gangs.seen(Member(uid="a", key="ns/a", gang="ns/g", stated=stated)))
    company.searched("ns/g", True, 0.01)
    company.start(company.gangs.groups["ns/g"], "a").whole = True
    company.end(wording.SUCCEEDED)
    said = exposition.render([registry]).decode()
    assert 'scheduler_job_preemption_duration_seconds_count{jobName="ns/g",result="success"} 1' in said
    assert 'scheduler_inline_batch_schedule_duration_seconds_count{result="success"} 1' in said
    company.hear(company.gangs.gone("a"))
    assert 'jobName="ns/g"' not in exposition.render([registry]).decode()


def test_nothing_is_kept_of_a_group_that_is_gone() -> None:
    company = Company(ClusterState())
    stated = Settings(minimum=1, total=1, group=("ns/g",))
    company.hear(company.gangs.seen(Member(uid="a", key="ns/a", gang="ns/g", stated=stated)))
    company.failures["ns/g"], company.culprits["ns/g"] = "why", "a"
    company.hear(company.gangs.gone("a"))
    assert (company.failures, company.culprits) == ({}, {})
