"""Job and CronJob controllers end to end, in virtual time against the embedded server."""

from __future__ import annotations

import itertools
from typing import Any

from koord.api.kubernetes.builtin_kinds import CRON_JOBS, JOBS, PODS
from koord.api.kubernetes.workload import Job
from koord.embedded.workloads.job_accounting import TRACKING_FINALIZER
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import WorkloadCluster, names, template, workload_cluster

MINE = ("job", "cronjob", "garbage")


def job(name: str = "work", **spec: Any) -> dict[str, Any]:
    pod = template({"app": "work"}, toy__exit=spec.pop("exit", "0"), toy__runs=spec.pop("runs", "5"))
    pod["spec"]["restartPolicy"] = "Never"
    return {"metadata": {"name": name}, "spec": {"template": pod, **spec}}


def outcome(found: Job) -> dict[str, str]:
    return {each.type: each.reason for each in found.status.conditions if each.status == "True"}


async def over(here: WorkloadCluster, end: str, name: str = "work", limit_s: float = 600) -> Job:
    async def done() -> Job | None:
        found: Job = await here.get(JOBS, name)
        return found if end in outcome(found) else None

    result: Job = await here.until(done, limit_s)
    return result


def test_completions_are_reached_within_the_parallelism() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(JOBS, job(completions=7, parallelism=3))
            most = 0

            async def done() -> bool:
                nonlocal most
                pods = await here.list(PODS)
                most = max(most, sum(pod.status.phase in ("Pending", "Running") for pod in pods))
                return "Complete" in outcome(await here.get(JOBS, "work"))

            await here.until(done)
            found = await here.get(JOBS, "work")
            assert most == 3
            assert (found.status.succeeded, found.status.failed, found.status.active) == (7, 0, 0)
            assert outcome(found) == {"SuccessCriteriaMet": "CompletionsReached", "Complete": "CompletionsReached"}
            assert found.status.completion_time is not None
            pods = await here.list(PODS)
            assert len(pods) == 7
            assert not any(TRACKING_FINALIZER in pod.metadata.finalizers for pod in pods)

    run_virtual(story)


def test_indexed_jobs_give_every_index_its_pod() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(JOBS, job(completions=5, parallelism=2, completionMode="Indexed"))
            found = await over(here, "Complete")
            assert found.status.completed_indexes == "0-4"
            pods = await here.list(PODS)
            assert sorted(pod.spec.hostname for pod in pods) == [f"work-{index}" for index in range(5)]
            (variable,) = pods[0].spec.containers[0].env
            assert variable.name == "JOB_COMPLETION_INDEX"

    run_virtual(story)


def test_failures_back_off_until_the_limit() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(JOBS, job(exit="1", runs="1", backoffLimit=3))
            found = await over(here, "Failed")
            assert outcome(found) == {"FailureTarget": "BackoffLimitExceeded", "Failed": "BackoffLimitExceeded"}
            assert found.status.failed == 4
            births = sorted(pod.metadata.creation_timestamp for pod in await here.list(PODS))
            gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(births)]
            assert gaps == [12, 22, 42]  # two seconds of life, then 10, 20 and 40 of patience

    run_virtual(story)


def test_each_index_has_its_own_limit() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            body = job(exit="1", completions=3, parallelism=3, completionMode="Indexed", backoffLimitPerIndex=1)
            await here.create(JOBS, body)
            found = await over(here, "Failed")
            assert outcome(found)["Failed"] == "FailedIndexes"
            assert found.status.failed_indexes == "0-2"
            assert found.status.failed == 6

    run_virtual(story)


def test_deadline_ends_the_job_and_its_pods() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(JOBS, job(runs="1000", parallelism=2, activeDeadlineSeconds=30))
            found = await over(here, "Failed")
            assert outcome(found)["Failed"] == "DeadlineExceeded"
            assert 30 <= clock.monotonic() < 35
            await here.pass_time(5)
            assert await here.list(PODS) == []

    run_virtual(story)


def test_failure_policy_ends_or_ignores() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            fatal = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
            await here.create(JOBS, job(exit="42", podFailurePolicy={"rules": [fatal]}))
            found = await over(here, "Failed")
            assert outcome(found)["FailureTarget"] == "PodFailurePolicy"
            assert found.status.failed == 1
            ignored = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}
            await here.create(JOBS, job("calm", exit="42", backoffLimit=0, podFailurePolicy={"rules": [ignored]}))
            await here.pass_time(60)
            calm = await here.get(JOBS, "calm")
            assert "Failed" not in outcome(calm)
            assert calm.status.failed == 0
            assert len(await here.list(PODS, labels="batch.kubernetes.io/job-name=calm")) > 1

    run_virtual(story)


def test_success_policy_ends_early() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            rule = {"succeededIndexes": "0", "succeededCount": 1}
            body = job(completions=3, parallelism=1, completionMode="Indexed", successPolicy={"rules": [rule]})
            await here.create(JOBS, body)
            found = await over(here, "Complete")
            assert outcome(found)["SuccessCriteriaMet"] == "SuccessPolicy"
            assert found.status.completed_indexes == "0"

    run_virtual(story)


def test_suspended_jobs_lose_their_pods_and_no_honour() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(JOBS, job(runs="50", parallelism=9, completions=9, backoffLimit=2))
            await here.pass_time(10)
            await here.merge(JOBS, "work", {"spec": {"suspend": True}})
            await here.pass_time(10)
            found = await here.get(JOBS, "work")
            assert outcome(found) == {"Suspended": "JobSuspended"}
            assert (found.status.active, found.status.failed, found.status.start_time) == (0, 0, None)
            assert await here.list(PODS) == []
            await here.merge(JOBS, "work", {"spec": {"suspend": False}})
            finished = await over(here, "Complete")
            assert finished.status.succeeded == 9

    run_virtual(story)


def test_fewer_are_wanted_and_that_is_no_failure() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(JOBS, job(runs="100", parallelism=8, completions=8, backoffLimit=1))
            await here.pass_time(5)
            await here.merge(JOBS, "work", {"spec": {"parallelism": 2}})
            await here.pass_time(5)
            found = await here.get(JOBS, "work")
            assert (found.status.active, found.status.failed) == (2, 0)
            assert len(await here.list(PODS)) == 2

    run_virtual(story)


def test_deleted_pods_are_counted_and_replaced() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(JOBS, job(runs="60"))
            await here.pass_time(5)
            (victim,) = await here.list(PODS)
            await here.delete(PODS, victim.metadata.name)
            await here.pass_time(30)
            found = await here.get(JOBS, "work")
            assert (found.status.active, found.status.failed) == (1, 1)
            (other,) = await here.list(PODS)
            assert other.metadata.uid != victim.metadata.uid

    run_virtual(story)


def test_finished_jobs_go_when_their_time_is_up() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(JOBS, job(ttlSecondsAfterFinished=100))
            await over(here, "Complete")
            await here.pass_time(95)
            assert await here.get(JOBS, "work") is not None
            await here.pass_time(10)
            assert await here.get(JOBS, "work") is None
            assert await here.list(PODS) == []

    run_virtual(story)


def test_deleting_a_job_frees_its_pods() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(JOBS, job(runs="1000"))
            await here.pass_time(5)
            await here.delete(JOBS, "work", propagation="Background")
            await here.pass_time(5)
            assert await here.list(PODS) == []

    run_virtual(story)


# -- CronJobs


def cron(schedule: str = "*/10 * * * *", **spec: Any) -> dict[str, Any]:
    template = {"spec": job(runs=spec.pop("runs", "5"), exit=spec.pop("exit", "0"))["spec"]}
    return {"metadata": {"name": "tick"}, "spec": {"schedule": schedule, "jobTemplate": template, **spec}}


def test_cron_jobs_fire_on_time_and_keep_a_short_history() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(CRON_JOBS, cron())
            await here.pass_time(3600 + 30)
            jobs = await here.list(JOBS)
            minutes = [job.metadata.creation_timestamp.minute for job in jobs]
            assert sorted(minutes) == [0, 40, 50]  # the last three of the hour
            status = (await here.get(CRON_JOBS, "tick")).status
            assert status.active == ()
            assert (status.last_schedule_time.hour, status.last_schedule_time.minute) == (1, 0)
            assert status.last_successful_time > status.last_schedule_time

    run_virtual(story)


def test_concurrency_policies() -> None:
    async def story(clock: LoopClock, policy: str) -> list[Any]:
        async with workload_cluster(clock, MINE) as here:
            await here.create(CRON_JOBS, cron(runs="1500", concurrencyPolicy=policy))
            await here.pass_time(1900)
            return [job for job in await here.list(JOBS) if "Complete" not in outcome(job)]

    def running(policy: str) -> list[int]:
        jobs = run_virtual(lambda clock: story(clock, policy))
        return sorted(job.metadata.creation_timestamp.minute for job in jobs)

    assert running("Allow") == [10, 20, 30]
    assert running("Forbid") == [10]
    assert running("Replace") == [30]


def test_suspended_cron_jobs_wait_and_too_late_is_missed() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(CRON_JOBS, cron(suspend=True, startingDeadlineSeconds=120))
            await here.pass_time(900)
            assert await here.list(JOBS) == []
            await here.merge(CRON_JOBS, "tick", {"spec": {"suspend": False}})
            await here.pass_time(200)
            assert await here.list(JOBS) == []  # the one of 00:10 is too late, that of 00:20 not yet due
            await here.pass_time(200)
            (made,) = await here.list(JOBS)
            assert made.metadata.creation_timestamp.minute == 20

    run_virtual(story)


def test_time_zones_move_the_schedule() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(CRON_JOBS, cron("0 9 * * *", timeZone="Asia/Shanghai"))
            await here.pass_time(3600 + 60)  # 01:00 UTC is 09:00 there
            assert len(await here.list(JOBS)) == 1
            assert names(await here.list(JOBS))[0].startswith("tick-")

    run_virtual(story)
