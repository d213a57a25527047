"""`koord up --set nodes.agents=true`: the node agent on every simulated node, reporting and holding batch work back."""

from __future__ import annotations

from koord.api.builtin import NODES, PODS
from koord.api.custom import NODE_METRICS
from koord.cli.component import chosen
from koord.embedded.cluster import Cluster, Settings
from koord.kube.refused import ok
from koord.telemetry.clock import LoopClock, run_virtual
from koord.values.quantity import Quantity
from tests.journeys.colocation import batch_pod


def test_nodes_with_agents_report_lend_and_run_batch_work() -> None:
    async def main(clock: LoopClock) -> None:
        made = chosen("all", nodes=2, profile=None, settings={"nodes.agents": "true"})
        assert not isinstance(made, str)
        cluster = Cluster(Settings(http=False, seed=1), made, clock=clock)
        await cluster.start()
        client = cluster.client
        assert client is not None
        try:
            await clock.sleep(40)
            for metric in ok(await client.list(NODE_METRICS)).items:
                assert metric.status.node_metric is not None
                assert metric.status.node_metric.node_usage.resources["cpu"] == "200m"
            node = ok(await client.get(NODES, "node-0"))
            assert Quantity.parse(node.status.allocatable["kubernetes.io/batch-cpu"]).value() > 10_000
            ok(await client.create(PODS, batch_pod("work", 4000, namespace="default")))
            await clock.sleep(10)
            assert ok(await client.get(PODS, "work", "default")).status.phase == "Running"
        finally:
            await cluster.stop()

    run_virtual(main)


def test_a_wrong_word_is_refused() -> None:
    said = chosen("all", nodes=1, profile=None, settings={"nodes.agents": "yes"})
    assert said == "--set nodes.agents=yes: must be true or false"
