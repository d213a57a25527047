"""The profile controller on a live API server, in virtual time."""

from __future__ import annotations

import json
from typing import Any

from koord.api.builtin import EVENTS_EVENTS, NODES
from koord.api.custom import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.protocol import (
    A_QUOTA_TOTAL_RESOURCE,
    A_QUOTA_UNSCHEDULABLE_RESOURCE,
    L_QUOTA_IS_ROOT,
    L_QUOTA_TREE_ID,
)
from koord.api.sigs_scheduling import ElasticQuota
from koord.kube.refused import ok
from koord.kube.transport import Answer, Request, Unreachable
from koord.manager.controllers.quota_profile.controller import QuotaProfileController
from koord.manager.controllers.quota_profile.pool import tree_id_of
from koord.manager.world import World
from tests.manager.manager_world import Line, in_world, on_line

PROFILE: dict[str, Any] = {
    "metadata": {"name": "pool", "namespace": "default"},
    "spec": {"quotaName": "root", "nodeSelector": {"matchLabels": {"pool": "a"}}},
}


def node(name: str, cpu: str, pool: str = "a") -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "1000", "pods": "10"}
    return {
        "metadata": {"name": name, "labels": {"pool": pool}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


async def running(world: World, *objects: dict[str, Any]) -> QuotaProfileController:
    for obj in objects:
        ok(await world.client.create(NODES, obj))
    controller = QuotaProfileController(world)
    await controller.start()
    await world.clock.sleep(1)
    return controller


async def root(world: World) -> ElasticQuota:
    return ok(await world.client.get(ELASTIC_QUOTAS, "root", "default"))


def test_a_pool_gets_its_quota_and_the_quota_follows_the_pool() -> None:
    async def main(world: World) -> None:
        controller = await running(world, node("n1", "10"), node("n2", "5"), node("n3", "7", pool="b"))
        ok(await world.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await world.clock.sleep(1)
        made = await root(world)
        assert made.spec.min == {"cpu": "15", "memory": "2k"}
        assert made.metadata.labels[L_QUOTA_TREE_ID] == tree_id_of("default", "pool")
        assert made.metadata.labels[L_QUOTA_IS_ROOT] == "true"
        profile = ok(await world.client.get(ELASTIC_QUOTA_PROFILES, "pool", "default"))
        assert profile.metadata.labels[L_QUOTA_TREE_ID] == tree_id_of("default", "pool")

        ok(await world.client.create(NODES, node("n4", "1")))
        ok(await world.client.patch(NODES, "n1", {"spec": {"unschedulable": True}}, kind="merge"))
        await world.clock.sleep(5)
        assert (await root(world)).spec.min["cpu"] == "15"  # rounds are ten seconds apart
        await world.clock.sleep(6)
        made = await root(world)
        assert made.spec.min["cpu"] == "16"
        assert json.loads(made.metadata.annotations[A_QUOTA_TOTAL_RESOURCE])["cpu"] == "16"
        assert json.loads(made.metadata.annotations[A_QUOTA_UNSCHEDULABLE_RESOURCE])["cpu"] == "10"
        await controller.stop()

    in_world(main)


def test_what_is_right_is_not_written_again() -> None:
    async def main(world: World) -> None:
        controller = await running(world, node("n1", "10"))
        ok(await world.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await world.clock.sleep(15)
        before = await root(world)
        await world.clock.sleep(100)
        assert (await root(world)).metadata.resource_version == before.metadata.resource_version
        await controller.stop()

        for again in (QuotaProfileController(world), controller):  # a new leader, then the first one again
            await again.start()
            await world.clock.sleep(30)
            assert (await root(world)).metadata.resource_version == before.metadata.resource_version
            await again.stop()

    in_world(main)


def test_nodes_that_left_while_it_did_not_lead_are_gone() -> None:
    async def main(world: World) -> None:
        controller = await running(world, node("n1", "10"), node("n2", "5"))
        ok(await world.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await world.clock.sleep(1)
        await controller.stop()
        ok(await world.client.delete(NODES, "n2"))
        await world.clock.sleep(1)
        await controller.start()
        await world.clock.sleep(1)
        assert (await root(world)).spec.min["cpu"] == "10"
        await controller.stop()

    in_world(main)


def test_a_quota_that_somebody_changed_or_deleted_is_restored() -> None:
    async def main(world: World) -> None:
        controller = await running(world, node("n1", "10"))
        ok(await world.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await world.clock.sleep(1)
        patch = {"spec": {"min": {"cpu": "1", "gpu": "3"}}, "metadata": {"labels": {"mine": "kept"}}}
        ok(await world.client.patch(ELASTIC_QUOTAS, "root", patch, "default", kind="merge"))
        await world.clock.sleep(11)
        made = await root(world)
        assert made.spec.min == {"cpu": "10", "memory": "1k"}
        assert made.metadata.labels["mine"] == "kept"
        ok(await world.client.delete(ELASTIC_QUOTAS, "root", "default"))
        await world.clock.sleep(11)
        assert (await root(world)).spec.min == {"cpu": "10", "memory": "1k"}
        await controller.stop()

    in_world(main)


def test_a_selector_that_cannot_be_read_makes_no_quota() -> None:
    async def main(world: World) -> None:
        controller = await running(world, node("n1", "10"))
        wrong = {"matchExpressions": [{"key": "pool", "operator": "Near", "values": ["a"]}]}
        ok(
            await world.client.create(
                ELASTIC_QUOTA_PROFILES, {**PROFILE, "spec": {**PROFILE["spec"], "nodeSelector": wrong}}
            )
        )
        await world.clock.sleep(30)
        assert not ok(await world.client.list(ELASTIC_QUOTAS)).items
        await controller.stop()

    in_world(main)


def test_a_refused_quota_is_told_and_tried_again() -> None:
    async def main(world: World) -> None:
        controller = await running(world, node("n1", "10"))
        named = {**PROFILE, "spec": {**PROFILE["spec"], "quotaName": "Not A Name"}}
        ok(await world.client.create(ELASTIC_QUOTA_PROFILES, named))
        await world.clock.sleep(10)
        events = ok(await world.client.list(EVENTS_EVENTS, "default")).items
        assert {event.reason for event in events} == {"CreateQuotaFailed"}
        fixed = {"spec": {"quotaName": "root"}}
        ok(await world.client.patch(ELASTIC_QUOTA_PROFILES, "pool", fixed, "default", kind="merge"))
        await world.clock.sleep(3)
        assert (await root(world)).spec.min["cpu"] == "10"
        await controller.stop()

    in_world(main)


def test_a_profile_that_goes_takes_nothing_with_it() -> None:
    async def main(world: World) -> None:
        controller = await running(world, node("n1", "10"))
        ok(await world.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await world.clock.sleep(1)
        ok(await world.client.delete(ELASTIC_QUOTA_PROFILES, "pool", "default"))
        await world.clock.sleep(30)
        assert (await root(world)).spec.min["cpu"] == "10"
        await controller.stop()

    in_world(main)


def test_an_outage_delays_and_loses_nothing() -> None:
    async def main(world: World, line: Line) -> None:
        lost: list[str] = []

        async def away(request: Request) -> Answer | None:
            if request.method in ("POST", "PATCH"):
                lost.append(request.method)
                raise Unreachable("nobody there", sent=False)
            return None

        controller = await running(world, node("n1", "10"))
        ok(await world.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        line.disturb = away
        await world.clock.sleep(60)
        assert lost
        line.disturb = None
        await world.clock.sleep(60)
        assert (await root(world)).spec.min["cpu"] == "10"
        await controller.stop()

    on_line(main)
