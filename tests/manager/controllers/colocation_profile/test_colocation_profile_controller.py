"""Profiles over waiting pods on a live API server, in virtual time."""

from __future__ import annotations

from typing import Any

from koord.api.builtin import PODS
from koord.api.custom import CLUSTER_COLOCATION_PROFILES
from koord.api.protocol import L_CONTROLLER_MANAGED, L_QOS_CLASS
from koord.kube.refused import ok
from koord.kube.transport import Answer, Request
from koord.manager.controllers.colocation_profile.controller import ColocationProfileController, Pace
from koord.manager.world import World
from tests.manager.manager_world import Line, in_world, on_line


def profile(managed: bool = True, **spec: Any) -> dict[str, Any]:
    labels = {L_CONTROLLER_MANAGED: "true"} if managed else {}
    return {
        "metadata": {"name": "batch", "labels": labels},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "labels": {"tier": "batch"}, **spec},
    }


def pod(name: str, node: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}], **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name, "namespace": "default", "labels": {"app": "x"}}, "spec": spec}


async def started(world: World, pace: Pace = Pace()) -> ColocationProfileController:  # noqa: B008 - a frozen value
    controller = ColocationProfileController(world, pace)
    await controller.start()
    await world.clock.sleep(1)
    return controller


async def tiers(world: World) -> dict[str, str | None]:
    pods = ok(await world.client.list(PODS, "default")).items
    return {one.metadata.name: one.metadata.labels.get("tier") for one in pods}


def test_waiting_pods_follow_and_placed_ones_do_not() -> None:
    async def main(world: World) -> None:
        for obj in (pod("waiting"), pod("placed", "n")):
            ok(await world.client.create(PODS, obj))
        controller = await started(world)
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, profile(qosClass="BE")))
        await world.clock.sleep(1)
        assert await tiers(world) == {"waiting": "batch", "placed": None}
        waiting = ok(await world.client.get(PODS, "waiting", "default"))
        assert waiting.metadata.labels[L_QOS_CLASS] == "BE"
        ok(await world.client.create(PODS, pod("late")))
        await world.clock.sleep(31)
        assert (await tiers(world))["late"] == "batch"
        change = {"spec": {"labels": {"tier": "free"}}}
        ok(await world.client.patch(CLUSTER_COLOCATION_PROFILES, "batch", change, kind="merge"))
        await world.clock.sleep(1)
        assert await tiers(world) == {"waiting": "free", "late": "free", "placed": None}
        await controller.stop()

    in_world(main)


def test_what_is_right_is_not_written_again() -> None:
    async def main(world: World) -> None:
        ok(await world.client.create(PODS, pod("waiting")))
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, profile(labelSuffixes={"app": "-s"}, selector={})))
        controller = await started(world)
        before = ok(await world.client.get(PODS, "waiting", "default")).metadata
        assert before.labels["app"] == "x-s"
        await world.clock.sleep(3600)  # past every memory of the pod
        after = ok(await world.client.get(PODS, "waiting", "default")).metadata
        assert after.resource_version == before.resource_version
        await controller.stop()

    in_world(main)


def test_only_profiles_that_ask_for_it() -> None:
    async def main(world: World) -> None:
        ok(await world.client.create(PODS, pod("waiting")))
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, profile(managed=False)))
        controller = await started(world)
        await world.clock.sleep(60)
        assert await tiers(world) == {"waiting": None}
        await controller.stop()
        by_default = await started(world, Pace(by_default=True))
        assert await tiers(world) == {"waiting": "batch"}
        await by_default.stop()

    in_world(main)


def test_a_crowd_is_taken_in_turns() -> None:
    async def main(world: World) -> None:
        for number in range(7):
            ok(await world.client.create(PODS, pod(f"p{number}")))
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, profile()))
        controller = await started(world, Pace(rate=0.1, burst=3))
        assert sum(tier == "batch" for tier in (await tiers(world)).values()) == 3
        await world.clock.sleep(31)
        assert sum(tier == "batch" for tier in (await tiers(world)).values()) == 6
        await world.clock.sleep(31)
        assert sum(tier == "batch" for tier in (await tiers(world)).values()) == 7
        await controller.stop()

    in_world(main)


def test_a_refused_pod_does_not_keep_others_waiting() -> None:
    async def main(world: World) -> None:
        for name in ("a", "b"):
            ok(await world.client.create(PODS, pod(name)))
        # Containers of an existing pod cannot be renamed: the server refuses, and says so for each pod.
        wrong = profile(patch={"spec": {"containers": [{"name": "new", "image": "i"}]}})
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, wrong))
        controller = await started(world)
        right = {
            **profile(labels={"other": "yes"}),
            "metadata": {"name": "right", "labels": {L_CONTROLLER_MANAGED: "true"}},
        }
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, right))
        await world.clock.sleep(1)
        pods = ok(await world.client.list(PODS, "default")).items
        assert [one.metadata.labels.get("other") for one in pods] == ["yes", "yes"]
        await controller.stop()

    in_world(main)


def test_a_pod_that_is_placed_meanwhile_is_left_alone() -> None:
    async def main(world: World, line: Line) -> None:
        ok(await world.client.create(PODS, pod("p")))
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, profile()))
        placed: list[str] = []

        async def overtake(request: Request) -> Answer | None:
            if request.method == "PATCH" and not placed:
                placed.append(request.path)
                uid = ok(await world.client.get(PODS, "p", "default")).metadata.uid
                assert await world.client.bind("default", "p", "n", uid=uid) is None
            return None

        line.disturb = overtake
        controller = await started(world)
        await world.clock.sleep(60)
        assert placed
        assert await tiers(world) == {"p": None}
        await controller.stop()

    on_line(main)


def test_a_pod_that_changes_meanwhile_is_read_again() -> None:
    async def main(world: World, line: Line) -> None:
        ok(await world.client.create(PODS, pod("p")))
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, profile()))
        changed: list[str] = []

        async def overtake(request: Request) -> Answer | None:
            if request.method == "PATCH" and not changed:
                changed.append(request.path)
                ok(await world.client.patch(PODS, "p", {"metadata": {"labels": {"o": "k"}}}, "default", kind="merge"))
            return None

        line.disturb = overtake
        controller = await started(world)
        labels = ok(await world.client.get(PODS, "p", "default")).metadata.labels
        assert labels == {"app": "x", "o": "k", "tier": "batch"}
        await controller.stop()

    on_line(main)
