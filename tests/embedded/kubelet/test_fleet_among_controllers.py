"""A fleet beside the node controllers: the pods of a lost node move, and a healed node is trusted again."""

from __future__ import annotations

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, NODES, PODS
from koord.api.kubernetes.pod import Pod
from koord.cli.up import local_scheduler
from koord.embedded.cluster import ClusterSettings, ComponentContext, EmbeddedCluster
from koord.embedded.kubelet.fleet import SimulatedFleet
from koord.embedded.kubelet.node_profile import default_pools
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual

DEPLOYMENT = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "replicas": 6,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "app", "resources": {"requests": {"cpu": "1"}}}]},
        },
    },
}


async def running(client: Client) -> list[Pod]:
    return [p for p in unwrap(await client.list(PODS, "default")).items if p.status.phase == "Running"]


async def ready(client: Client, node: str) -> str:
    return next(c.status for c in unwrap(await client.get(NODES, node)).status.conditions if c.type == "Ready")


def test_lost_node_is_noticed_its_pods_move_and_it_comes_back() -> None:
    async def main(clock: LoopClock) -> None:
        fleets: list[SimulatedFleet] = []

        def nodes(c: ComponentContext) -> SimulatedFleet:
            fleets.append(SimulatedFleet(c.client, c.informers, c.clock, c.seed, default_pools(3)))
            return fleets[0]

        parts = [
            ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
            ("nodes", nodes),
            ("scheduler", local_scheduler.make_scheduler),
        ]
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), parts, clock=clock)  # type: ignore[arg-type]
        await cluster.start()
        client = cluster.client
        assert client is not None
        unwrap(await client.create(DEPLOYMENTS, DEPLOYMENT))
        await clock.sleep(600)
        assert len(await running(client)) == 6
        assert [await ready(client, f"node-{n}") for n in range(3)] == ["True"] * 3  # heartbeats suffice, for long
        fleets[0].fail_node("node-0")
        await clock.sleep(90)
        assert await ready(client, "node-0") == "Unknown"
        await clock.sleep(600)
        on_others = [p for p in await running(client) if p.spec.node_name != "node-0"]
        assert len(on_others) == 6
        fleets[0].heal_node("node-0")
        await clock.sleep(60)
        assert await ready(client, "node-0") == "True"
        assert not fleets[0].hosts["node-0"].sim_pods
        assert len(await running(client)) == 6
        await cluster.stop()

    run_virtual(main)
