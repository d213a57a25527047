"""Controllers are built for enabled plugins, restarted when one raises, and end with the leader."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, ClassVar

from koord.scheduler.duties.duty import Duty, Post
from koord.scheduler.duties.staff import LONGEST_REST_S, hire, work
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import Profile
from koord.telemetry.clock import LoopClock, run_virtual


class Bringer(Plugin):
    name: ClassVar[str] = "Bringer"

    def pre_enqueue(self, pod: Any) -> None:
        return None


class Other(Bringer):
    name: ClassVar[str] = "Other"


class Chore:
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
    first, second, other = Bringer(), Bringer(), Other()
    profiles = [Profile("a", {"pre_enqueue": [first, other]}), Profile("b", {"pre_enqueue": [second]})]
    seen: list[tuple[Plugin, ...]] = []

    def post(plugins: tuple[Plugin, ...]) -> Any:
        seen.append(plugins)
        return plugins

    chores: tuple[Duty, ...] = ()

    def hiring(given: Post) -> tuple[Duty, ...]:
        return chores

    assert hire(profiles, {"Bringer": hiring, "Absent": hiring}, post) == ()
    assert seen == [(first, second)]


def test_a_duty_that_breaks_starts_again_later_and_later_and_the_others_go_on() -> None:
    async def story(clock: LoopClock) -> list[float]:
        broken, fine = Chore(fails=9), Chore(fails=0)
        task = asyncio.create_task(work((broken, fine), clock))
        await fine.going.wait()
        await broken.going.wait()
        assert len(fine.started_at) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return broken.started_at

    starts = run_virtual(story)
    rests = [later - sooner for sooner, later in pairwise(starts)]
    assert rests == [1, 2, 4, 8, 16, 32, LONGEST_REST_S, LONGEST_REST_S, LONGEST_REST_S]
