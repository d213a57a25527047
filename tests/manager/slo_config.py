"""slo-controller-config and nodes in a test's cluster."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from koord.api.builtin import CONFIG_MAPS, EVENTS_EVENTS, NAMESPACES, NODES
from koord.kube.refused import Refused, ok
from koord.manager.configuration.configuration import Configuration
from koord.manager.world import World

NAMESPACE, NAME = "koordinator-system", "slo-controller-config"

Plain = dict[str, Any]


async def write_config(world: World, **documents: Any) -> None:
    """Make or replace the ConfigMap: documents by key with _ for -, as text or as JSON to be."""
    data = {
        key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
        for key, value in documents.items()
    }
    body = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
    found = await world.client.get(CONFIG_MAPS, NAME, NAMESPACE)
    if isinstance(found, Refused):
        await world.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        ok(await world.client.create(CONFIG_MAPS, body))
    else:
        ok(await world.client.replace(CONFIG_MAPS, body))


async def settle(world: World, seconds: float = 1.0) -> None:
    """Time is virtual: this is long enough for every news to arrive and be worked on."""
    await world.clock.sleep(seconds)


async def add_node(world: World, name: str, labels: Plain | None = None, annotations: Plain | None = None) -> None:
    meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    ok(await world.client.create(NODES, {"metadata": meta}))


async def config_events(world: World) -> list[tuple[str, str]]:
    """(reason, note) of every event about the ConfigMap, oldest first."""
    found = ok(await world.client.list(EVENTS_EVENTS, NAMESPACE)).items
    about = [event for event in found if event.regarding is not None and event.regarding.name == NAME]
    return [(event.reason, event.note) for event in sorted(about, key=lambda event: event.metadata.name)]


def with_configuration(
    main: Callable[[World, Configuration], Awaitable[None]],
) -> Callable[[World], Awaitable[None]]:
    """`main` with a configuration that was made and is stopped for it; it starts it itself."""

    async def run(world: World) -> None:
        configuration = Configuration(world)
        try:
            await main(world, configuration)
        finally:
            await configuration.stop()

    return run
