"""Deployment and ReplicaSet controllers end to end, in virtual time against the embedded server."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, DEPLOYMENTS, PODS, REPLICA_SETS, REPLICATION_CONTROLLERS
from koord.api.kubernetes.workload import Deployment
from koord.embedded.workloads.pod_control import is_pod_active, is_pod_ready
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import WorkloadCluster, names, template, workload_cluster

MINE = ("deployment", "replicaset", "garbage")
REVISION = "deployment.kubernetes.io/revision"


def deployment(replicas: int = 4, image: str = "app:1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(image=image),
            **spec,
        },
    }


def condition(found: Deployment, type: str) -> tuple[str, str]:
    for each in found.status.conditions:
        if each.type == type:
            return each.status, each.reason
    return "", ""


async def rolled_out(here: WorkloadCluster, replicas: int, limit_s: float = 60.0) -> Deployment:
    async def done() -> Deployment | None:
        found: Deployment = await here.get(DEPLOYMENTS, "web")
        status = found.status
        complete = status.updated_replicas == status.replicas == status.available_replicas == replicas
        return found if complete and condition(found, "Progressing")[1] == "NewReplicaSetAvailable" else None

    await here.pass_time(0.5)  # let the last change be seen: what is complete may be what was before it
    result: Deployment = await here.until(done, limit_s)
    return result


def test_rollout_keeps_to_its_bounds_and_can_be_undone() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            strategy = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
            await here.create(DEPLOYMENTS, deployment(strategy=strategy))
            first = await rolled_out(here, 4)
            assert first.metadata.annotations[REVISION] == "1"
            assert condition(first, "Available") == ("True", "MinimumReplicasAvailable")
            await here.merge(DEPLOYMENTS, "web", {"spec": {"template": template(image="app:2")}})
            least, most = 4, 0

            async def moved() -> bool:
                nonlocal least, most
                pods = await here.list(PODS)
                least = min(least, sum(is_pod_active(pod) and is_pod_ready(pod) for pod in pods))
                most = max(most, sum(is_pod_active(pod) for pod in pods))
                return all(pod.spec.containers[0].image == "app:2" for pod in pods)

            await here.until(moved)
            assert (least, most) == (3, 5)
            second = await rolled_out(here, 4)
            assert second.metadata.annotations[REVISION] == "2"
            # What `kubectl rollout undo` sends: the template of an older revision.
            await here.merge(DEPLOYMENTS, "web", {"spec": {"template": template(image="app:1")}})
            third = await rolled_out(here, 4)
            assert third.metadata.annotations[REVISION] == "3"
            sets = {s.metadata.annotations[REVISION]: s for s in await here.list(REPLICA_SETS)}
            assert sorted(sets) == ["2", "3"]
            assert sets["3"].metadata.annotations["deployment.kubernetes.io/revision-history"] == "1"
            said = {event.message for event in await here.list(CORE_EVENTS) if event.reason == "ScalingReplicaSet"}
            assert f"Scaled up replica set {sets['3'].metadata.name} from 0 to 4" in said

    run_virtual(story)


def test_recreate_never_mixes_versions() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(DEPLOYMENTS, deployment(strategy={"type": "Recreate"}))
            await rolled_out(here, 4)
            await here.merge(DEPLOYMENTS, "web", {"spec": {"template": template(image="app:2")}})
            mixes: list[set[str]] = []

            async def moved() -> bool:
                images = {pod.spec.containers[0].image for pod in await here.list(PODS)}
                mixes.append(images)
                return images == {"app:2"}

            await here.until(moved)
            await rolled_out(here, 4)
            assert {"app:1", "app:2"} not in mixes

    run_virtual(story)


def test_stuck_rollout_passes_its_deadline_and_recovers() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(DEPLOYMENTS, deployment(progressDeadlineSeconds=30))
            await rolled_out(here, 4)
            broken = template(image="app:2", toy__never_ready="yes")
            await here.merge(DEPLOYMENTS, "web", {"spec": {"template": broken}})

            async def stuck() -> bool:
                return condition(await here.get(DEPLOYMENTS, "web"), "Progressing") == (
                    "False",
                    "ProgressDeadlineExceeded",
                )

            await here.until(stuck, 45)
            found = await here.get(DEPLOYMENTS, "web")
            assert found.status.available_replicas == 3  # 25% of 4 may be missing, and no more
            assert condition(found, "Available")[0] == "True"
            await here.merge(DEPLOYMENTS, "web", {"spec": {"template": template(image="app:3")}})
            await here.merge(DEPLOYMENTS, "web", {"spec": {"template": {"metadata": {"annotations": None}}}})
            await rolled_out(here, 4)

    run_virtual(story)


def test_paused_deployment_scales_but_does_not_roll() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(DEPLOYMENTS, deployment())
            await rolled_out(here, 4)
            await here.merge(
                DEPLOYMENTS, "web", {"spec": {"paused": True, "replicas": 6, "template": template(image="app:2")}}
            )

            async def scaled() -> bool:
                found = await here.get(DEPLOYMENTS, "web")
                return bool(found.status.available_replicas == 6)

            await here.until(scaled)
            await here.pass_time(700)  # longer than the deadline: its clock stands still
            found = await here.get(DEPLOYMENTS, "web")
            assert condition(found, "Progressing") == ("Unknown", "DeploymentPaused")
            assert len(await here.list(REPLICA_SETS)) == 1
            await here.merge(DEPLOYMENTS, "web", {"spec": {"paused": False}})
            await rolled_out(here, 6)
            assert {pod.spec.containers[0].image for pod in await here.list(PODS) if is_pod_active(pod)} == {"app:2"}

    run_virtual(story)


def test_history_is_kept_to_its_limit() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(DEPLOYMENTS, deployment(1, revisionHistoryLimit=1))
            for number in range(2, 5):
                await rolled_out(here, 1)
                await here.merge(DEPLOYMENTS, "web", {"spec": {"template": template(image=f"app:{number}")}})
            await rolled_out(here, 1)
            await here.pass_time(5)
            kept = sorted(s.metadata.annotations[REVISION] for s in await here.list(REPLICA_SETS))
            assert kept == ["3", "4"]

    run_virtual(story)


def test_min_ready_seconds_delays_availability() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(DEPLOYMENTS, deployment(2, minReadySeconds=20))
            await here.pass_time(10)
            early = await here.get(DEPLOYMENTS, "web")
            assert (early.status.ready_replicas, early.status.available_replicas) == (2, 0)
            await rolled_out(here, 2)
            assert clock.monotonic() >= 21

    run_virtual(story)


def test_orphans_are_adopted_and_strangers_released() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            bare = {"metadata": {"name": "bare", "labels": {"app": "web"}}, "spec": template()["spec"]}
            await here.create(PODS, bare)
            body = {"selector": {"matchLabels": {"app": "web"}}, "template": template(), "replicas": 3}
            await here.create(REPLICA_SETS, {"metadata": {"name": "web"}, "spec": body})
            await here.pass_time(5)
            pods = await here.list(PODS, labels="app=web")
            assert len(pods) == 3
            assert "bare" in names(pods)
            await here.merge(PODS, "bare", {"metadata": {"labels": {"app": "other"}}})
            await here.pass_time(5)
            freed = await here.get(PODS, "bare")
            assert freed.metadata.owner_references == ()
            assert len(await here.list(PODS, labels="app=web")) == 3

    run_virtual(story)


def test_deleted_pods_are_replaced_and_deleted_sets_take_theirs_along() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(DEPLOYMENTS, deployment())
            await rolled_out(here, 4)
            victim = (await here.list(PODS))[0].metadata.name
            await here.delete(PODS, victim)
            await here.pass_time(5)
            pods = await here.list(PODS)
            assert len(pods) == 4
            assert victim not in names(pods)
            await here.delete(DEPLOYMENTS, "web")
            await here.pass_time(5)
            assert await here.list(REPLICA_SETS) == []
            assert await here.list(PODS) == []

    run_virtual(story)


@pytest.mark.parametrize("replicas", [700], ids=["more-than-one-burst"])
def test_large_sets_are_exact_and_quiet_once_settled(replicas: int) -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=50) as here:
            await here.create(DEPLOYMENTS, deployment(replicas))
            await rolled_out(here, replicas)
            pods = await here.list(PODS)
            assert len(pods) == replicas
            before = {pod.metadata.uid: pod.metadata.resource_version for pod in pods}
            revision = (await here.get(DEPLOYMENTS, "web")).metadata.resource_version
            await here.pass_time(3600)
            assert {pod.metadata.uid: pod.metadata.resource_version for pod in await here.list(PODS)} == before
            assert (await here.get(DEPLOYMENTS, "web")).metadata.resource_version == revision
            await here.merge(DEPLOYMENTS, "web", {"spec": {"replicas": 3}})
            await rolled_out(here, 3)

    run_virtual(story)


def test_same_seed_gives_the_same_names() -> None:
    async def story(clock: LoopClock) -> list[str]:
        async with workload_cluster(clock, MINE) as here:
            await here.create(DEPLOYMENTS, deployment())
            await rolled_out(here, 4)
            return names(await here.list(PODS))

    assert run_virtual(story) == run_virtual(story)


def test_a_replication_controller_keeps_its_pods() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, ("replicationcontroller", "replicaset", "garbage")) as here:
            body = {"metadata": {"name": "old"}, "spec": {"replicas": 3, "template": template()}}
            await here.create(REPLICATION_CONTROLLERS, body)

            async def available(count: int) -> Any:
                found = await here.get(REPLICATION_CONTROLLERS, "old")
                status = found.status
                done = status.replicas == status.available_replicas == status.fully_labeled_replicas == count
                return found if done and status.observed_generation == found.metadata.generation else None

            await here.until(lambda: available(3))
            pods = await here.list(PODS)
            assert {pod.metadata.owner_references[0].kind for pod in pods} == {"ReplicationController"}
            await here.delete(PODS, pods[0].metadata.name)
            await here.pass_time(1)
            await here.until(lambda: available(3))
            await here.merge(REPLICATION_CONTROLLERS, "old", {"spec": {"replicas": 1}})
            await here.until(lambda: available(1))
            await here.delete(REPLICATION_CONTROLLERS, "old")  # orphans its pods unless told otherwise
            await here.pass_time(10)
            assert len([pod for pod in await here.list(PODS) if is_pod_active(pod)]) == 1
            await here.create(REPLICATION_CONTROLLERS, body)
            await here.until(lambda: available(3))  # and adopts them again
            await here.delete(REPLICATION_CONTROLLERS, "old", propagation="Background")

            async def empty() -> bool:
                return not await here.list(PODS)

            await here.until(empty)

    run_virtual(story)
