"""What the manager answers to `koord explain`."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import NODES
from koord.kube.transport.api_error import unwrap
from koord.manager import program
from koord.manager.program import Manager, ManagerOptions
from koord.manager.reconcile_loop import ManagerContext
from koord.telemetry.component_server import ComponentServer
from koord.telemetry.http_routing import HttpCall
from tests.manager.manager_harness import run_with_context

NODE = {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}}


async def asked(context: ManagerContext, manager: Manager, path: str, *, leads: bool = True) -> tuple[int, Any]:
    endpoint = ComponentServer(context.clock)
    program.serve_explanations(endpoint, manager, lambda: leads)
    reply = await endpoint.answer(HttpCall(method="GET", path=path))
    return reply.status, msgspec.json.decode(reply.body)


def test_a_node_its_absence_and_a_replica_that_does_not_lead() -> None:
    async def check(context: ManagerContext) -> None:
        manager = Manager(context)
        unwrap(await context.client.create(NODES, NODE))
        await context.clock.sleep(1)
        path = "/apis/v1/noderesource/nodes/n1"
        assert await asked(context, manager, path) == (200, {"node": "n1", "changes": []})
        assert await asked(context, manager, path.replace("n1", "n2")) == (404, {"message": "there is no node n2"})
        assert await asked(context, manager, path, leads=False) == (503, {"message": "this replica does not lead"})

    run_with_context(check)


def test_without_the_controller_there_is_nothing_to_tell() -> None:
    async def check(context: ManagerContext) -> None:
        manager = Manager(context, ManagerOptions(controllers=("*", "-noderesource")))
        status, said = await asked(context, manager, "/apis/v1/noderesource/nodes/n1")
        assert (status, said) == (503, {"message": "the noderesource controller does not run"})

    run_with_context(check)
