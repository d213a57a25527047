"""Node resources and NodeSLO extensions of other packages are written with koord-manager's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import NODE_SLOS
from koord.api.koordinator.resource_name import BATCH_CPU
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NAMESPACES, NODES
from koord.kube.transport.api_error import unwrap
from koord.manager.plugin import NODE_RESOURCE_GROUP, NODE_SLO_GROUP, ManagerPlugins, load_manager_plugins
from koord.manager.program import Manager, ManagerOptions
from koord.manager.reconcile_loop import ManagerContext
from tests.manager.manager_harness import run_with_context
from tests.plugin_page import Offer, example


def offered(resources: Iterable[Offer] = (), extensions: Iterable[Offer] = ()) -> ManagerPlugins:
    return load_manager_plugins({NODE_RESOURCE_GROUP: resources, NODE_SLO_GROUP: extensions}.__getitem__)


class Raises:
    resources = ("example.com/broken",)

    def decide(self, *_: Any) -> Mapping[str, Any]:
        raise RuntimeError("no idea")


async def extensions(context: ManagerContext) -> dict[str, Any] | None:
    found = unwrap(await context.client.get(NODE_SLOS, "n1")).spec.extensions
    return None if found is None else found.object


def test_the_plugins_of_the_page_write_what_they_decide_even_beside_broken_ones() -> None:
    plugins = offered(
        [Offer("Broken", Raises), Offer("Licences", example("manager-noderesource")["Licences"])],
        [Offer("broken", Raises), Offer("swap", example("manager-nodeslo")["SwapStrategy"])],
    )
    assert not plugins.warnings

    async def main(context: ManagerContext) -> None:
        client = context.client
        await client.create(NAMESPACES, {"metadata": {"name": context.settings.config_namespace}})
        labels = {"example.com/licences": "3", "pool": "batch"}
        room = {"cpu": "8", "memory": "16Gi"}
        node = {"metadata": {"name": "n1", "labels": labels}, "status": {"capacity": room, "allocatable": room}}
        unwrap(await client.create(NODES, node))
        config = {
            "metadata": {"name": context.settings.config_name},
            "data": {"colocation-config": '{"enable": true}', "swap-config": "20"},
        }
        unwrap(await client.create(CONFIG_MAPS, config, context.settings.config_namespace))
        manager = Manager(context, ManagerOptions(plugins=plugins))
        await manager.start()
        await manager.start_leading()
        await context.clock.sleep(30)
        assert unwrap(await client.get(NODES, "n1")).status.allocatable["example.com/licence"] == "3"
        assert await extensions(context) == {"swap": {"swapPercent": 20}}
        patch = {"data": {"swap-config": "30"}}
        where = (context.settings.config_name, patch, context.settings.config_namespace)
        unwrap(await client.patch(CONFIG_MAPS, *where, kind="merge"))
        unwrap(await client.patch(NODES, "n1", {"metadata": {"labels": {"example.com/licences": None}}}, kind="merge"))
        await context.clock.sleep(400)
        assert "example.com/licence" not in unwrap(await client.get(NODES, "n1")).status.allocatable
        assert await extensions(context) == {"swap": {"swapPercent": 30}}
        await manager.stop_leading()
        await manager.stop()

    run_with_context(main)


class Greedy:
    resources = (BATCH_CPU,)

    def decide(self, view: Any) -> Mapping[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        (Offer("X", broken="gone"), "plugin X of a_package:X cannot be used: ImportError: gone"),
        (Offer("X", dict), "plugin X is not used: it is no NodeResourcePlugin"),
        (Offer("X", Greedy), f"plugin X is not used: {BATCH_CPU} is written by koord-manager"),
    ],
)
def test_one_that_cannot_be_used_is_named_and_left_out(offer: Offer, why: str) -> None:
    assert offered([offer]) == ManagerPlugins(warnings=(why,))
