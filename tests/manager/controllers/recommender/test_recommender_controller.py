"""From reports of nodes to the status of Recommendations, on a live API server in virtual time."""

from __future__ import annotations

from typing import Any

from koord.api.analysis import Recommendation
from koord.api.builtin import PODS
from koord.api.custom import NODE_METRICS, RECOMMENDATIONS
from koord.kube.refused import ok
from koord.manager.controllers.recommender.controller import A_HISTORY, RecommenderController
from koord.manager.world import World
from koord.telemetry.clock import now
from koord.values import instant
from koord.values import resources as vector
from tests.manager.manager_world import in_world

WISH: dict[str, Any] = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "target": {"type": "workload", "workload": {"kind": "ReplicaSet", "name": "web", "apiVersion": "apps/v1"}}
    },
}


def pod(name: str, *requests: str) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
    containers = [
        {"name": f"c{index}", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
        for index, cpu in enumerate(requests or ("100m",))
    ]
    return {
        "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]},
        "spec": {"nodeName": "n1", "containers": containers},
    }


async def report(world: World, cpu: str = "1", memory: str = "1Gi", pods: tuple[str, ...] = ("p",)) -> None:
    if not isinstance(await world.client.get(NODE_METRICS, "n1"), NODE_METRICS.model):
        ok(await world.client.create(NODE_METRICS, {"metadata": {"name": "n1"}, "spec": {}}))
    used = {"resources": {"cpu": cpu, "memory": memory}}
    metrics = [{"namespace": "default", "name": name, "podUsage": used} for name in pods]
    status = {"status": {"updateTime": instant.text(now(world.clock)), "podsMetric": metrics}}
    ok(await world.client.patch(NODE_METRICS, "n1", status, kind="merge", subresource="status"))


async def started(world: World) -> RecommenderController:
    controller = RecommenderController(world)
    await controller.start()
    await world.clock.sleep(1)
    return controller


async def seen(world: World) -> Recommendation:
    return ok(await world.client.get(RECOMMENDATIONS, "web", "default"))


def figures(recommendation: Recommendation) -> dict[str, dict[str, str]]:
    pod_status = recommendation.status.pod_status
    assert pod_status is not None
    return {one.container_name: vector.to_wire(vector.parse(one.resources)) for one in pod_status.container_statuses}


def told(recommendation: Recommendation) -> dict[str, str]:
    return {one.type: one.status for one in recommendation.status.conditions}


async def live_for(world: World, minutes: int, **use: Any) -> None:
    for _ in range(minutes):
        await report(world, **use)
        await world.clock.sleep(60)


def test_a_workload_is_measured_and_told() -> None:
    async def main(world: World) -> None:
        ok(await world.client.create(PODS, pod("p")))
        ok(await world.client.create(RECOMMENDATIONS, WISH))
        controller = await started(world)
        assert told(await seen(world)) == {"NoObjectsMatched": "True"}
        await live_for(world, 3)
        made = await seen(world)
        assert figures(made) == {"c0": {"cpu": "1192m", "memory": "1204Mi"}}
        assert told(made) == {"LowConfidence": "True"}
        assert made.status.update_time is not None
        terms = controller.explain(("default", "web"))
        assert terms is not None
        assert (terms.samples, terms.history_s, terms.margin) == (3, 120.0, 0.15)
        await live_for(world, 1441)
        assert told(await seen(world)) == {"LowConfidence": "False"}
        await controller.stop()

    in_world(main)


def test_what_is_told_already_is_not_written_again() -> None:
    async def main(world: World) -> None:
        ok(await world.client.create(PODS, pod("p")))
        ok(await world.client.create(RECOMMENDATIONS, WISH))
        controller = await started(world)
        await live_for(world, 15)
        before = await seen(world)
        await world.clock.sleep(660)  # what was learnt last is kept
        after = await seen(world)
        await world.clock.sleep(3600)  # no reports: nothing to learn, nothing to keep
        assert (await seen(world)).metadata.resource_version == after.metadata.resource_version
        assert after.status == before.status
        await controller.stop()

    in_world(main)


def test_a_restart_goes_on_where_it_was() -> None:
    def run(restart: bool) -> tuple[dict[str, dict[str, str]], str]:
        async def main(world: World) -> tuple[dict[str, dict[str, str]], str]:
            ok(await world.client.create(PODS, pod("p")))
            ok(await world.client.create(RECOMMENDATIONS, WISH))
            controller = await started(world)
            await live_for(world, 10, cpu="4", memory="3Gi")
            await world.clock.sleep(660)  # so that all of it is kept
            if restart:
                await controller.stop()
                controller = RecommenderController(world)
                await controller.start()
            await world.clock.sleep(60)
            await live_for(world, 5, cpu="1")
            await world.clock.sleep(660)
            made = await seen(world)
            await controller.stop()
            return figures(made), made.metadata.annotations[A_HISTORY]

        return in_world(main)

    assert run(restart=True) == run(restart=False)


def test_a_report_is_counted_once() -> None:
    async def main(world: World) -> None:
        ok(await world.client.create(PODS, pod("p")))
        ok(await world.client.create(RECOMMENDATIONS, WISH))
        controller = await started(world)
        await report(world)
        await world.clock.sleep(660)
        first = (await seen(world)).metadata.annotations[A_HISTORY]
        for _ in range(3):
            await controller.stop()
            await controller.start()
            await world.clock.sleep(660)
        assert (await seen(world)).metadata.annotations[A_HISTORY] == first
        await controller.stop()

    in_world(main)


def test_another_target_begins_anew() -> None:
    async def main(world: World) -> None:
        ok(await world.client.create(PODS, pod("p")))
        ok(await world.client.create(RECOMMENDATIONS, WISH))
        controller = await started(world)
        await live_for(world, 12)
        change = {"spec": {"target": {"workload": {"name": "other"}}}}
        ok(await world.client.patch(RECOMMENDATIONS, "web", change, "default", kind="merge"))
        await world.clock.sleep(61)
        assert told(await seen(world)) == {"NoObjectsMatched": "True"}
        await controller.stop()

    in_world(main)


def test_a_spoilt_history_is_left_behind() -> None:
    async def main(world: World) -> None:
        spoilt = {**WISH, "metadata": {**WISH["metadata"], "annotations": {A_HISTORY: "{"}}}
        ok(await world.client.create(PODS, pod("p")))
        ok(await world.client.create(RECOMMENDATIONS, spoilt))
        controller = await started(world)
        await live_for(world, 2)
        assert figures(await seen(world))["c0"]["cpu"] == "1192m"
        await controller.stop()

    in_world(main)


def test_use_is_divided_as_requests_are() -> None:
    async def main(world: World) -> None:
        ok(await world.client.create(PODS, pod("p", "300m", "100m")))
        ok(await world.client.create(RECOMMENDATIONS, WISH))
        controller = await started(world)
        await live_for(world, 2)
        assert figures(await seen(world)) == {
            "c0": {"cpu": "894m", "memory": "602Mi"},
            "c1": {"cpu": "298m", "memory": "602Mi"},
        }
        await controller.stop()

    in_world(main)


def test_a_target_that_cannot_be_served_is_told() -> None:
    async def main(world: World) -> None:
        target = {"type": "podSelector", "podSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}
        ok(await world.client.create(RECOMMENDATIONS, {**WISH, "spec": {"target": target}}))
        controller = await started(world)
        assert told(await seen(world)) == {"ConfigUnsupported": "True"}
        await controller.stop()

    in_world(main)
