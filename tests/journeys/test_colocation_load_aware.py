"""The load-aware-scheduling tutorial: pods stay away from a node that is busy, whatever its requests say."""

from __future__ import annotations

import json
from collections import Counter

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, NODES, PODS
from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.kube.transport.api_error import unwrap
from tests.journeys.colocation_cluster import ColocationCluster, pod, run_on_colocation_cluster

POOL = SimulatedPool(name="n", count=3, cpu=4, memory="16Gi", system=SystemDaemonUsage(cpu="100m", memory="1Gi"))
SMALL = {"cpu": "10m"}


async def stressed(j: ColocationCluster) -> str:
    """The node on which two of four CPUs and 3.2G are busy, as `stress --vm 2 --vm-bytes 1600M -c 2` makes them."""
    busy = pod(
        "stress-demo",
        {"cpu": "2", "memory": "4Gi"},
        uses={"cpu": "2", "memory": "3200M"},
        schedulerName="koord-scheduler",
    )
    unwrap(await j.client.create(PODS, busy))
    await j.wait_for_reports(2)
    loaded = await j.node_of_pod("stress-demo")
    assert loaded
    return loaded


async def nodes_of(j: ColocationCluster) -> Counter[str]:
    return Counter(one.spec.node_name for one in unwrap(await j.client.list(PODS, "default", labels="app=nginx")).items)


def test_pods_avoid_the_loaded_node() -> None:
    """Pods without a controller: default spreading, which Deployments get, weighs as much as the load does here."""

    async def journey(j: ColocationCluster) -> None:
        loaded = await stressed(j)
        for number in range(6):
            one = pod(
                f"nginx-{number}",
                {"cpu": "500m"},
                uses=SMALL,
                labels={"app": "nginx"},
                schedulerName="koord-scheduler",
            )
            unwrap(await j.client.create(PODS, one))
        await j.settle()
        nodes = await nodes_of(j)
        assert loaded not in nodes
        assert sorted(nodes.values()) == [3, 3]

    run_on_colocation_cluster(journey, POOL)


def test_a_threshold_keeps_a_deployment_off_the_loaded_node() -> None:
    async def journey(j: ColocationCluster) -> None:
        loaded = await stressed(j)
        ceiling = {"scheduling.koordinator.sh/usage-thresholds": json.dumps({"usageThresholds": {"cpu": 50}})}
        for number in range(3):
            patch = {"metadata": {"annotations": ceiling}}
            unwrap(await j.client.patch(NODES, f"n-{number}", patch, kind="merge"))
        template = pod("", {"cpu": "500m"}, uses=SMALL, labels={"app": "nginx"}, schedulerName="koord-scheduler")
        del template["metadata"]["name"], template["metadata"]["namespace"]
        spec = {"replicas": 6, "selector": {"matchLabels": {"app": "nginx"}}, "template": template}
        deployment = {"metadata": {"name": "nginx-with-loadaware", "namespace": "default"}, "spec": spec}
        unwrap(await j.client.create(DEPLOYMENTS, deployment))
        await j.settle()
        nodes = await nodes_of(j)
        assert loaded not in nodes
        assert sorted(nodes.values()) == [3, 3]

    run_on_colocation_cluster(journey, POOL)
