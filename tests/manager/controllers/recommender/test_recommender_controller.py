"""From reports of nodes to the status of Recommendations, on a live API server in virtual time."""

from __future__ import annotations

from typing import Any

from koord.api.koordinator.custom_kinds import NODE_METRICS, RECOMMENDATIONS
from koord.api.koordinator.profiles import Recommendation
from koord.api.kubernetes.builtin_kinds import PODS
from koord.kube.transport.api_error import unwrap
from koord.manager.controllers.recommender.controller import A_RECOMMENDATION_HISTORY, RecommenderController
from koord.manager.reconcile_loop import ManagerContext
from koord.telemetry.clock import now
from koord.values import resources as vector
from koord.values import timestamp
from tests.manager.manager_harness import run_with_context

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


async def report(context: ManagerContext, cpu: str = "1", memory: str = "1Gi", pods: tuple[str, ...] = ("p",)) -> None:
    if not isinstance(await context.client.get(NODE_METRICS, "n1"), NODE_METRICS.model):
        unwrap(await context.client.create(NODE_METRICS, {"metadata": {"name": "n1"}, "spec": {}}))
    used = {"resources": {"cpu": cpu, "memory": memory}}
    metrics = [{"namespace": "default", "name": name, "podUsage": used} for name in pods]
    status = {"status": {"updateTime": timestamp.text(now(context.clock)), "podsMetric": metrics}}
    unwrap(await context.client.patch(NODE_METRICS, "n1", status, kind="merge", subresource="status"))


async def started(context: ManagerContext) -> RecommenderController:
    controller = RecommenderController(context)
    await controller.start()
    await context.clock.sleep(1)
    return controller


async def seen(context: ManagerContext) -> Recommendation:
    return unwrap(await context.client.get(RECOMMENDATIONS, "web", "default"))


def figures(recommendation: Recommendation) -> dict[str, dict[str, str]]:
    pod_status = recommendation.status.pod_status
    assert pod_status is not None
    return {one.container_name: vector.to_wire(vector.parse(one.resources)) for one in pod_status.container_statuses}


def told(recommendation: Recommendation) -> dict[str, str]:
    return {one.type: one.status for one in recommendation.status.conditions}


async def live_for(context: ManagerContext, minutes: int, **use: Any) -> None:
    for _ in range(minutes):
        await report(context, **use)
        await context.clock.sleep(60)


def test_a_workload_is_measured_and_told() -> None:
    async def main(context: ManagerContext) -> None:
        unwrap(await context.client.create(PODS, pod("p")))
        unwrap(await context.client.create(RECOMMENDATIONS, WISH))
        controller = await started(context)
        assert told(await seen(context)) == {"NoObjectsMatched": "True"}
        await live_for(context, 3)
        made = await seen(context)
        assert figures(made) == {"c0": {"cpu": "1192m", "memory": "1204Mi"}}
        assert told(made) == {"LowConfidence": "True"}
        assert made.status.update_time is not None
        terms = controller.explain(("default", "web"))
        assert terms is not None
        assert (terms.samples, terms.history_s, terms.margin) == (3, 120.0, 0.15)
        await live_for(context, 1441)
        assert told(await seen(context)) == {"LowConfidence": "False"}
        await controller.stop()

    run_with_context(main)


def test_what_is_told_already_is_not_written_again() -> None:
    async def main(context: ManagerContext) -> None:
        unwrap(await context.client.create(PODS, pod("p")))
        unwrap(await context.client.create(RECOMMENDATIONS, WISH))
        controller = await started(context)
        await live_for(context, 15)
        before = await seen(context)
        await context.clock.sleep(660)  # what was learnt last is kept
        after = await seen(context)
        await context.clock.sleep(3600)  # no reports: nothing to learn, nothing to keep
        assert (await seen(context)).metadata.resource_version == after.metadata.resource_version
        assert after.status == before.status
        await controller.stop()

    run_with_context(main)


def test_a_restart_goes_on_where_it_was() -> None:
    def run(restart: bool) -> tuple[dict[str, dict[str, str]], str]:
        async def main(context: ManagerContext) -> tuple[dict[str, dict[str, str]], str]:
            unwrap(await context.client.create(PODS, pod("p")))
            unwrap(await context.client.create(RECOMMENDATIONS, WISH))
            controller = await started(context)
            await live_for(context, 10, cpu="4", memory="3Gi")
            await context.clock.sleep(660)  # so that all of it is kept
            if restart:
                await controller.stop()
                controller = RecommenderController(context)
                await controller.start()
            await context.clock.sleep(60)
            await live_for(context, 5, cpu="1")
            await context.clock.sleep(660)
            made = await seen(context)
            await controller.stop()
            return figures(made), made.metadata.annotations[A_RECOMMENDATION_HISTORY]

        return run_with_context(main)

    assert run(restart=True) == run(restart=False)


def test_a_report_is_counted_once() -> None:
    async def main(context: ManagerContext) -> None:
        unwrap(await context.client.create(PODS, pod("p")))
        unwrap(await context.client.create(RECOMMENDATIONS, WISH))
        controller = await started(context)
        await report(context)
        await context.clock.sleep(660)
        first = (await seen(context)).metadata.annotations[A_RECOMMENDATION_HISTORY]
        for _ in range(3):
            await controller.stop()
            await controller.start()
            await context.clock.sleep(660)
        assert (await seen(context)).metadata.annotations[A_RECOMMENDATION_HISTORY] == first
        await controller.stop()

    run_with_context(main)


def test_another_target_begins_anew() -> None:
    async def main(context: ManagerContext) -> None:
        unwrap(await context.client.create(PODS, pod("p")))
        unwrap(await context.client.create(RECOMMENDATIONS, WISH))
        controller = await started(context)
        await live_for(context, 12)
        change = {"spec": {"target": {"workload": {"name": "other"}}}}
        unwrap(await context.client.patch(RECOMMENDATIONS, "web", change, "default", kind="merge"))
        await context.clock.sleep(61)
        assert told(await seen(context)) == {"NoObjectsMatched": "True"}
        await controller.stop()

    run_with_context(main)


def test_a_spoilt_history_is_left_behind() -> None:
    async def main(context: ManagerContext) -> None:
        spoilt = {**WISH, "metadata": {**WISH["metadata"], "annotations": {A_RECOMMENDATION_HISTORY: "{"}}}
        unwrap(await context.client.create(PODS, pod("p")))
        unwrap(await context.client.create(RECOMMENDATIONS, spoilt))
        controller = await started(context)
        await live_for(context, 2)
        assert figures(await seen(context))["c0"]["cpu"] == "1192m"
        await controller.stop()

    run_with_context(main)


def test_use_is_divided_as_requests_are() -> None:
    async def main(context: ManagerContext) -> None:
        unwrap(await context.client.create(PODS, pod("p", "300m", "100m")))
        unwrap(await context.client.create(RECOMMENDATIONS, WISH))
        controller = await started(context)
        await live_for(context, 2)
        assert figures(await seen(context)) == {
            "c0": {"cpu": "894m", "memory": "602Mi"},
            "c1": {"cpu": "298m", "memory": "602Mi"},
        }
        await controller.stop()

    run_with_context(main)


def test_a_target_that_cannot_be_served_is_told() -> None:
    async def main(context: ManagerContext) -> None:
        target = {"type": "podSelector", "podSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}
        unwrap(await context.client.create(RECOMMENDATIONS, {**WISH, "spec": {"target": target}}))
        controller = await started(context)
        assert told(await seen(context)) == {"ConfigUnsupported": "True"}
        await controller.stop()

    run_with_context(main)
