"""The node agent's reports at a real kube-apiserver, whose schemas and patches have the last word."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from koord.api.builtin import CUSTOM_RESOURCE_DEFINITIONS, NODES
from koord.api.crd import crd_manifests
from koord.api.custom import NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.api.meta import Object
from koord.api.resource import Resource
from koord.api.slo_strategy import HostApplicationSpec
from koord.host.host import Host
from koord.host.numa import NumaNode
from koord.host.processor import CpuModel, Processor
from koord.koordlet.collect.info import Info
from koord.koordlet.pod import PodView
from koord.koordlet.reporting.node_metric import NodeMetricReporter
from koord.koordlet.reporting.node_metric import Sight as MetricSight
from koord.koordlet.reporting.topology import Settings, TopologyReporter
from koord.koordlet.reporting.topology import Sight as TopologySight
from koord.koordlet.series import kind
from koord.koordlet.series.store import Store
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.refused import Refused, ok
from koord.policy.prediction.reclaimable import Amount, Prediction
from koord.telemetry.clock import WallClock
from tests.koordlet.pods.kubelet import FakeKubelet
from tests.real.reach import connect
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real
GIB = 2**30
INFO = Info(
    processors=tuple(Processor(0, 0, cpu % 2, cpu) for cpu in range(4)),
    model=CpuModel(model="Model", vendor="Maker"),
    numa_nodes=(NumaNode(0, 8 * GIB, GIB),),
)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Kinds are added here, which others of its clients would see."""
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as running:
        yield running


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[Client]:
    async with connect(plane.kubeconfig) as made:
        for manifest in crd_manifests():
            ok(await made.apply(CUSTOM_RESOURCE_DEFINITIONS, manifest, field_manager="test", force=True))
        for resource in (NODE_METRICS, NODE_RESOURCE_TOPOLOGIES):
            await served(made, resource)
        yield made


async def served(client: Client, resource: Resource[Object]) -> None:
    for _ in range(200):  # the server takes a moment to serve a new kind
        if not isinstance(await client.list(resource, limit=1), Refused):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{resource.plural} are not served")


async def test_a_report_is_taken_whole_and_replaces_the_last(client: Client) -> None:
    node, clock = f"node-{secrets.token_hex(4)}", WallClock()
    store, now_s = Store(kind.keep_s()), clock.time()
    for key, value in (
        ((kind.NODE_CPU,), 4.1),
        ((kind.NODE_MEMORY,), 8 * GIB),
        ((kind.SYSTEM_CPU,), 0.3),
        ((kind.SYSTEM_MEMORY,), GIB),
        ((kind.NUMA_CPU, "0"), 4.1),
        ((kind.NUMA_MEMORY, "0"), 8 * GIB),
        ((kind.POD_CPU, "u"), 0.5),
        ((kind.POD_MEMORY, "u"), GIB),
        ((kind.APPLICATION_CPU, "nginx"), 1.0),
        ((kind.APPLICATION_MEMORY, "nginx"), GIB),
    ):
        store.add(key, now_s, value)
    sight = MetricSight(
        pods=(PodView(uid="u", namespace="work", name="web"),),
        applications=(HostApplicationSpec(name="nginx", priority="koord-prod", qos="LS"),),
        numa_nodes=(0,),
        prediction=Prediction(reclaimable=Amount(1450, GIB), peak=Amount(2050, GIB)),
    )
    ok(await client.create(NODE_METRICS, {"metadata": {"name": node}, "spec": {}}))
    try:
        async with Informers(client, clock) as informers:
            follow = informers.of(NODE_METRICS, fields=f"metadata.name={node}")
            await informers.synced(30)
            seen = [sight]
            reporter = NodeMetricReporter(client, clock, node, store, follow, lambda: seen[0])
            assert await reporter.report(), reporter.problem
            assert not reporter.problem
            status = ok(await client.plain.get(NODE_METRICS, node))["status"]
            assert status["nodeMetric"]["nodeUsage"]["resources"] == {"cpu": "4100m", "memory": "8Gi"}
            assert status["podsMetric"][0]["podUsage"]["resources"]["cpu"] == "500m"
            assert status["prodPeakMetric"]["resource"]["resources"]["cpu"] == "2050m"
            assert status["hostApplicationMetric"][0]["name"] == "nginx"
            seen[0] = MetricSight(pods=())
            assert await reporter.report(), reporter.problem
            status = ok(await client.plain.get(NODE_METRICS, node))["status"]
            assert "prodPeakMetric" not in status
            assert not status.get("podsMetric")
    finally:
        await client.delete(NODE_METRICS, node)


async def test_a_topology_is_made_changed_and_left_alone(client: Client) -> None:
    name, clock = f"node-{secrets.token_hex(4)}", WallClock()
    node = ok(await client.create(NODES, {"metadata": {"name": name}}))
    try:
        async with Informers(client, clock) as informers:
            follow = informers.of(NODE_RESOURCE_TOPOLOGIES, fields=f"metadata.name={name}")
            await informers.synced(30)
            seen = [TopologySight(node=node, pods=(), info=INFO)]
            reporter = TopologyReporter(client, clock, Host(), FakeKubelet(), follow, lambda: seen[0], Settings())

            async def settled() -> str:
                """Look until the informer has caught up with the last write."""
                version = ""
                for _ in range(100):
                    await reporter.sync()
                    found = ok(await client.get(NODE_RESOURCE_TOPOLOGIES, name)).metadata.resource_version
                    known = follow.get("", name)
                    if version == found and known is not None and known.metadata.resource_version == found:
                        return found
                    version = found
                    await asyncio.sleep(0.05)
                raise AssertionError(f"it is written again and again: {reporter.problem}")

            first = await settled()
            assert not reporter.problem
            assert await settled() == first, "nothing changed, nothing is written"
            text = json.dumps({"cpuset": "2-3"})
            pinned = PodView(uid="p", annotations={"scheduling.koordinator.sh/resource-status": text})
            seen[0] = TopologySight(node=node, pods=(pinned,), info=INFO)
            assert await settled() != first
            found = ok(await client.get(NODE_RESOURCE_TOPOLOGIES, name))
            pools = json.loads(found.metadata.annotations["node.koordinator.sh/cpu-shared-pools"])
            assert [pool["cpuset"] for pool in pools] == ["0-1"]
            assert found.metadata.owner_references[0].uid == node.metadata.uid
            assert [one.name for one in found.zones[0].resources] == ["cpu", "hugepages-1Gi", "hugepages-2Mi", "memory"]
    finally:
        await client.delete(NODE_RESOURCE_TOPOLOGIES, name)
        await client.delete(NODES, name)
