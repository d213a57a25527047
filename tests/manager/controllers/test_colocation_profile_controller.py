"""Profiles over waiting pods on a live API server, in virtual time."""

from __future__ import annotations

from typing import Any

from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES
from koord.api.koordinator.protocol import L_CONTROLLER_MANAGED, L_QOS_CLASS
from koord.api.kubernetes.builtin_kinds import PODS
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse
from koord.manager.controllers.colocation_profile import ColocationProfileController, ProfileControllerOptions
from koord.manager.reconcile_loop import ManagerContext
from tests.manager.manager_harness import FaultyTransport, run_with_context, run_with_faulty_transport


def profile(managed: bool = True, **spec: Any) -> dict[str, Any]:
    labels = {L_CONTROLLER_MANAGED: "true"} if managed else {}
    return {
        "metadata": {"name": "batch", "labels": labels},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "labels": {"tier": "batch"}, **spec},
    }


def pod(name: str, node: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}], **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name, "namespace": "default", "labels": {"app": "x"}}, "spec": spec}


async def started(
    context: ManagerContext,
    options: ProfileControllerOptions = ProfileControllerOptions(),  # noqa: B008 - a frozen value
) -> ColocationProfileController:
    controller = ColocationProfileController(context, options)
    await controller.start()
    await context.clock.sleep(1)
    return controller


async def tiers(context: ManagerContext) -> dict[str, str | None]:
    pods = unwrap(await context.client.list(PODS, "default")).items
    return {one.metadata.name: one.metadata.labels.get("tier") for one in pods}


def test_waiting_pods_follow_and_placed_ones_do_not() -> None:
    async def main(context: ManagerContext) -> None:
        for obj in (pod("waiting"), pod("placed", "n")):
            unwrap(await context.client.create(PODS, obj))
        controller = await started(context)
        unwrap(await context.client.create(CLUSTER_COLOCATION_PROFILES, profile(qosClass="BE")))
        await context.clock.sleep(1)
        assert await tiers(context) == {"waiting": "batch", "placed": None}
        waiting = unwrap(await context.client.get(PODS, "waiting", "default"))
        assert waiting.metadata.labels[L_QOS_CLASS] == "BE"
        unwrap(await context.client.create(PODS, pod("late")))
        await context.clock.sleep(31)
        assert (await tiers(context))["late"] == "batch"
        change = {"spec": {"labels": {"tier": "free"}}}
        unwrap(await context.client.patch(CLUSTER_COLOCATION_PROFILES, "batch", change, kind="merge"))
        await context.clock.sleep(1)
        assert await tiers(context) == {"waiting": "free", "late": "free", "placed": None}
        await controller.stop()

    run_with_context(main)


def test_what_is_right_is_not_written_again() -> None:
    async def main(context: ManagerContext) -> None:
        unwrap(await context.client.create(PODS, pod("waiting")))
        unwrap(
            await context.client.create(CLUSTER_COLOCATION_PROFILES, profile(labelSuffixes={"app": "-s"}, selector={}))
        )
        controller = await started(context)
        before = unwrap(await context.client.get(PODS, "waiting", "default")).metadata
        assert before.labels["app"] == "x-s"
        await context.clock.sleep(3600)  # past every memory of the pod
        after = unwrap(await context.client.get(PODS, "waiting", "default")).metadata
        assert after.resource_version == before.resource_version
        await controller.stop()

    run_with_context(main)


def test_only_profiles_that_ask_for_it() -> None:
    async def main(context: ManagerContext) -> None:
        unwrap(await context.client.create(PODS, pod("waiting")))
        unwrap(await context.client.create(CLUSTER_COLOCATION_PROFILES, profile(managed=False)))
        controller = await started(context)
        await context.clock.sleep(60)
        assert await tiers(context) == {"waiting": None}
        await controller.stop()
        by_default = await started(context, ProfileControllerOptions(all_profiles=True))
        assert await tiers(context) == {"waiting": "batch"}
        await by_default.stop()

    run_with_context(main)


def test_a_crowd_is_taken_in_turns() -> None:
    async def main(context: ManagerContext) -> None:
        for number in range(7):
            unwrap(await context.client.create(PODS, pod(f"p{number}")))
        unwrap(await context.client.create(CLUSTER_COLOCATION_PROFILES, profile()))
        controller = await started(context, ProfileControllerOptions(pods_per_second=0.1, burst=3))
        assert sum(tier == "batch" for tier in (await tiers(context)).values()) == 3
        await context.clock.sleep(31)
        assert sum(tier == "batch" for tier in (await tiers(context)).values()) == 6
        await context.clock.sleep(31)
        assert sum(tier == "batch" for tier in (await tiers(context)).values()) == 7
        await controller.stop()

    run_with_context(main)


def test_a_refused_pod_does_not_keep_others_waiting() -> None:
    async def main(context: ManagerContext) -> None:
        for name in ("a", "b"):
            unwrap(await context.client.create(PODS, pod(name)))
        # Containers of an existing pod cannot be renamed: the server refuses, and says so for each pod.
        wrong = profile(patch={"spec": {"containers": [{"name": "new", "image": "i"}]}})
        unwrap(await context.client.create(CLUSTER_COLOCATION_PROFILES, wrong))
        controller = await started(context)
        right = {
            **profile(labels={"other": "yes"}),
            "metadata": {"name": "right", "labels": {L_CONTROLLER_MANAGED: "true"}},
        }
        unwrap(await context.client.create(CLUSTER_COLOCATION_PROFILES, right))
        await context.clock.sleep(1)
        pods = unwrap(await context.client.list(PODS, "default")).items
        assert [one.metadata.labels.get("other") for one in pods] == ["yes", "yes"]
        await controller.stop()

    run_with_context(main)


def test_a_pod_that_is_placed_meanwhile_is_left_alone() -> None:
    async def main(context: ManagerContext, transport: FaultyTransport) -> None:
        unwrap(await context.client.create(PODS, pod("p")))
        unwrap(await context.client.create(CLUSTER_COLOCATION_PROFILES, profile()))
        placed: list[str] = []

        async def overtake(request: ApiRequest) -> ApiResponse | None:
            if request.method == "PATCH" and not placed:
                placed.append(request.path)
                uid = unwrap(await context.client.get(PODS, "p", "default")).metadata.uid
                assert await context.client.bind("default", "p", "n", uid=uid) is None
            return None

        transport.disturb = overtake
        controller = await started(context)
        await context.clock.sleep(60)
        assert placed
        assert await tiers(context) == {"p": None}
        await controller.stop()

    run_with_faulty_transport(main)


def test_a_pod_that_changes_meanwhile_is_read_again() -> None:
    async def main(context: ManagerContext, transport: FaultyTransport) -> None:
        unwrap(await context.client.create(PODS, pod("p")))
        unwrap(await context.client.create(CLUSTER_COLOCATION_PROFILES, profile()))
        changed: list[str] = []

        async def overtake(request: ApiRequest) -> ApiResponse | None:
            if request.method == "PATCH" and not changed:
                changed.append(request.path)
                unwrap(
                    await context.client.patch(PODS, "p", {"metadata": {"labels": {"o": "k"}}}, "default", kind="merge")
                )
            return None

        transport.disturb = overtake
        controller = await started(context)
        labels = unwrap(await context.client.get(PODS, "p", "default")).metadata.labels
        assert labels == {"app": "x", "o": "k", "tier": "batch"}
        await controller.stop()

    run_with_faulty_transport(main)
