"""The quota tree of a running program: fed by watches, asked by webhooks."""

from __future__ import annotations

from typing import Any

from koord.api.builtin import PODS
from koord.api.custom import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.protocol import A_QUOTA_SHARED_WEIGHT, L_QUOTA_NAME, L_QUOTA_TREE_ID
from koord.kube.refused import ok
from koord.manager.quota.live import LiveQuotas
from koord.manager.webhooks.quota.topology import ADMITTED_FOR_S
from koord.manager.webhooks.verdict import Allowed, Denied
from koord.manager.world import World
from tests.manager.manager_world import in_world
from tests.manager.webhooks.quota.quota_objects import quota, request


async def started(world: World) -> LiveQuotas:
    live = LiveQuotas(world)
    await live.start()
    await world.clock.sleep(1)
    return live


def stored(name: str, **more: Any) -> dict[str, Any]:
    return quota(name, namespace="default", **more)


def test_objects_come_and_go() -> None:
    async def main(world: World) -> None:
        ok(await world.client.create(ELASTIC_QUOTAS, stored("early")))
        live = await started(world)
        ok(await world.client.create(ELASTIC_QUOTAS, stored("late", is_parent=True, namespaces=["x"])))
        await world.clock.sleep(1)
        assert live.topology.quotas.keys() == {"early", "late"}
        assert live.topology.is_parent("late")
        assert live.topology.quota_of({}, "x") == "late"
        assert [one.metadata.namespace for one in live.objects_named("late")] == ["default"]
        ok(await world.client.delete(ELASTIC_QUOTAS, "early", "default"))
        await world.clock.sleep(1)
        assert live.topology.quotas.keys() == {"late"}
        assert live.to_json()["quotaHierarchyInfo"] == {"koordinator-root-quota": ["late"], "late": []}
        await live.stop()

    in_world(main)


def test_an_admitted_quota_is_known_before_the_watch_shows_it() -> None:
    async def main(world: World) -> None:
        live = await started(world)
        asked = request("CREATE", stored("a", is_parent=True))
        assert live.validate(asked) == Allowed()
        assert live.validate(asked) == Denied(400, "AddQuota quota already exist:a")
        assert live.validate(request("CREATE", stored("b", parent="a", min={}))) == Allowed()
        await world.clock.sleep(ADMITTED_FOR_S)  # neither was ever written
        assert live.validate(asked) == Allowed()
        await live.stop()

    in_world(main)


def test_a_dry_run_leaves_no_trace() -> None:
    async def main(world: World) -> None:
        live = await started(world)
        assert live.validate(request("CREATE", stored("a"), dry_run=True)) == Allowed()
        assert live.topology.get("a") is None
        await live.stop()

    in_world(main)


def test_pods_that_hold_a_quota() -> None:
    async def main(world: World) -> None:
        live = await started(world)
        ok(await world.client.create(ELASTIC_QUOTAS, stored("a")))
        pod = {
            "metadata": {"name": "p", "labels": {L_QUOTA_NAME: "a"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        ok(await world.client.create(PODS, pod, "default"))
        await world.clock.sleep(1)
        refused = Denied(400, "delete quota failed, quota a has 1 child pods: p")
        assert live.validate(request("DELETE", None, stored("a"))) == refused
        assert live.any_in("default")
        ok(await world.client.delete(PODS, "p", "default", grace_seconds=0))
        await world.clock.sleep(1)
        assert live.validate(request("DELETE", None, stored("a"))) == Allowed()
        await live.stop()

    in_world(main)


def test_the_pool_of_a_tree() -> None:
    async def main(world: World) -> None:
        live = await started(world)
        for name, zone in (("z", "last"), ("a", "first")):
            profile = {
                "metadata": {"name": name, "labels": {L_QUOTA_TREE_ID: "t"}},
                "spec": {"quotaName": name, "nodeSelector": {"matchLabels": {"zone": zone}}},
            }
            ok(await world.client.create(ELASTIC_QUOTA_PROFILES, profile, "default"))
        await world.clock.sleep(1)
        pool = live.pool_of_tree("t")
        assert pool is not None
        assert pool.match_labels == {"zone": "first"}
        assert live.pool_of_tree("unknown") is None
        await live.stop()

    in_world(main)


def test_weights_are_read_from_the_quotas_of_now() -> None:
    async def main(world: World) -> None:
        live = await started(world)
        weighed = stored("a", annotations={A_QUOTA_SHARED_WEIGHT: '{"cpu":"1500m","memory":"1Ki"}'})
        ok(await world.client.create(ELASTIC_QUOTAS, weighed))
        ok(await world.client.create(ELASTIC_QUOTAS, stored("plain")))
        await world.clock.sleep(1)
        (weights,) = live.readings()
        assert dict(weights.values) == {("a", "cpu"): 1500.0, ("a", "memory"): 1024.0}
        ok(await world.client.delete(ELASTIC_QUOTAS, "a", "default"))
        await world.clock.sleep(1)
        (weights,) = live.readings()
        assert not weights.values
        await live.stop()

    in_world(main)
