"""The profile controller on a live API server, in virtual time."""

from __future__ import annotations

import json
from typing import Any

from koord.api.koordinator.custom_kinds import ELASTIC_QUOTA_PROFILES, ELASTIC_QUOTAS
from koord.api.koordinator.protocol import (
    A_QUOTA_TOTAL_RESOURCE,
    A_QUOTA_UNSCHEDULABLE_RESOURCE,
    L_QUOTA_IS_ROOT,
    L_QUOTA_TREE_ID,
)
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, NODES
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable
from koord.manager.controllers.quota_profile import QuotaProfileController, default_tree_id
from koord.manager.reconcile_loop import ManagerContext
from tests.manager.manager_harness import FaultyTransport, run_with_context, run_with_faulty_transport

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


async def running(context: ManagerContext, *objects: dict[str, Any]) -> QuotaProfileController:
    for obj in objects:
        unwrap(await context.client.create(NODES, obj))
    controller = QuotaProfileController(context)
    await controller.start()
    await context.clock.sleep(1)
    return controller


async def root(context: ManagerContext) -> ElasticQuota:
    return unwrap(await context.client.get(ELASTIC_QUOTAS, "root", "default"))


def test_a_pool_gets_its_quota_and_the_quota_follows_the_pool() -> None:
    async def main(context: ManagerContext) -> None:
        controller = await running(context, node("n1", "10"), node("n2", "5"), node("n3", "7", pool="b"))
        unwrap(await context.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await context.clock.sleep(1)
        made = await root(context)
        assert made.spec.min == {"cpu": "15", "memory": "2k"}
        assert made.metadata.labels[L_QUOTA_TREE_ID] == default_tree_id("default", "pool")
        assert made.metadata.labels[L_QUOTA_IS_ROOT] == "true"
        profile = unwrap(await context.client.get(ELASTIC_QUOTA_PROFILES, "pool", "default"))
        assert profile.metadata.labels[L_QUOTA_TREE_ID] == default_tree_id("default", "pool")

        unwrap(await context.client.create(NODES, node("n4", "1")))
        unwrap(await context.client.patch(NODES, "n1", {"spec": {"unschedulable": True}}, kind="merge"))
        await context.clock.sleep(5)
        assert (await root(context)).spec.min["cpu"] == "15"  # rounds are ten seconds apart
        await context.clock.sleep(6)
        made = await root(context)
        assert made.spec.min["cpu"] == "16"
        assert json.loads(made.metadata.annotations[A_QUOTA_TOTAL_RESOURCE])["cpu"] == "16"
        assert json.loads(made.metadata.annotations[A_QUOTA_UNSCHEDULABLE_RESOURCE])["cpu"] == "10"
        await controller.stop()

    run_with_context(main)


def test_what_is_right_is_not_written_again() -> None:
    async def main(context: ManagerContext) -> None:
        controller = await running(context, node("n1", "10"))
        unwrap(await context.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await context.clock.sleep(15)
        before = await root(context)
        await context.clock.sleep(100)
        assert (await root(context)).metadata.resource_version == before.metadata.resource_version
        await controller.stop()

        for again in (QuotaProfileController(context), controller):  # a new leader, then the first one again
            await again.start()
            await context.clock.sleep(30)
            assert (await root(context)).metadata.resource_version == before.metadata.resource_version
            await again.stop()

    run_with_context(main)


def test_nodes_that_left_while_it_did_not_lead_are_gone() -> None:
    async def main(context: ManagerContext) -> None:
        controller = await running(context, node("n1", "10"), node("n2", "5"))
        unwrap(await context.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await context.clock.sleep(1)
        await controller.stop()
        unwrap(await context.client.delete(NODES, "n2"))
        await context.clock.sleep(1)
        await controller.start()
        await context.clock.sleep(1)
        assert (await root(context)).spec.min["cpu"] == "10"
        await controller.stop()

    run_with_context(main)


def test_a_quota_that_somebody_changed_or_deleted_is_restored() -> None:
    async def main(context: ManagerContext) -> None:
        controller = await running(context, node("n1", "10"))
        unwrap(await context.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await context.clock.sleep(1)
        patch = {"spec": {"min": {"cpu": "1", "gpu": "3"}}, "metadata": {"labels": {"mine": "kept"}}}
        unwrap(await context.client.patch(ELASTIC_QUOTAS, "root", patch, "default", kind="merge"))
        await context.clock.sleep(11)
        made = await root(context)
        assert made.spec.min == {"cpu": "10", "memory": "1k"}
        assert made.metadata.labels["mine"] == "kept"
        unwrap(await context.client.delete(ELASTIC_QUOTAS, "root", "default"))
        await context.clock.sleep(11)
        assert (await root(context)).spec.min == {"cpu": "10", "memory": "1k"}
        await controller.stop()

    run_with_context(main)


def test_a_selector_that_cannot_be_read_makes_no_quota() -> None:
    async def main(context: ManagerContext) -> None:
        controller = await running(context, node("n1", "10"))
        wrong = {"matchExpressions": [{"key": "pool", "operator": "Near", "values": ["a"]}]}
        unwrap(
            await context.client.create(
                ELASTIC_QUOTA_PROFILES, {**PROFILE, "spec": {**PROFILE["spec"], "nodeSelector": wrong}}
            )
        )
        await context.clock.sleep(30)
        assert not unwrap(await context.client.list(ELASTIC_QUOTAS)).items
        await controller.stop()

    run_with_context(main)


def test_a_refused_quota_is_told_and_tried_again() -> None:
    async def main(context: ManagerContext) -> None:
        controller = await running(context, node("n1", "10"))
        named = {**PROFILE, "spec": {**PROFILE["spec"], "quotaName": "Not A Name"}}
        unwrap(await context.client.create(ELASTIC_QUOTA_PROFILES, named))
        await context.clock.sleep(10)
        events = unwrap(await context.client.list(EVENTS_EVENTS, "default")).items
        assert {event.reason for event in events} == {"CreateQuotaFailed"}
        fixed = {"spec": {"quotaName": "root"}}
        unwrap(await context.client.patch(ELASTIC_QUOTA_PROFILES, "pool", fixed, "default", kind="merge"))
        await context.clock.sleep(3)
        assert (await root(context)).spec.min["cpu"] == "10"
        await controller.stop()

    run_with_context(main)


def test_a_profile_that_goes_takes_nothing_with_it() -> None:
    async def main(context: ManagerContext) -> None:
        controller = await running(context, node("n1", "10"))
        unwrap(await context.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        await context.clock.sleep(1)
        unwrap(await context.client.delete(ELASTIC_QUOTA_PROFILES, "pool", "default"))
        await context.clock.sleep(30)
        assert (await root(context)).spec.min["cpu"] == "10"
        await controller.stop()

    run_with_context(main)


def test_an_outage_delays_and_loses_nothing() -> None:
    async def main(context: ManagerContext, transport: FaultyTransport) -> None:
        lost: list[str] = []

        async def away(request: ApiRequest) -> ApiResponse | None:
            if request.method in ("POST", "PATCH"):
                lost.append(request.method)
                raise Unreachable("nobody there", sent=False)
            return None

        controller = await running(context, node("n1", "10"))
        unwrap(await context.client.create(ELASTIC_QUOTA_PROFILES, PROFILE))
        transport.disturb = away
        await context.clock.sleep(60)
        assert lost
        transport.disturb = None
        await context.clock.sleep(60)
        assert (await root(context)).spec.min["cpu"] == "10"
        await controller.stop()

    run_with_faulty_transport(main)
