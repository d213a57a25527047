"""Which waiting jobs may start, in which order, and what the rest wait for."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.kubernetes.pod import Pod
from koord.descheduler.migration.arbitration import arbitrate, sort_jobs
from koord.descheduler.migration.plugin import MigrationBudget, MigrationProtection
from tests.descheduler.cluster_builders import make_node, make_pod, make_snapshot
from tests.descheduler.migration_builders import arguments, make_job, make_workload, ready_pod

WORKLOADS = {f"ReplicaSet-{n}": make_workload(n, 100) for n in ("rs", "x", "y")}
NODES = (make_node("n1"), make_node("n2"))


def judged(
    waiting: list[PodMigrationJob], pods: list[Pod], others: tuple[PodMigrationJob, ...] = (), **args: Any
) -> dict[str, list[str]]:
    given = arguments(**args)
    snapshot = make_snapshot(NODES, pods, jobs=(*waiting, *others), workloads=WORKLOADS)
    found: dict[str, list[str]] = {"passes": [], "waits": [], "forbidden": []}
    for verdict in arbitrate(waiting, snapshot, MigrationProtection(given), MigrationBudget(given)):
        kind = "forbidden" if verdict.forbidden else "waits" if verdict.waits else "passes"
        found[kind].append(verdict.job.metadata.name)
    return found


def names(jobs: list[PodMigrationJob]) -> list[str]:
    return [job.metadata.name for job in jobs]


def test_ten_jobs_of_which_one_is_forbidden_and_two_wait() -> None:
    pods = [ready_pod(f"p{i}", f"n{10 + i}") for i in range(10)]
    pods[2] = make_pod("p2", "n12")  # nobody would create it again
    busy = [ready_pod("b3", "n13", owner="ReplicaSet/x"), ready_pod("b7", "n17", owner="ReplicaSet/y")]
    running = tuple(make_job(f"r-{p.metadata.name}", p.metadata.name, phase="Running") for p in busy)
    waiting = [make_job(f"j{i}", f"p{i}") for i in range(10)]
    found = judged(
        waiting,
        [*pods, *busy],
        running,
        max_migrating_per_node=1,
        max_migrating_per_workload=50,
        max_unavailable_per_workload=50,
    )
    assert sorted(found["forbidden"]) == ["j2"]
    assert sorted(found["waits"]) == ["j3", "j7"]
    assert len(found["passes"]) == 7


def test_forbidden_wins_over_waiting() -> None:
    pods = [make_pod("a", "n1"), ready_pod("b", "n1")]
    found = judged([make_job("j", "a")], pods, (make_job("r", "b", phase="Running"),), max_migrating_per_node=1)
    assert found["forbidden"] == ["j"]


def test_jobs_that_wait_do_not_stand_in_each_others_way_but_passing_ones_do() -> None:
    pods = [ready_pod("a"), ready_pod("b"), ready_pod("c")]
    waiting = [make_job(n, n) for n in "abc"]
    assert len(judged(waiting, pods, max_migrating_per_node=2)["passes"]) == 2
    earlier = (make_job("p", "z", passed=True, namespace="default"),)
    assert judged([waiting[0]], [*pods, ready_pod("z")], earlier, max_migrating_per_node=1)["waits"] == ["a"]


def test_a_job_without_its_pod_or_out_of_time_goes_through_to_say_so() -> None:
    busy = (make_job("r", "b", phase="Running"),)
    pods = [ready_pod("a"), ready_pod("b")]
    late = make_job("late", "a", ttl="1m", age_s=61)
    paused = make_job("paused", "a", ttl="1m", age_s=61, paused=True)
    gone, another = make_job("gone", "nobody"), make_job("another", "a", uid="former")
    found = judged([late, paused, gone, another], pods, busy, max_migrating_per_node=1)
    assert sorted(found["passes"]) == ["another", "gone", "late"]
    assert found["waits"] == ["paused"]


def test_two_jobs_of_one_pod_both_pass() -> None:
    waiting = [make_job("one", "a"), make_job("two", "a")]
    assert len(judged(waiting, [ready_pod("a")], max_migrating_per_node=1)["passes"]) == 2


# Order -------------------------------------------------------------------------------------------------------------


def test_newest_job_first_among_equal_pods_and_those_without_one_before_all() -> None:
    snapshot = make_snapshot(NODES, [ready_pod("a"), ready_pod("b")])
    jobs = [make_job("old", "a", age_s=60), make_job("new", "b"), make_job("none", "z", age_s=90)]
    assert names(sort_jobs(jobs, snapshot)) == ["none", "new", "old"]


def test_pods_that_matter_least_go_first_whatever_the_age_of_the_job() -> None:
    batch = ready_pod("batch", spec={"priority": 5500})
    prod = ready_pod("prod", spec={"priority": 9500})
    snapshot = make_snapshot(NODES, [batch, prod])
    jobs = [make_job("prod", "prod"), make_job("batch", "batch", age_s=60)]
    assert names(sort_jobs(jobs, snapshot)) == ["batch", "prod"]


def batch_pod(name: str, job: str, priority: int) -> Pod:
    return make_pod(name, "n1", owner=f"Job/{job}", spec={"priority": priority})


def test_pods_of_one_batch_job_stay_together_and_first_those_already_on_the_move() -> None:
    pods = [
        batch_pod("a1", "a", 5100),
        batch_pod("a2", "a", 5900),
        batch_pod("b1", "b", 5000),
        batch_pod("b2", "b", 5800),
        batch_pod("b3", "b", 5800),
        ready_pod("plain", spec={"priority": 5500}),
    ]
    jobs = [make_job(p.metadata.name, p.metadata.name) for p in pods if p.metadata.name != "b3"]
    assert names(sort_jobs(jobs, make_snapshot(NODES, pods))) == ["b1", "b2", "a1", "a2", "plain"]
    moving = make_job("m", "b3", phase="Running")
    pods_a = make_snapshot(NODES, pods, jobs=(make_job("n", "a2", phase="Running"), moving, make_job("o", "b3")))
    assert names(sort_jobs(jobs, pods_a))[0] in ("a1", "b1")
    twice = make_snapshot(NODES, [*pods, batch_pod("a3", "a", 5000)], jobs=(make_job("n", "a3", phase="Running"),))
    assert names(sort_jobs(jobs, twice)) == ["a1", "a2", "b1", "b2", "plain"]


@pytest.mark.parametrize("owner", ["ReplicaSet/rs", "StatefulSet/s"])
def test_other_owners_are_not_kept_together(owner: str) -> None:
    pods = [
        make_pod("a1", "n1", owner=owner, spec={"priority": 5000}),
        make_pod("x", "n1", owner="ReplicaSet/x", spec={"priority": 5500}),
        make_pod("a2", "n1", owner=owner, spec={"priority": 5900}),
    ]
    jobs = [make_job(p.metadata.name, p.metadata.name) for p in pods]
    assert names(sort_jobs(jobs, make_snapshot(NODES, pods))) == ["a1", "x", "a2"]
