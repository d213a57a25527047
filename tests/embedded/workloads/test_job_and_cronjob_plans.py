"""Job and CronJob plans as tables and properties."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import CronJob, CronJobSpec, CronJobStatus, Job, JobSpec
from koord.api.model import convert
from koord.embedded.workloads import cronjob_controller, job_accounting, job_plan
from koord.embedded.workloads.cronjob_controller import CronSchedule, CronScheduleError
from koord.embedded.workloads.job_accounting import TRACKING_FINALIZER, JobBackoff, backoff_delay_s
from tests.embedded.workloads.builders import NOW, pod

# -- Jobs


@given(st.frozensets(st.integers(0, 40)))
def test_index_sets_read_back(indexes: frozenset[int]) -> None:
    assert job_accounting.parse_indexes(job_accounting.format_indexes(indexes)) == indexes


@pytest.mark.parametrize(
    ("indexes", "text"),
    [
        pytest.param([], "", id="none"),
        pytest.param([3], "3", id="one"),
        pytest.param([1, 2], "1,2", id="two-are-a-pair"),
        pytest.param([0, 1, 2, 5, 7, 8], "0-2,5,7,8", id="three-are-a-range"),
    ],
)
def test_index_text(indexes: list[int], text: str) -> None:
    assert job_accounting.format_indexes(indexes) == text


def test_backoff_doubles_to_ten_minutes_and_success_clears_it() -> None:
    assert [backoff_delay_s(n) for n in (0, 1, 2, 3, 7, 8, 50)] == [0, 10, 20, 40, 600, 600, 600]
    failed = JobBackoff().after([(NOW, False), (NOW + timedelta(seconds=5), False)])
    assert failed.ends_at() == NOW + timedelta(seconds=25)
    assert failed.after([(NOW + timedelta(seconds=9), True)]) == JobBackoff()


def job_pod(name: str, phase: str, index: int | None = None) -> Pod:
    meta: dict[str, Any] = {"finalizers": [TRACKING_FINALIZER]}
    if index is not None:
        meta["annotations"] = {job_accounting.COMPLETION_INDEX: str(index)}
    return pod(name, phase=phase, metadata=meta, ready=phase == "Running")


@given(
    completions=st.integers(0, 6),
    parallelism=st.integers(0, 6),
    done=st.integers(0, 6),
    running=st.integers(0, 6),
    failed=st.integers(0, 3),
)
def test_jobs_never_exceed_their_parallelism(
    completions: int, parallelism: int, done: int, running: int, failed: int
) -> None:
    spec = JobSpec(completions=completions, parallelism=parallelism, backoff_limit=100)
    pods = [
        *(job_pod(f"s{n}", "Succeeded") for n in range(done)),
        *(job_pod(f"r{n}", "Running") for n in range(running)),
        *(job_pod(f"f{n}", "Failed") for n in range(failed)),
    ]
    old = NOW - timedelta(hours=1)
    view = job_plan.JobView(
        job=Job(metadata=ObjectMeta(name="j", uid="j"), spec=spec),
        pods=tuple(pods),
        now=NOW,
        backoff=JobBackoff(0, old),
    )
    plan = job_plan.decide_job(view)
    after = running + len(plan.create) - len(plan.delete_uncounted) - len(plan.delete_as_failed)
    assert plan.status.active == after
    if plan.create:
        assert after <= min(parallelism, completions - done)
    assert after <= max(running, parallelism)
    assert {pod.metadata.uid for pod in plan.release} == {f"uid-s{n}" for n in range(done)} | {
        f"uid-f{n}" for n in range(failed)
    }
    assert len(plan.status.uncounted_terminated_pods.succeeded) == done  # type: ignore[union-attr]


def test_every_end_is_counted_once_whatever_fails_between() -> None:
    """The three steps of counting, interrupted after any of them, give the same sum."""
    ended = [job_pod(f"s{n}", "Succeeded") for n in range(3)]
    job = Job(metadata=ObjectMeta(name="j", uid="j"), spec=JobSpec(completions=5, parallelism=5))
    first = job_plan.decide_job(job_plan.JobView(job=job, pods=tuple(ended), now=NOW)).status
    assert (first.succeeded, len(first.uncounted_terminated_pods.succeeded)) == (0, 3)  # type: ignore[union-attr]
    written = msgspec.structs.replace(job, status=first)
    for kept in itertools.product((True, False), repeat=3):
        pods = tuple(one for one, stays in zip(ended, kept) if stays)
        then = job_plan.decide_job(job_plan.JobView(job=written, pods=pods, now=NOW)).status
        waiting = then.uncounted_terminated_pods
        assert waiting is not None
        assert then.succeeded + len(waiting.succeeded) == 3


# -- CronJobs


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        pytest.param("*/15 * * * *", None, "2026-01-01T12:15:00+00:00", id="quarters"),
        pytest.param("0 0 ? * *", None, "2026-01-02T00:00:00+00:00", id="question-mark-is-a-star"),
        pytest.param("@hourly", None, "2026-01-01T13:00:00+00:00", id="shorthand"),
        pytest.param("@every 90s", None, "2026-01-01T12:01:30+00:00", id="interval"),
        pytest.param("0 9 * * *", "Asia/Shanghai", "2026-01-02T01:00:00+00:00", id="time-zone"),
        pytest.param("0 0 29 2 *", None, "2028-02-29T00:00:00+00:00", id="leap-day"),
    ],
)
def test_next_times(text: str, zone: str | None, expected: str) -> None:
    found = CronSchedule(text, zone).next(NOW)
    assert found is not None
    assert found.isoformat() == expected


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        pytest.param("* * * *", None, id="four-fields"),
        pytest.param("* * * * * *", None, id="six-fields"),
        pytest.param("61 * * * *", None, id="no-such-minute"),
        pytest.param("@every soon", None, id="no-interval"),
        pytest.param("* * * * *", "Mars/Olympus", id="no-such-zone"),
    ],
)
def test_bad_schedules(text: str, zone: str | None) -> None:
    with pytest.raises(CronScheduleError):
        CronSchedule(text, zone)


@given(
    since=st.integers(0, 100_000),
    wait=st.integers(0, 100_000),
    text=st.sampled_from(["*/7 * * * *", "@every 61s", "5 * * * *"]),
)
def test_the_latest_time_is_the_last_of_those_that_passed(since: int, wait: int, text: str) -> None:
    start = NOW + timedelta(seconds=since)
    end = start + timedelta(seconds=wait)
    schedule = CronSchedule(text)
    passed = list(itertools.takewhile(lambda at: at <= end, schedule.after(start)))
    assert schedule.latest_between(start, end) == (passed[-1] if passed else None)
    assert schedule.missed_too_many(start, end) == (len(passed) > 100)


def cron(last: datetime | None = None, **spec: Any) -> CronJob:
    return CronJob(
        metadata=ObjectMeta(name="tick", uid="t", creation_timestamp=NOW - timedelta(minutes=7)),
        spec=convert({"schedule": "*/10 * * * *", **spec}, CronJobSpec),
        status=CronJobStatus(last_schedule_time=last),
    )


@pytest.mark.parametrize(
    ("seen", "due"),
    [
        pytest.param(cron(), NOW, id="due-now"),
        pytest.param(cron(last=NOW), None, id="made-already"),
        pytest.param(cron(suspend=True), None, id="suspended"),
        pytest.param(cron(last=NOW - timedelta(hours=3)), NOW, id="only-the-last-of-many-missed"),
    ],
)
def test_cron_is_due(seen: CronJob, due: datetime | None) -> None:
    plan = cronjob_controller.decide_cron_job(cronjob_controller.CronJobView(cron=seen, jobs=(), now=NOW))
    assert plan.create_for == due


def test_missed_by_more_than_the_deadline_is_said() -> None:
    late = cronjob_controller.CronJobView(
        cron=cron(startingDeadlineSeconds=60), jobs=(), now=NOW + timedelta(seconds=30)
    )
    assert cronjob_controller.decide_cron_job(late).create_for == NOW
    later = cronjob_controller.CronJobView(
        cron=cron(startingDeadlineSeconds=60), jobs=(), now=NOW + timedelta(seconds=90)
    )
    assert cronjob_controller.decide_cron_job(later).create_for is None
