"""Unequal machines made comparable: normalization by CPU model, and amplification of what a node states."""

from __future__ import annotations

import json
from typing import Any

from koord.api.koordinator.custom_kinds import NODE_RESOURCE_TOPOLOGIES
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.kube.transport.api_error import unwrap
from tests.journeys.colocation_cluster import BATCH_CPU, ColocationCluster, pod, run_on_colocation_cluster

# 100 CPUs, 5 of them used by the system: 60 lent less 5 are 55 CPUs.
POOL = SimulatedPool(name="n", count=1, cpu=100, memory="128Gi", system=SystemDaemonUsage(cpu=5, memory="1Gi"))
MODEL = "Intel(R) Xeon(R) Platinum 8269CY CPU @ 2.50GHz"


def topology(node: str, zones: int = 0) -> dict[str, Any]:
    """What a koordlet would write of the node's CPUs and NUMA zones."""
    info = {"cpuModel": MODEL, "hyperThreadEnabled": True, "turboEnabled": True}
    size = {"cpu": str(100 // max(zones, 1)), "memory": "64Gi"}
    resources = [
        {"name": name, **dict.fromkeys(("capacity", "allocatable", "available"), v)} for name, v in size.items()
    ]
    return {
        "metadata": {"name": node, "annotations": {"node.koordinator.sh/cpu-basic-info": json.dumps(info)}},
        "topologyPolicies": ["None"],
        "zones": [{"name": f"node-{z}", "type": "Node", "resources": resources} for z in range(zones)],
    }


NORMALIZATION = {
    "enable": True,
    "ratioModel": {
        MODEL: {
            "baseRatio": 1.5,
            "hyperThreadEnabledRatio": 1.1,
            "turboEnabledRatio": 1.7,
            "hyperThreadTurboEnabledRatio": 1.2,
        }
    },
}


def test_a_faster_cpu_counts_for_more() -> None:
    async def journey(j: ColocationCluster) -> None:
        unwrap(await j.client.create(NODE_RESOURCE_TOPOLOGIES, topology("n-0")))
        await j.configure(colocation_config={"enable": True}, cpu_normalization_config=NORMALIZATION)
        await j.wait_for_reports()
        node = unwrap(await j.client.get(NODES, "n-0"))
        assert node.metadata.annotations["node.koordinator.sh/cpu-normalization-ratio"] == "1.20"
        assert node.metadata.annotations["node.koordinator.sh/resource-amplification-ratio"] == '{"cpu":1.20}'
        assert str(node.status.allocatable[BATCH_CPU]) == "66k"  # 55000 x 1.2

    run_on_colocation_cluster(journey, POOL)


def test_allocatable_is_amplified_by_the_webhook_and_restored() -> None:
    async def journey(j: ColocationCluster) -> None:
        ratio = {"enable": True, "resourceAmplificationRatio": {"cpu": 1.5, "memory": 1.2}}
        await j.configure(colocation_config={"enable": True}, resource_amplification_config=ratio)
        await j.clock.sleep(301)  # a kubelet writes its node's status every five minutes
        node = unwrap(await j.client.get(NODES, "n-0"))
        assert (
            node.metadata.annotations["node.koordinator.sh/resource-amplification-ratio"]
            == '{"cpu":1.50,"memory":1.20}'
        )
        assert str(node.status.allocatable["cpu"]) == "150"
        assert str(node.status.capacity["cpu"]) == "100"
        raw = json.loads(node.metadata.annotations["node.koordinator.sh/raw-allocatable"])
        assert raw["cpu"] == "100"

        unwrap(await j.client.create(PODS, pod("large", {"cpu": "120", "memory": "1Gi"})))
        await j.settle()
        assert await j.node_of_pod("large") == "n-0"

    run_on_colocation_cluster(journey, POOL, switches="NodeMutatingWebhook=true")


def test_numa_zones_share_what_the_node_lends() -> None:
    async def journey(j: ColocationCluster) -> None:
        unwrap(await j.client.create(NODE_RESOURCE_TOPOLOGIES, topology("n-0", zones=2)))
        await j.configure(colocation_config={"enable": True})
        await j.wait_for_reports()
        found = unwrap(await j.client.get(NODE_RESOURCE_TOPOLOGIES, "n-0"))
        lent = [{r.name: str(r.allocatable) for r in zone.resources}[BATCH_CPU] for zone in found.zones]
        assert lent == ["27500", "27500"]  # each 50000 - 20000 - 2500

    run_on_colocation_cluster(journey, POOL)
