"""Whether API servers can call: asked through what the configurations say, told by number and event."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest

from koord.api.builtin import EVENTS_EVENTS, MUTATING_WEBHOOK_CONFIGURATIONS
from koord.kube.refused import ok
from koord.manager.serving import review
from koord.manager.serving.reach import Reach, synthetic_review
from koord.manager.serving.registration import TEMPLATE
from koord.manager.serving.review import Review
from koord.manager.serving.upkeep import MUTATING_NAME
from koord.manager.world import World
from tests.manager.serving.replicas import PATH, Replica, cluster_world, configuration


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with cluster_world() as world, world.recorder:
        yield world


@pytest.fixture
async def replica(world: World) -> AsyncIterator[Replica]:
    replica = Replica(world, "r1")
    await replica.start()
    yield replica
    await replica.stop()


def reach_of(world: World, replica: Replica, *, tells: bool = True) -> Reach:
    place = f"127.0.0.1:{replica.server.port}"
    return Reach(world, replica.metrics, tells=lambda: tells, resolve=lambda _namespace, _service: place)


async def told(world: World) -> list[str]:
    await world.recorder.stop()
    world.recorder.start()
    return sorted(event.reason for event in ok(await world.client.list(EVENTS_EVENTS)).items)


async def spoil_trust(world: World) -> None:
    config = await configuration(world.client)
    entry = {**config["webhooks"][0]}
    wrong = base64.b64encode(b"no certificate").decode()
    entry["clientConfig"] = {**entry["clientConfig"], "caBundle": wrong}
    patch = {"webhooks": [entry], "metadata": {"annotations": {TEMPLATE: "[]"}}}
    ok(await world.client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, MUTATING_NAME, patch, kind="merge"))


async def test_a_good_path_is_one(world: World, replica: Replica) -> None:
    assert await reach_of(world, replica).look() == {PATH: ""}
    assert replica.metrics.reachable.labels(PATH).value == 1
    assert await told(world) == []


async def test_a_spoilt_bundle_is_seen_and_its_repair_too(world: World, replica: Replica) -> None:
    reach = reach_of(world, replica)
    await replica.upkeep.stop()  # it would repair the bundle at once
    await spoil_trust(world)
    assert (await reach.look())[PATH]
    assert replica.metrics.reachable.labels(PATH).value == 0
    assert await told(world) == ["WebhookUnreachable"]
    await replica.look()
    assert await reach.look() == {PATH: ""}
    assert await told(world) == ["WebhookReachable", "WebhookUnreachable"]


async def test_a_closed_port_is_seen_and_only_the_leader_tells(world: World, replica: Replica) -> None:
    reach = reach_of(world, replica, tells=False)
    await replica.server.stop()
    assert "refused" in (await reach.look())[PATH]
    assert replica.metrics.reachable.labels(PATH).value == 0
    assert await told(world) == []


def test_the_question_is_a_review_about_nothing_of_ours() -> None:
    asked = review.read(synthetic_review())
    assert isinstance(asked, Review)
    assert asked.request.dry_run is True
    assert asked.request.resource.resource == "selfchecks"
