"""The explainer reports a pod in every state that a pod can be in."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.config.scheduler.configuration import Extender
from koord.scheduler.explain.http import Explainer, explain_routes
from koord.scheduler.explain.report import PodReport
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.http_routing import HttpCall
from tests.scheduler.fake_extender import FakeExtender
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster
from tests.scheduler.plugins.coscheduling.gang_builders import add_group, add_members
from tests.scheduler.test_extender_gang_preemption import configured
from tests.scheduler.test_schedule_one_plugins import WaitingPlugin, with_plugin


def told(story: Callable[[FaultyCluster], Awaitable[None]], *, held: bool = False) -> PodReport | None:
    async def main(clock: LoopClock) -> PodReport | None:
        async with faulty_cluster(clock, with_plugin(WaitingPlugin()) if held else None) as world:
            await story(world)
            return Explainer(world.scheduler, clock).pod("default", "held" if held else "p")

    return run_virtual(main)


async def nothing(world: FaultyCluster) -> None:
    await world.add_node("n0")


async def gated(world: FaultyCluster) -> None:
    await world.add_pod("p", schedulingGates=[{"name": "example.com/wait"}])
    await world.clock.sleep(1)


async def bound(world: FaultyCluster) -> None:
    for n in range(3):
        await world.add_node(f"n{n}")
    await world.add_pod("p")
    await world.clock.sleep(5)


async def foreign(world: FaultyCluster) -> None:
    await world.add_pod("p", schedulerName="other")
    await world.clock.sleep(1)


async def refused(world: FaultyCluster) -> None:
    await world.add_node("n0")
    await world.add_node("n1", cpu="6")
    await world.add_pod("p", cpu="7")
    await world.clock.sleep(30)


async def held_at_permit(world: FaultyCluster) -> None:
    await world.add_node("n0")
    await world.add_pod("held")
    await world.clock.sleep(1)


async def in_trouble(world: FaultyCluster) -> None:
    await world.add_node("n0")
    world.wire.fate = lambda r: "409" if r.path.endswith("/binding") else "well"
    await world.add_pod("p")
    await world.clock.sleep(3.5)


@pytest.mark.parametrize(
    ("story", "state", "words"),
    [
        pytest.param(gated, "gated", "SchedulingGates: waiting for scheduling gates: [example.com/wait]", id="gated"),
        pytest.param(bound, "bound", "the best of 3 nodes that fit", id="bound"),
        pytest.param(foreign, "not-ours", "asks for scheduler other", id="not-ours"),
        pytest.param(refused, "unschedulable", "2 Insufficient cpu", id="unschedulable"),
        pytest.param(in_trouble, "backing-off", 'running Bind plugin "DefaultBinder"', id="backing-off"),
    ],
)
def test_headline(story: Callable[[FaultyCluster], Awaitable[None]], state: str, words: str) -> None:
    account = told(story)
    assert account is not None
    assert account.state == state
    assert words in account.headline


def test_waiting_at_permit_names_the_plugin_and_the_node() -> None:
    account = told(held_at_permit, held=True)
    assert account is not None
    assert (account.state, account.waiting and account.waiting.node) == ("waiting", "n0")
    assert "waits for Holds to allow it: for 1 s so far, and for another " in account.headline


def test_a_member_that_has_a_node_says_how_many_of_its_gang_do_and_how_long_it_waits() -> None:
    async def main(clock: LoopClock) -> PodReport | None:
        fake = FakeExtender()
        config = configured(Extender(url_prefix="http://extender", filter_verb="filter", node_cache_capable=True))
        async with faulty_cluster(clock, config, extender_transport=lambda *_: fake) as world:
            await world.add_node("n0", cpu="8")
            fake.delay_s = 4.0  # so that the first members have a node while the others are being tried
            await add_group(world, "g", 3, timeout=90)
            await add_members(world, "g", 3, cpu="2")
            await clock.sleep(10)
            waiting = next(iter(world.scheduler.waiting_pods))
            return Explainer(world.scheduler, clock).pod("default", waiting.pod.name)

    account = run_virtual(main)
    assert account is not None
    assert account.state == "waiting"
    assert account.headline == (
        "It has room on n0 and waits for its gang default/g (2 of 3 members have a node): "
        "for 6 s so far, and for another 84 s at most."
    )


def test_the_index_of_selectors_that_koordinator_serves_is_refused_by_name() -> None:
    async def main(clock: LoopClock) -> tuple[int, Any]:
        async with faulty_cluster(clock) as world:
            path = "/plugins/Reservation/reservationSelectorIndex"
            reply: Any = dict(explain_routes(world.scheduler, clock))[path](HttpCall(method="GET", path=path))
            return reply.status, json.loads(reply.body)

    status, body = run_virtual(main)
    assert status == 501
    assert body["message"].startswith("reservationSelectorIndex is not served: ")


def test_nobody_knows_a_pod_that_is_not_there() -> None:
    assert told(nothing) is None


def test_a_refusal_has_counts_examples_the_nearest_miss_and_what_may_help() -> None:
    account = told(refused)
    assert account is not None
    assert account.last is not None
    (said,) = account.last.refusals
    assert (said.plugin, said.reason, said.nodes, said.examples) == (
        "NodeResourcesFit",
        "Insufficient cpu",
        2,
        ("n0", "n1"),
    )
    assert account.last.nearest is not None
    assert (account.last.nearest.node, account.last.nearest.lacking) == ("n1", {"cpu": 1000})
    assert "Node add" in account.wakes_on
    assert "Pod delete" in account.wakes_on


def test_a_bound_pod_shows_how_the_best_nodes_scored() -> None:
    account = told(bound)
    assert account is not None
    assert account.last is not None
    assert len(account.last.ranking) == 3
    assert account.last.ranking[0].node == account.node
    totals = [ranked.total for ranked in account.last.ranking]
    assert totals == sorted(totals, reverse=True)
    assert all(ranked.total == sum(ranked.scores.values()) for ranked in account.last.ranking)
