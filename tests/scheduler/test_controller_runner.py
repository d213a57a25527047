"""Controllers are built for enabled plugins, restarted when one raises, and end with the leader."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, ClassVar

import msgspec
import pytest

from koord.api.config.component import PluginConfig
from koord.api.config.scheduler import configuration
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.controller import (
    LONGEST_RESTART_DELAY_S,
    SchedulerController,
    SchedulerControllerContext,
    build_controllers,
    run_controllers,
    runs_controllers,
)
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.scheduler import Scheduler
from koord.telemetry.clock import LoopClock, WallClock, run_virtual


class PluginWithController(Plugin):
    name: ClassVar[str] = "Bringer"

    def pre_enqueue(self, pod: Any) -> None:
        return None


class OtherPlugin(PluginWithController):
    name: ClassVar[str] = "Other"


class FakeController:
    name: ClassVar[str] = "chore"

    def __init__(self, fails: int) -> None:
        self.fails = fails
        self.started_at: list[float] = []
        self.going = asyncio.Event()

    async def run(self) -> None:
        self.started_at.append(asyncio.get_running_loop().time())
        if len(self.started_at) <= self.fails:
            raise ValueError("broken")
        self.going.set()
        await asyncio.Event().wait()


def test_one_hiring_per_plugin_with_all_its_instances() -> None:
    first, second, other = PluginWithController(), PluginWithController(), OtherPlugin()
    profiles = [
        SchedulerProfile("a", {Plugin.pre_enqueue: [first, other]}),
        SchedulerProfile("b", {Plugin.pre_enqueue: [second]}),
    ]
    seen: list[tuple[Plugin, ...]] = []

    def post(plugins: tuple[Plugin, ...]) -> Any:
        seen.append(plugins)
        return plugins

    chores: tuple[SchedulerController, ...] = ()

    def hiring(given: SchedulerControllerContext) -> tuple[SchedulerController, ...]:
        return chores

    assert build_controllers(profiles, {"Bringer": hiring, "Absent": hiring}, post) == ()
    assert seen == [(first, second)]


def test_a_duty_that_breaks_starts_again_later_and_later_and_the_others_go_on() -> None:
    async def story(clock: LoopClock) -> list[float]:
        broken, fine = FakeController(fails=9), FakeController(fails=0)
        task = asyncio.create_task(run_controllers((broken, fine), clock))
        await fine.going.wait()
        await broken.going.wait()
        assert len(fine.started_at) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return broken.started_at

    starts = run_virtual(story)
    rests = [later - sooner for sooner, later in pairwise(starts)]
    assert rests == [1, 2, 4, 8, 16, 32, LONGEST_RESTART_DELAY_S, LONGEST_RESTART_DELAY_S, LONGEST_RESTART_DELAY_S]


@pytest.mark.parametrize(
    ("wanted", "runs"),
    [
        (("*",), {"Coscheduling", "Reservation"}),
        (("*", "-Reservation"), {"Coscheduling"}),
        (("-Reservation", "*"), {"Coscheduling"}),
        (("Reservation",), {"Reservation"}),
        (("Reservation", "-Reservation", "*"), {"Coscheduling", "Reservation"}),
        ((), set()),
    ],
)
def test_whose_controllers_run(wanted: tuple[str, ...], runs: set[str]) -> None:
    assert {name for name in ("Coscheduling", "Reservation") if runs_controllers(name, wanted)} == runs


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, set()),
        ({"network_topology_manager": False}, {"NetworkTopologyController"}),
        ({"controller_plugins": ("*", "-Coscheduling")}, {"NetworkTopologyController", "PodGroupController"}),
    ],
)
def test_a_scheduler_runs_those_that_are_wanted(options: dict[str, Any], missing: set[str]) -> None:
    def made(**options: Any) -> set[str]:
        config = configuration.configuration()
        (profile,) = config.profiles
        aware = PluginConfig(name="Coscheduling", args={"awareNetworkTopology": True})
        others = tuple(entry for entry in profile.plugin_config if entry.name != aware.name)
        profile = msgspec.structs.replace(profile, plugin_config=(*others, aware))
        completed = CompletedConfig.complete(msgspec.structs.replace(config, profiles=(profile,)), REGISTRY)
        assert isinstance(completed, CompletedConfig), completed
        transport: Any = None
        client = Client(transport, clock=clock)
        scheduler = Scheduler(client, InformerFactory(client, clock), clock, completed, **options)
        return {type(controller).__name__ for controller in scheduler.controllers}

    clock = WallClock()
    assert made() - made(**options) == missing
