"""slo-controller-config and nodes in a test's cluster."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, EVENTS_EVENTS, NAMESPACES, NODES
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.reconcile_loop import ManagerContext

NAMESPACE, NAME = "koordinator-system", "slo-controller-config"

Plain = dict[str, Any]


async def write_config(context: ManagerContext, **documents: Any) -> None:
    """Make or replace the ConfigMap: documents by key with _ for -, as text or as JSON to be."""
    data = {
        key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
        for key, value in documents.items()
    }
    body = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
    found = await context.client.get(CONFIG_MAPS, NAME, NAMESPACE)
    if isinstance(found, ApiError):
        await context.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        unwrap(await context.client.create(CONFIG_MAPS, body))
    else:
        unwrap(await context.client.replace(CONFIG_MAPS, body))


async def settle(context: ManagerContext, seconds: float = 1.0) -> None:
    """Time is virtual: this is long enough for every news to arrive and be worked on."""
    await context.clock.sleep(seconds)


async def add_node(
    context: ManagerContext, name: str, labels: Plain | None = None, annotations: Plain | None = None
) -> None:
    meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    unwrap(await context.client.create(NODES, {"metadata": meta}))


async def config_events(context: ManagerContext) -> list[tuple[str, str]]:
    """(reason, note) of every event about the ConfigMap, oldest first."""
    found = unwrap(await context.client.list(EVENTS_EVENTS, NAMESPACE)).items
    about = [event for event in found if event.regarding is not None and event.regarding.name == NAME]
    return [(event.reason, event.note) for event in sorted(about, key=lambda event: event.metadata.name)]


def with_configuration(
    main: Callable[[ManagerContext, SloControllerConfig], Awaitable[None]],
) -> Callable[[ManagerContext], Awaitable[None]]:
    """`main` with a configuration that was made and is stopped for it; it starts it itself."""

    async def run(context: ManagerContext) -> None:
        configuration = SloControllerConfig(context)
        try:
            await main(context, configuration)
        finally:
            await configuration.stop()

    return run
