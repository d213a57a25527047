"""This module runs informer scenarios: a scripted server, virtual time, and a check that nothing is left
behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from koord.kube.cache import Change
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.malformed import Malformed
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.scripted import ScriptedServer, Thing

Story = Callable[[ScriptedServer, Informers], Awaitable[None]]


def play(story: Story, *, on_malformed: Callable[[Malformed], None] | None = None) -> None:
    async def main(clock: LoopClock) -> None:
        server = ScriptedServer()
        client = Client(server, clock=clock, burst=0)
        async with Informers(client, clock, seed=1, on_malformed=on_malformed) as informers:
            await story(server, informers)
        assert len(asyncio.all_tasks()) == 1, "a task was left behind"
        assert not server.streams, "a watch was left open"

    run_virtual(main)


def brief(changes: list[Change[Thing]]) -> list[tuple[str, str, bool]]:
    return [(change.kind, change.object.metadata.name, change.initial) for change in changes]


def names(things: list[Thing]) -> list[str]:
    return [thing.metadata.name for thing in things]
