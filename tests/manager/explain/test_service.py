"""What the manager answers to `koord explain`."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.builtin import NODES
from koord.kube.refused import ok
from koord.manager.explain import service
from koord.manager.program import Manager, Wishes
from koord.manager.world import World
from koord.telemetry.endpoint import Endpoint
from koord.telemetry.routing import Call
from tests.manager.manager_world import in_world

NODE = {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}}


async def asked(world: World, manager: Manager, path: str, *, leads: bool = True) -> tuple[int, Any]:
    endpoint = Endpoint(world.clock)
    service.serve(endpoint, manager, lambda: leads)
    reply = await endpoint.answer(Call(method="GET", path=path))
    return reply.status, msgspec.json.decode(reply.body)


def test_a_node_its_absence_and_a_replica_that_does_not_lead() -> None:
    async def check(world: World) -> None:
        manager = Manager(world)
        ok(await world.client.create(NODES, NODE))
        await world.clock.sleep(1)
        path = "/apis/v1/noderesource/nodes/n1"
        assert await asked(world, manager, path) == (200, {"node": "n1", "changes": []})
        assert await asked(world, manager, path.replace("n1", "n2")) == (404, {"message": "there is no node n2"})
        assert await asked(world, manager, path, leads=False) == (503, {"message": "this replica does not lead"})

    in_world(check)


def test_without_the_controller_there_is_nothing_to_tell() -> None:
    async def check(world: World) -> None:
        manager = Manager(world, Wishes(controllers=("*", "-noderesource")))
        status, said = await asked(world, manager, "/apis/v1/noderesource/nodes/n1")
        assert (status, said) == (503, {"message": "the noderesource controller does not run"})

    in_world(check)
