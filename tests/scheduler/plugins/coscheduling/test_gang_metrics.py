"""Koordinator's gang metrics follow the gangs."""

from __future__ import annotations

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.metrics import KoordinatorMetrics
from koord.scheduler.plugins.coscheduling import messages
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.scheduler.plugins.coscheduling.gang_spec import GangMember, GangSpec
from koord.scheduler.plugins.coscheduling.metrics import register_gang_metrics
from koord.telemetry import metrics
from koord.telemetry.metrics import MetricRegistry


def test_rounds_by_how_they_ended_and_groups_that_wait() -> None:
    registry = MetricRegistry()
    gang_manager = GangManager(ClusterState())
    register_gang_metrics(registry, KoordinatorMetrics(registry), gang_manager)
    stated = GangSpec(min_members=2, total_members=2, gang_group=("ns/g",))
    for uid in ("a", "b"):
        gang_manager.gangs.update_member(GangMember(uid=uid, key=f"ns/{uid}", gang="ns/g", spec=stated))
    gang_manager.start_round(gang_manager.gangs.groups["ns/g"], "a")
    gang_manager.gangs.mark_waiting("a", "n")
    assert "scheduler_waiting_gang_group_number 1" in metrics.render([registry]).decode()
    gang_manager.end_round(messages.ALL_MEMBERS_ATTEMPTED)
    gang_manager.gangs.mark_pending("a")
    said = metrics.render([registry]).decode()
    assert "scheduler_waiting_gang_group_number 0" in said
    labels = f'job_size="1-100",reason="{messages.ALL_MEMBERS_ATTEMPTED}"'
    assert f"scheduler_gang_schedule_cycle_duration_seconds_count{{{labels}}} 1" in said.replace(
        f'reason="{messages.ALL_MEMBERS_ATTEMPTED}",job_size="1-100"', labels
    )


def test_searches_for_room_by_group_until_it_is_gone_and_plans_by_whether_they_held_R29() -> None:
    registry = MetricRegistry()
    gang_manager = GangManager(ClusterState())
    register_gang_metrics(registry, KoordinatorMetrics(registry), gang_manager)
    stated = GangSpec(min_members=1, total_members=1, gang_group=("ns/g",))
    gang_manager.handle_gang_changes(
        gang_manager.gangs.update_member(GangMember(uid="a", key="ns/a", gang="ns/g", spec=stated))
    )
    gang_manager.report_search("ns/g", True, 0.01)
    gang_manager.start_round(gang_manager.gangs.groups["ns/g"], "a").all_or_nothing = True
    gang_manager.end_round(messages.GANG_SUCCEEDED)
    said = metrics.render([registry]).decode()
    assert 'scheduler_job_preemption_duration_seconds_count{jobName="ns/g",result="success"} 1' in said
    assert 'scheduler_inline_batch_schedule_duration_seconds_count{result="success"} 1' in said
    gang_manager.handle_gang_changes(gang_manager.gangs.remove_member("a"))
    assert 'jobName="ns/g"' not in metrics.render([registry]).decode()


def test_nothing_is_kept_of_a_group_that_is_gone() -> None:
    gang_manager = GangManager(ClusterState())
    stated = GangSpec(min_members=1, total_members=1, gang_group=("ns/g",))
    gang_manager.handle_gang_changes(
        gang_manager.gangs.update_member(GangMember(uid="a", key="ns/a", gang="ns/g", spec=stated))
    )
    gang_manager.failure_messages["ns/g"], gang_manager.failed_members["ns/g"] = "why", "a"
    gang_manager.handle_gang_changes(gang_manager.gangs.remove_member("a"))
    assert (gang_manager.failure_messages, gang_manager.failed_members) == ({}, {})
