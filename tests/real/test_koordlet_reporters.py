"""The node agent's reports at a real kube-apiserver, whose schemas and patches have the last word."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.api.koordinator.slo import HostApplicationSpec
from koord.api.kubernetes.builtin_kinds import CUSTOM_RESOURCE_DEFINITIONS, NODES
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.schema import crd_manifests
from koord.host.filesystem import Host
from koord.host.hardware import CpuModel, MachineCpu, NumaNode
from koord.koordlet.collect.node_resource import NodeHardwareInfo
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.reporters.builders.reclaimable import PeakPrediction, ResourceAmount
from koord.koordlet.reporters.node_metric_reporter import NodeMetricInputs as MetricSight
from koord.koordlet.reporters.node_metric_reporter import NodeMetricReporter
from koord.koordlet.reporters.object_reporter import TopologyInputs as TopologySight
from koord.koordlet.reporters.object_reporter import TopologyReporter, TopologyReporterSettings
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.telemetry.clock import WallClock
from tests.koordlet.inputs.fake_kubelet import FakeKubelet
from tests.real.reach import connect
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real
GIB = 2**30
INFO = NodeHardwareInfo(
    processors=tuple(MachineCpu(0, 0, cpu % 2, cpu) for cpu in range(4)),
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
            unwrap(await made.apply(CUSTOM_RESOURCE_DEFINITIONS, manifest, field_manager="test", force=True))
        for resource in (NODE_METRICS, NODE_RESOURCE_TOPOLOGIES):
            await served(made, resource)
        yield made


async def served(client: Client, resource: Resource[Object]) -> None:
    for _ in range(200):  # the server takes a moment to serve a new kind
        if not isinstance(await client.list(resource, limit=1), ApiError):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{resource.plural} are not served")


async def test_a_report_is_taken_whole_and_replaces_the_last(client: Client) -> None:
    node, clock = f"node-{secrets.token_hex(4)}", WallClock()
    store, now_s = SeriesStore(metric_kind.retention_s()), clock.time()
    for key, value in (
        ((metric_kind.NODE_CPU,), 4.1),
        ((metric_kind.NODE_MEMORY,), 8 * GIB),
        ((metric_kind.SYSTEM_CPU,), 0.3),
        ((metric_kind.SYSTEM_MEMORY,), GIB),
        ((metric_kind.NUMA_CPU, "0"), 4.1),
        ((metric_kind.NUMA_MEMORY, "0"), 8 * GIB),
        ((metric_kind.POD_CPU, "u"), 0.5),
        ((metric_kind.POD_MEMORY, "u"), GIB),
        ((metric_kind.APPLICATION_CPU, "nginx"), 1.0),
        ((metric_kind.APPLICATION_MEMORY, "nginx"), GIB),
    ):
        store.add(key, now_s, value)
    sight = MetricSight(
        pods=(PodMeta(uid="u", namespace="work", name="web"),),
        applications=(HostApplicationSpec(name="nginx", priority="koord-prod", qos="LS"),),
        numa_nodes=(0,),
        prediction=PeakPrediction(reclaimable=ResourceAmount(1450, GIB), peak=ResourceAmount(2050, GIB)),
    )
    unwrap(await client.create(NODE_METRICS, {"metadata": {"name": node}, "spec": {}}))
    try:
        async with InformerFactory(client, clock) as informers:
            follow = informers.for_resource(NODE_METRICS, fields=f"metadata.name={node}")
            await informers.wait_for_cache_sync(30)
            seen = [sight]
            reporter = NodeMetricReporter(client, clock, node, store, follow, lambda: seen[0])
            assert await reporter.report(), reporter.problem
            assert not reporter.problem
            status = unwrap(await client.dynamic.get(NODE_METRICS, node))["status"]
            assert status["nodeMetric"]["nodeUsage"]["resources"] == {"cpu": "4100m", "memory": "8Gi"}
            assert status["podsMetric"][0]["podUsage"]["resources"]["cpu"] == "500m"
            assert status["prodPeakMetric"]["resource"]["resources"]["cpu"] == "2050m"
            assert status["hostApplicationMetric"][0]["name"] == "nginx"
            seen[0] = MetricSight(pods=())
            assert await reporter.report(), reporter.problem
            status = unwrap(await client.dynamic.get(NODE_METRICS, node))["status"]
            assert "prodPeakMetric" not in status
            assert not status.get("podsMetric")
    finally:
        await client.delete(NODE_METRICS, node)


async def test_a_topology_is_made_changed_and_left_alone(client: Client) -> None:
    name, clock = f"node-{secrets.token_hex(4)}", WallClock()
    node = unwrap(await client.create(NODES, {"metadata": {"name": name}}))
    try:
        async with InformerFactory(client, clock) as informers:
            follow = informers.for_resource(NODE_RESOURCE_TOPOLOGIES, fields=f"metadata.name={name}")
            await informers.wait_for_cache_sync(30)
            seen = [TopologySight(node=node, pods=(), info=INFO)]
            reporter = TopologyReporter(
                client, clock, Host(), FakeKubelet(), follow, lambda: seen[0], TopologyReporterSettings()
            )

            async def settled() -> str:
                """Look until the informer has caught up with the last write."""
                version = ""
                for _ in range(100):
                    await reporter.sync()
                    found = unwrap(await client.get(NODE_RESOURCE_TOPOLOGIES, name)).metadata.resource_version
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
            pinned = PodMeta(uid="p", annotations={"scheduling.koordinator.sh/resource-status": text})
            seen[0] = TopologySight(node=node, pods=(pinned,), info=INFO)
            assert await settled() != first
            found = unwrap(await client.get(NODE_RESOURCE_TOPOLOGIES, name))
            pools = json.loads(found.metadata.annotations["node.koordinator.sh/cpu-shared-pools"])
            assert [pool["cpuset"] for pool in pools] == ["0-1"]
            assert found.metadata.owner_references[0].uid == node.metadata.uid
            assert [one.name for one in found.zones[0].resources] == ["cpu", "hugepages-1Gi", "hugepages-2Mi", "memory"]
    finally:
        await client.delete(NODE_RESOURCE_TOPOLOGIES, name)
        await client.delete(NODES, name)
