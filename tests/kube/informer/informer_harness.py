"""This module runs informer scenarios: a scripted server, virtual time, and a check that nothing is left
behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.reflector import MalformedObject
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.scripted_server import ScriptedServer, Thing

InformerScenario = Callable[[ScriptedServer, InformerFactory], Awaitable[None]]


def run_scenario(scenario: InformerScenario, *, on_malformed: Callable[[MalformedObject], None] | None = None) -> None:
    async def main(clock: LoopClock) -> None:
        server = ScriptedServer()
        client = Client(server, clock=clock, burst=0)
        async with InformerFactory(client, clock, seed=1, on_malformed=on_malformed) as informers:
            await scenario(server, informers)
        assert len(asyncio.all_tasks()) == 1, "a task was left behind"
        assert not server.streams, "a watch was left open"

    run_virtual(main)


def summarize_changes(changes: list[ObjectChange[Thing]]) -> list[tuple[str, str, bool]]:
    return [(change.kind, change.object.metadata.name, change.initial) for change in changes]


def names(things: list[Thing]) -> list[str]:
    return [thing.metadata.name for thing in things]
