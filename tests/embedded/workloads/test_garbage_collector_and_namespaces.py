"""Deleting owners and namespaces, end to end in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, PODS, REPLICA_SETS, SECRETS
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import WorkloadCluster, names, template, workload_cluster

MINE = ("deployment", "replicaset", "garbage", "namespace")


def web(replicas: int = 3) -> dict[str, Any]:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template()}
    return {"metadata": {"name": "web"}, "spec": spec}


async def running(here: WorkloadCluster, count: int, namespace: str = "default") -> None:
    async def there() -> bool:
        pods = await here.list(PODS, namespace)
        return len(pods) == count and all(pod.status.phase == "Running" for pod in pods)

    await here.until(there)


def test_foreground_deletion_waits_for_the_pods() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            here.kubelet.stop_s = 20
            await here.create(DEPLOYMENTS, web())
            await running(here, 3)
            await here.delete(DEPLOYMENTS, "web", propagation="Foreground")
            await here.pass_time(10)
            assert (await here.get(DEPLOYMENTS, "web")).metadata.deletion_timestamp is not None
            assert len(await here.list(REPLICA_SETS)) == 1
            assert len(await here.list(PODS)) == 3
            await here.pass_time(15)
            assert await here.get(DEPLOYMENTS, "web") is None
            assert await here.list(REPLICA_SETS) == []
            assert await here.list(PODS) == []

    run_virtual(story)


def test_background_deletion_does_not_wait() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            here.kubelet.stop_s = 20
            await here.create(DEPLOYMENTS, web())
            await running(here, 3)
            await here.delete(DEPLOYMENTS, "web", propagation="Background")
            assert await here.get(DEPLOYMENTS, "web") is None
            await here.pass_time(5)
            assert await here.list(REPLICA_SETS) == []
            assert len(await here.list(PODS)) == 3
            await here.pass_time(20)
            assert await here.list(PODS) == []

    run_virtual(story)


def test_orphaned_sets_live_on_and_are_adopted_again() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(DEPLOYMENTS, web())
            await running(here, 3)
            before = names(await here.list(PODS))
            await here.delete(DEPLOYMENTS, "web", propagation="Orphan")
            await here.pass_time(5)
            assert await here.get(DEPLOYMENTS, "web") is None
            (orphan,) = await here.list(REPLICA_SETS)
            assert orphan.metadata.owner_references == ()
            assert names(await here.list(PODS)) == before
            await here.create(DEPLOYMENTS, web())
            await here.pass_time(5)
            (adopted,) = await here.list(REPLICA_SETS)
            assert adopted.metadata.uid == orphan.metadata.uid
            assert adopted.metadata.owner_references[0].kind == "Deployment"
            assert names(await here.list(PODS)) == before

    run_virtual(story)


def owned_by(*owners: Any) -> list[dict[str, Any]]:
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.metadata.name, "uid": owner.metadata.uid}
        for owner in owners
    ]


def test_an_object_lives_as_long_as_one_of_its_owners() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            one = await here.create(CONFIG_MAPS, {"metadata": {"name": "one"}})
            two = await here.create(CONFIG_MAPS, {"metadata": {"name": "two"}})
            await here.create(SECRETS, {"metadata": {"name": "child", "ownerReferences": owned_by(one, two)}})
            await here.delete(CONFIG_MAPS, "one")
            await here.pass_time(1)
            child = await here.get(SECRETS, "child")
            assert [ref.name for ref in child.metadata.owner_references] == ["two"]
            await here.delete(CONFIG_MAPS, "two")
            await here.pass_time(1)
            assert await here.get(SECRETS, "child") is None

    run_virtual(story)


@pytest.mark.parametrize("recreated", [False, True], ids=["never-there", "another-of-that-name"])
def test_absent_owners_do_not_keep_an_object(recreated: bool) -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            if recreated:
                await here.create(CONFIG_MAPS, {"metadata": {"name": "gone"}})
            ghost = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "no-such-uid"}]
            await here.create(SECRETS, {"metadata": {"name": "child", "ownerReferences": ghost}})
            await here.pass_time(1)
            assert await here.get(SECRETS, "child") is None

    run_virtual(story)


def test_owner_in_another_namespace_is_absent() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            far = await here.create(CONFIG_MAPS, {"metadata": {"name": "far"}}, "kube-system")
            await here.create(SECRETS, {"metadata": {"name": "child", "ownerReferences": owned_by(far)}})
            await here.pass_time(1)
            assert await here.get(SECRETS, "child") is None
            assert await here.get(CONFIG_MAPS, "far", "kube-system") is not None

    run_virtual(story)


def test_owner_of_an_unknown_kind_is_left_to_time() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            odd = [{"apiVersion": "example.com/v1", "kind": "Odd", "name": "x", "uid": "u"}]
            await here.create(SECRETS, {"metadata": {"name": "child", "ownerReferences": odd}})
            await here.pass_time(100)
            assert await here.get(SECRETS, "child") is not None

    run_virtual(story)


def test_circle_of_foreground_deletions_comes_apart() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            one = await here.create(CONFIG_MAPS, {"metadata": {"name": "one"}})
            blocking = [{**ref, "blockOwnerDeletion": True} for ref in owned_by(one)]
            two = await here.create(CONFIG_MAPS, {"metadata": {"name": "two", "ownerReferences": blocking}})
            back = [{**ref, "blockOwnerDeletion": True} for ref in owned_by(two)]
            await here.merge(CONFIG_MAPS, "one", {"metadata": {"ownerReferences": back}})
            await here.delete(CONFIG_MAPS, "one", propagation="Foreground")
            await here.pass_time(60)
            assert names(await here.list(CONFIG_MAPS)) == []

    run_virtual(story)


def test_namespace_is_emptied_pods_first() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            here.kubelet.stop_s = 10
            await here.create(NAMESPACES, {"metadata": {"name": "shop"}})
            for name in ("red", "green", "blue"):
                await here.create(PODS, {"metadata": {"name": name}, "spec": template()["spec"]}, "shop")
            await here.create(CONFIG_MAPS, {"metadata": {"name": "settings"}}, "shop")
            await running(here, 3, "shop")
            await here.delete(NAMESPACES, "shop", None)
            await here.pass_time(5)
            namespace = await here.get(NAMESPACES, "shop", None)
            said = {each.type: (each.status, each.reason) for each in namespace.status.conditions}
            assert namespace.status.phase == "Terminating"
            assert said["NamespaceContentRemaining"] == ("True", "SomeResourcesRemain")
            assert said["NamespaceDeletionContentFailure"] == ("False", "ContentDeleted")
            assert await here.get(CONFIG_MAPS, "settings", "shop") is not None  # pods may still use it
            await here.pass_time(30)
            assert await here.get(NAMESPACES, "shop", None) is None
            assert await here.list(CONFIG_MAPS, "shop") == []

    run_virtual(story)


def test_namespace_waits_for_finalizers_and_says_so() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(NAMESPACES, {"metadata": {"name": "shop"}})
            await here.create(CONFIG_MAPS, {"metadata": {"name": "kept", "finalizers": ["example.com/keep"]}}, "shop")
            await here.delete(NAMESPACES, "shop", None)
            await here.pass_time(60)
            namespace = await here.get(NAMESPACES, "shop", None)
            (held,) = [each for each in namespace.status.conditions if each.type == "NamespaceFinalizersRemaining"]
            expected = (
                "Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances"
            )
            assert (held.status, held.message) == ("True", expected)
            await here.merge(CONFIG_MAPS, "kept", {"metadata": {"finalizers": None}}, "shop")
            await here.pass_time(30)
            assert await here.get(NAMESPACES, "shop", None) is None

    run_virtual(story)


def test_namespace_with_workloads_ends_without_a_fight() -> None:
    """Controllers that go on making pods are refused, so nothing grows back while it is being emptied."""

    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(NAMESPACES, {"metadata": {"name": "shop"}})
            await here.create(DEPLOYMENTS, web(), "shop")
            await running(here, 3, "shop")
            await here.delete(NAMESPACES, "shop", None)
            await here.pass_time(60)
            assert await here.get(NAMESPACES, "shop", None) is None
            assert await here.list(PODS, None) == []
            assert await here.list(DEPLOYMENTS, None) == []

    run_virtual(story)
