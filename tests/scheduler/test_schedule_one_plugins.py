"""Plugins that wait, reject, raise and patch work in a running scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koord.api.config.component import PluginEntry as Named
from koord.api.config.component import PluginSet
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, KubeSchedulerProfile, SchedulerPlugins
from koord.api.kubernetes.builtin_kinds import CORE_EVENTS
from koord.kube.informer.reflector import MalformedObject
from koord.kube.transport.api_error import unwrap
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import FailureOverride, Fault, PodPatch, Reject, Wait, reject
from koord.scheduler.plugins.registry import REGISTRY, PluginFactory
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster


def with_plugin(plugin: Plugin) -> CompletedConfig:
    return enabled_everywhere(plugin.name, lambda args, handle: plugin)


def enabled_everywhere(name: str, factory: PluginFactory) -> CompletedConfig:
    everywhere = SchedulerPlugins(multi_point=PluginSet(enabled=(Named(name=name),)))
    config = KubeSchedulerConfiguration(
        profiles=(KubeSchedulerProfile(scheduler_name="default-scheduler", plugins=everywhere),)
    )
    made = CompletedConfig.complete(config, {**REGISTRY, name: factory})
    assert isinstance(made, CompletedConfig), made
    return made


def run(plugin: Plugin, story: Callable[[FaultyCluster], Any]) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, with_plugin(plugin)) as world:
            await world.add_node("n0")
            await story(world)

    run_virtual(main)


async def condition(world: FaultyCluster, name: str) -> tuple[str, str]:
    found = next(c for c in (await world.pod(name)).status.conditions if c.type == "PodScheduled")
    return found.reason, found.message


class RaisingPlugin(Plugin):
    """Raise at one point for pods named `bad`, until it is repaired."""

    name = "Breaks"

    def __init__(self, point: str) -> None:
        self.point = point
        self.mended = False

    def _maybe(self, point: str, pod: PodInfo) -> None:
        if point == self.point and pod.name == "bad" and not self.mended:
            raise RuntimeError(f"no {point} today")

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> None:
        self._maybe("pre_filter", pod)

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> None:
        self._maybe("filter", pod)

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        self._maybe("score", pod)
        return 0

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> None:
        self._maybe("reserve", pod)

    def permit(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> None:
        self._maybe("permit", pod)

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        self._maybe("pre_bind", pod)


@pytest.mark.parametrize("point", ["pre_filter", "filter", "score", "reserve", "permit", "pre_bind"])
def test_a_plugin_that_raises_fails_its_pod_by_name_and_nothing_else(point: str) -> None:
    plugin = RaisingPlugin(point)

    async def story(world: FaultyCluster) -> None:
        await world.add_pod("bad")
        await world.add_pod("good")
        await world.clock.sleep(15)
        assert await world.node_of("good") == "n0"
        assert await world.node_of("bad") == ""
        assert await condition(world, "bad") == (
            "SchedulerError",
            f'running "Breaks" plugin: RuntimeError: no {point} today',
        )
        plugin.mended = True
        await world.settle()
        assert await world.node_of("bad") == "n0", "it is tried again"
        await world.check()

    run(plugin, story)


class WaitingPlugin(Plugin):
    name = "Holds"

    def permit(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Wait | None:
        return Wait(30.0) if pod.name.startswith("held") else None


def test_a_held_pod_keeps_its_room_until_it_is_allowed() -> None:
    async def story(world: FaultyCluster) -> None:
        held = await world.add_pod("held", cpu="3")
        await world.clock.sleep(1)
        await world.add_pod("small")
        await world.add_pod("late", cpu="1")
        await world.clock.sleep(1)
        assert [await world.node_of(name) for name in ("held", "small", "late")] == ["", "n0", ""]
        (guest,) = world.scheduler.waiting_pods
        assert (guest.node_name, guest.pending_plugins) == ("n0", ("Holds",))
        assert world.scheduler.waiting_pods.allow(held.metadata.uid, "Holds")
        await world.clock.sleep(1)
        assert await world.node_of("held") == "n0"
        await world.check()

    run(WaitingPlugin(), story)


def test_a_held_pod_is_turned_away_when_its_time_is_over() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_pod("held", cpu="4")
        await world.clock.sleep(1)
        await world.add_pod("late", cpu="4")
        await world.clock.sleep(31)
        assert await world.node_of("late") == "n0", "whoever waited for the room is woken"
        reason, message = await condition(world, "held")
        assert (reason, message) == (
            "Unschedulable",
            "0/1 nodes are available: 1 rejected due to timeout after waiting 30s at plugin Holds.",
        )

    run(WaitingPlugin(), story)


def test_a_held_pod_that_is_deleted_is_let_go() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_pod("held", cpu="4")
        await world.clock.sleep(1)
        await world.remove_pod("held")
        await world.add_pod("next", cpu="4")
        await world.clock.sleep(5)
        assert await world.node_of("next") == "n0"
        await world.check()

    run(WaitingPlugin(), story)


class RejectingPlugin(Plugin):
    """Reject or fail at a point by a returned verdict."""

    name = "Turns"

    def __init__(self, reserve: Reject | Fault | None = None, permit: Reject | Fault | None = None) -> None:
        self._reserve = reserve
        self._permit = permit
        self.undone: list[str] = []

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        return self._reserve

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        self.undone.append(pod.name)

    def permit(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        return self._permit


@pytest.mark.parametrize(
    ("plugin", "told"),
    [
        pytest.param(
            RejectingPlugin(reserve=reject("not you")),
            ("Unschedulable", "0/1 nodes are available: 1 not you."),
            id="reserve",
        ),
        pytest.param(
            RejectingPlugin(permit=reject("not now")),
            ("Unschedulable", "0/1 nodes are available: 1 not now."),
            id="permit",
        ),
        pytest.param(
            RejectingPlugin(reserve=Fault("disk full")),
            ("SchedulerError", 'running Reserve plugin "Turns": disk full'),
            id="fault",
        ),
    ],
)
def test_a_no_after_the_choice_is_undone_and_told(plugin: RejectingPlugin, told: tuple[str, str]) -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_pod("p")
        await world.clock.sleep(0.5)
        assert await condition(world, "p") == told
        assert set(plugin.undone) == {"p"}
        await world.check()

    run(plugin, story)


class SilencingPlugin(Plugin):
    """Reject pods silently, and nominate a node for them."""

    name = "Hushes"

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject:
        return reject("hush")

    def on_attempt_failed(self, pod: PodInfo, message: str, rejectors: frozenset[str]) -> FailureOverride:
        assert rejectors == {"Hushes"}
        return FailureOverride(silent=True, nominate="n0")


def test_a_plugin_can_take_over_what_becomes_of_a_failure() -> None:
    async def story(world: FaultyCluster) -> None:
        pod = await world.add_pod("p")
        await world.clock.sleep(0.5)
        assert not [c for c in (await world.pod("p")).status.conditions if c.reason == "Unschedulable"]
        assert world.scheduler.queue.nominations.node_of(pod.metadata.uid) == "n0"
        assert pod.metadata.uid in world.scheduler.queue

    run(SilencingPlugin(), story)


class PatchingPlugin(Plugin):
    name = "Marks"

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> PodPatch:
        return PodPatch(annotations={"example.com/where": node_name})

    def apply_patch(self, cycle: CycleState, pod: PodInfo, node_name: str, mark: PodPatch) -> PodPatch:
        return PodPatch(annotations={**mark.annotations, "example.com/also": "this"})


def test_marks_travel_with_the_binding() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_pod("p")
        await world.clock.sleep(1)
        found = (await world.pod("p")).metadata.annotations
        assert found == {"example.com/where": "n0", "example.com/also": "this"}
        writes = [r for r in world.wire.requests if r.method != "GET" and "/pods" in r.path]
        assert [r.path.rsplit("/", 1)[1] for r in writes] == ["binding"]

    run(PatchingPlugin(), story)


def test_an_object_that_cannot_be_read_is_told_of_and_others_go_on() -> None:
    async def story(world: FaultyCluster) -> None:
        world.scheduler.report_malformed(
            MalformedObject(kind="CSINode", namespace="", name="n0", uid="u", error="no spec")
        )
        await world.add_pod("p")
        await world.clock.sleep(5)
        assert await world.node_of("p") == "n0"
        notes = [(e.reason, e.message) for e in unwrap(await world.client.list(CORE_EVENTS)).items]
        assert ("MalformedObject", "left out of scheduling: no spec") in notes

    run(WaitingPlugin(), story)
