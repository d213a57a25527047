"""Half of a GPU, with everything as `koord up` sets it up: from a Device to a bound pod."""

from __future__ import annotations

from koord.api.koordinator.custom_kinds import DEVICES
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.cli.up.local_manager import default_settings
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.transport.api_error import unwrap
from tests.journeys.colocation_cluster import ColocationCluster, pod, run_on_colocation_cluster

CARD = {
    "type": "gpu",
    "id": "GPU-0",
    "minor": 0,
    "health": True,
    "resources": {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "16Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    },
}


def test_two_pods_share_a_card_and_a_third_waits() -> None:
    async def main(cluster: ColocationCluster) -> None:
        await cluster.configure(colocation_config={"enable": True})
        (node,) = unwrap(await cluster.client.list(NODES)).items
        name = node.metadata.name
        device = {"metadata": {"name": name}, "spec": {"devices": [CARD]}}
        unwrap(await cluster.client.create(DEVICES, device))
        await cluster.wait_for_reports(2)
        halves = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
        for number in range(3):
            sharing = pod(f"half-{number}", {"cpu": "1", **halves}, schedulerName="koord-scheduler")
            unwrap(await cluster.client.create(PODS, sharing))
        await cluster.clock.sleep(5)
        assert [await cluster.node_of_pod(f"half-{number}") for number in range(3)] == [name, name, ""]

    run_on_colocation_cluster(main, SimulatedPool(name="n", count=1), settings=default_settings())
