"""Workloads converge although calls fail before, after or instead of taking effect."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, JOBS, NAMESPACES, PODS, REPLICA_SETS, STATEFUL_SETS
from koord.embedded.workloads.pod_control import is_pod_active
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import WorkloadCluster, names, template, workload_cluster

SEEDS = [pytest.param(seed, id=f"seed-{seed}") for seed in (1, 2, 3)]
MINE = ("deployment", "replicaset", "statefulset", "job", "garbage", "namespace")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Failed reconciles are logged, as they should be; here they are the point."""
    caplog.set_level("CRITICAL")


async def rolled(here: WorkloadCluster, image: str, replicas: int) -> bool:
    pods = [pod for pod in await here.list(PODS, labels="app=web") if is_pod_active(pod)]
    found = await here.get(DEPLOYMENTS, "web")
    right = len(pods) == replicas and {pod.spec.containers[0].image for pod in pods} == {image}
    return right and found.status.available_replicas == found.status.updated_replicas == replicas


@pytest.mark.parametrize("seed", SEEDS)
def test_rollouts_arrive(seed: int) -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, seed=seed, faults=0.3) as here:
            spec: dict[str, Any] = {"replicas": 6, "selector": {"matchLabels": {"app": "web"}}}
            await here.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": {**spec, "template": template()}})
            await here.until(lambda: rolled(here, "app:1", 6), 3600, 1)
            await here.merge(DEPLOYMENTS, "web", {"spec": {"template": template(image="app:2")}})
            await here.until(lambda: rolled(here, "app:2", 6), 3600, 1)
            assert len(await here.list(REPLICA_SETS)) == 2
            await here.delete(DEPLOYMENTS, "web", propagation="Foreground")

            async def gone() -> bool:
                return (
                    not await here.list(DEPLOYMENTS) and not await here.list(REPLICA_SETS) and not await here.list(PODS)
                )

            await here.until(gone, 3600, 1)

    run_virtual(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_count_every_pod_once(seed: int) -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, seed=seed, faults=0.3) as here:
            body = template({"app": "work"}, toy__exit="0", toy__runs="3")
            body["spec"]["restartPolicy"] = "Never"
            await here.create(
                JOBS, {"metadata": {"name": "work"}, "spec": {"completions": 6, "parallelism": 2, "template": body}}
            )

            async def complete() -> Any:
                found = await here.get(JOBS, "work")
                return found if any(c.type == "Complete" for c in found.status.conditions) else None

            found = await here.until(complete, 3600, 1)
            assert found.status.succeeded >= 6
            pods = await here.list(PODS)
            assert found.status.succeeded == sum(pod.status.phase == "Succeeded" for pod in pods)

    run_virtual(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_ordered_sets_and_namespaces_arrive(seed: int) -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, seed=seed, faults=0.3) as here:
            await here.create(NAMESPACES, {"metadata": {"name": "shop"}})
            spec = {
                "replicas": 3,
                "serviceName": "db",
                "selector": {"matchLabels": {"app": "web"}},
                "template": template(),
            }
            await here.create(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": spec}, "shop")

            async def up() -> bool:
                found = await here.get(STATEFUL_SETS, "db", "shop")
                return bool(found.status.available_replicas == 3)

            await here.until(up, 3600, 1)
            assert names(await here.list(PODS, "shop")) == ["db-0", "db-1", "db-2"]
            await here.delete(NAMESPACES, "shop", None)

            async def gone() -> bool:
                return await here.get(NAMESPACES, "shop", None) is None

            await here.until(gone, 3600, 1)
            assert await here.list(PODS, None) == []

    run_virtual(story)
