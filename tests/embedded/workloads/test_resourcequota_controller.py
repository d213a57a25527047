"""The resource quota controller fills in what is used, and gives back what is gone or has ended."""

from __future__ import annotations

import pytest

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, PODS, REPLICA_SETS, RESOURCE_CLAIMS, RESOURCE_QUOTAS
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import Plain, WorkloadCluster, template, workload_cluster

MINE = ("resourcequota", "replicaset")


async def used(here: WorkloadCluster, expected: Plain) -> None:
    async def seen() -> bool:
        quota = await here.get(RESOURCE_QUOTAS, "q")
        return bool(quota.status.used == expected and quota.status.hard == quota.spec.hard)

    await here.until(seen)


def a_pod(name: str, *, ends: bool = False) -> Plain:
    made = template(toy__exit="0") if ends else template()
    return {"metadata": {"name": name, **made["metadata"]}, "spec": {**made["spec"], "restartPolicy": "Never"}}


async def quota(here: WorkloadCluster, **hard: str) -> None:
    await here.create(RESOURCE_QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}})


def test_usage_follows_pods_that_come_end_and_go() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(PODS, a_pod("first"))
            await quota(here, pods="2")
            await used(here, {"pods": "1"})
            await here.create(PODS, a_pod("ends", ends=True))
            await used(here, {"pods": "2"})
            await used(here, {"pods": "1"})
            await here.delete(PODS, "first")
            await used(here, {"pods": "0"})

    run_virtual(story)


def test_devices_of_claims_are_charged_by_class() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            devices = "gpu.deviceclass.resource.k8s.io/devices"
            await quota(here, **{"count/resourceclaims.resource.k8s.io": "2", devices: "40"})
            await used(here, {"count/resourceclaims.resource.k8s.io": "0", devices: "0"})
            exact = {"name": "a", "exactly": {"deviceClassName": "gpu", "count": 3}}
            either = [{"name": f"n{n}", "deviceClassName": "gpu", "count": n} for n in (1, 2)]
            requests = [exact, {"name": "b", "firstAvailable": either}]
            body = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}
            await here.create(RESOURCE_CLAIMS, body)
            await used(here, {"count/resourceclaims.resource.k8s.io": "1", devices: "5"})
            everything = {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}
            many = [everything, {**exact, "name": "b"}, {**exact, "name": "c"}]
            over = {"metadata": {"name": "d"}, "spec": {"devices": {"requests": many}}}
            refused = await here.client.create(RESOURCE_CLAIMS, over, "default")
            assert isinstance(refused, ApiError)
            assert f"exceeded quota: q, requested: {devices}=38, used: {devices}=5" in refused.message
            await here.delete(RESOURCE_CLAIMS, "c")
            await used(here, {"count/resourceclaims.resource.k8s.io": "0", devices: "0"})

    run_virtual(story)


def test_objects_are_counted_again_when_they_are_deleted() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await quota(here, **{"configmaps": "1", "count/replicasets.apps": "5", "count/nothings.example.com": "5"})
            await used(here, {"configmaps": "0", "count/replicasets.apps": "0"})
            await here.create(CONFIG_MAPS, {"metadata": {"name": "a"}})
            await used(here, {"configmaps": "1", "count/replicasets.apps": "0"})
            assert isinstance(await here.client.create(CONFIG_MAPS, {"metadata": {"name": "b"}}, "default"), ApiError)
            await here.delete(CONFIG_MAPS, "a")
            await used(here, {"configmaps": "0", "count/replicasets.apps": "0"})

    run_virtual(story)


def test_a_replica_set_says_that_a_quota_stops_it_and_goes_on_when_there_is_room() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await quota(here, pods="2")
            await used(here, {"pods": "0"})
            spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template()}
            await here.create(REPLICA_SETS, {"metadata": {"name": "rs"}, "spec": spec})

            async def failing() -> bool:
                found = await here.get(REPLICA_SETS, "rs")
                return [c.reason for c in found.status.conditions] == ["FailedCreate"]

            async def at_rest() -> bool:
                found = await here.get(REPLICA_SETS, "rs")
                return not found.status.conditions and found.status.replicas == 3

            await here.until(failing)
            assert len(await here.list(PODS)) == 2
            await here.merge(RESOURCE_QUOTAS, "q", {"spec": {"hard": {"pods": "3"}}})
            await here.until(at_rest, limit_s=1200)
            await used(here, {"pods": "3"})

    run_virtual(story)


@pytest.mark.parametrize("seed", range(3))
def test_pods_that_come_together_never_exceed_a_quota_whatever_calls_fail(seed: int) -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, seed=seed, faults=0.2) as here:
            await quota(here, pods="4")
            await used(here, {"pods": "0"})
            spec = {"replicas": 9, "selector": {"matchLabels": {"app": "web"}}, "template": template()}
            await here.create(REPLICA_SETS, {"metadata": {"name": "rs"}, "spec": spec})

            async def full() -> bool:
                assert len(await here.list(PODS)) <= 4
                return len(await here.list(PODS)) == 4

            await here.until(full, limit_s=600)
            await here.pass_time(60)
            assert len(await here.list(PODS)) == 4
            await used(here, {"pods": "4"})

    run_virtual(story)
