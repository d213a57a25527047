"""A scheduler plugin of another package brings its controller, its routes and its metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.scheduler.explain import http
from koord.telemetry import metrics
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.http_routing import HttpCall
from koord.telemetry.metrics import MetricRegistry
from tests.plugin_page import example
from tests.scheduler.faulty_cluster import faulty_cluster
from tests.scheduler.test_schedule_one_plugins import enabled_everywhere


@pytest.mark.parametrize("nodes", [2])
def test_the_example_of_the_page(nodes: int) -> None:
    async def main(clock: LoopClock) -> None:
        registry = MetricRegistry()
        config = enabled_everywhere("NodeCount", example("scheduler")["NodeCount"])
        async with faulty_cluster(clock, config, registry=registry) as world:
            for number in range(nodes):
                await world.add_node(f"n{number}")
            await clock.sleep(30)
            routes = dict(http.explain_routes(world.scheduler, clock))
            reply: Any = routes["/plugins/NodeCount/count"](HttpCall(method="GET", path="/"))
            assert json.loads(reply.body) == {"nodes": nodes, "largest": nodes}
            assert f"node_count_largest {nodes}" in metrics.render([registry]).decode()

    run_virtual(main)
