"""The explain endpoint of the manager, below /apis/v1 on its metrics port. Only the leader answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.manager.controllers.noderesource import NodeResourceController
from koord.manager.program import Manager
from koord.telemetry import routing
from koord.telemetry.endpoint import Endpoint, Services
from koord.telemetry.routing import Call, Reply

NODES = "/noderesource/nodes"


def serve(endpoint: Endpoint, manager: Manager, leads: Callable[[], bool]) -> None:
    lending = next((one for one in manager.controllers if isinstance(one, NodeResourceController)), None)

    def unavailable() -> str | None:
        if lending is None:
            return "the noderesource controller does not run"
        return None if leads() else "this replica does not lead"

    def changes(call: Call) -> dict[str, Any] | Reply:
        assert lending is not None  # `unavailable` came first
        name = call.parameters["name"]
        if lending.sight.nodes.get("", name) is None:
            return routing.trouble(404, f"there is no node {name}")
        return {"node": name, "changes": lending.history.of(name)}

    Services(endpoint, unavailable=unavailable).add("GET", f"{NODES}/:name", changes)
