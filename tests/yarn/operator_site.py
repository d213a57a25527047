"""An API server in this process and YARN clusters on loopback, with an operator between them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from koord.api.koordinator.protocol import A_THIRD_PARTY_ALLOCATIONS
from koord.api.kubernetes.builtin_kinds import NAMESPACES, NODES, PODS
from koord.embedded.cluster import ADMIN, ClusterSettings, EmbeddedCluster, InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import WallClock
from koord.telemetry.metrics import MetricRegistry
from koord.yarn.capacity import BatchAmounts, held_by_yarn
from koord.yarn.hadoop_config import YarnCluster
from koord.yarn.operator import OperatorSettings, YarnOperator
from koord.yarn.resource_manager import Caller, ResourceManagerClient

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
QUICK = OperatorSettings(interval_s=0.02, longest_wait_s=0.05, absence_grace_s=0.2)
PATIENCE_S = 20.0


class OperatorSite:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def add_node(self, name: str, cpu_milli: int = 4000, memory: str = "4Gi") -> None:
        made = {"metadata": {"name": name}, "status": {"allocatable": {CPU: str(cpu_milli), MEMORY: memory}}}
        unwrap(await self.client.dynamic.create(NODES, made))
        await self.lend(name, cpu_milli, memory)

    async def lend(self, name: str, cpu_milli: int, memory: str) -> None:
        amounts = {CPU: str(cpu_milli), MEMORY: memory}
        patch = {"status": {"allocatable": amounts, "capacity": amounts}}
        unwrap(await self.client.dynamic.patch(NODES, name, patch, kind="merge", subresource="status"))

    async def annotate(self, name: str, **annotations: str | None) -> None:
        patch = {"metadata": {"annotations": {f"node.koordinator.sh/{k}": v for k, v in annotations.items()}}}
        unwrap(await self.client.dynamic.patch(NODES, name, patch, kind="merge"))

    async def add_pod(
        self, name: str, node: str, requests: dict[str, str] | None = None, node_id: str = "", cluster: str = ""
    ) -> None:
        """Add a pod; one with `node_id` is a NodeManager."""
        annotations = {"yarn.hadoop.apache.org/node-id": node_id} if node_id else {}
        if cluster:
            annotations["yarn.hadoop.apache.org/cluster-id"] = cluster
        amounts = requests or {}
        made: dict[str, Any] = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {"app.kubernetes.io/component": "node-manager"} if node_id else {},
                "annotations": annotations,
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}],
            },
        }
        unwrap(await self.client.dynamic.create(PODS, made, namespace="default"))

    async def remove_pod(self, name: str) -> None:
        unwrap(await self.client.dynamic.delete(PODS, name, "default", grace_seconds=0))

    async def held(self, node: str) -> BatchAmounts | None:
        found = unwrap(await self.client.dynamic.get(NODES, node))
        return held_by_yarn(found["metadata"].get("annotations") or {})

    async def third_parties(self, node: str) -> str | None:
        found = unwrap(await self.client.dynamic.get(NODES, node))
        text: str | None = (found["metadata"].get("annotations") or {}).get(A_THIRD_PARTY_ALLOCATIONS)
        return text


@asynccontextmanager
async def operator_site() -> AsyncIterator[OperatorSite]:
    cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1))
    await cluster.start()
    try:
        assert cluster.server is not None
        client = Client(InProcessTransport(cluster.server, ADMIN), clock=WallClock(), qps=0, burst=0)
        if not any(one.metadata.name == "default" for one in unwrap(await client.list(NAMESPACES)).items):
            unwrap(await client.dynamic.create(NAMESPACES, {"metadata": {"name": "default"}}))
        yield OperatorSite(client)
    finally:
        await cluster.stop()


@asynccontextmanager
async def operating(
    site: OperatorSite, *clusters: YarnCluster, settings: OperatorSettings = QUICK, user: str = "yarn"
) -> AsyncIterator[YarnOperator]:
    """Run an operator that leads."""
    clock = WallClock()
    informers = InformerFactory(site.client, clock)
    caller = Caller(user=user, random_bytes=secrets.token_bytes)
    operator = YarnOperator(
        site.client,
        informers,
        clock,
        [ResourceManagerClient(one, caller) for one in clusters],
        settings,
        registry=MetricRegistry(),
    )
    await operator.start()
    informers.start()
    await informers.wait_for_cache_sync(PATIENCE_S)
    await operator.on_synced()
    leading = asyncio.create_task(operator.lead())
    try:
        yield operator
    finally:
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await operator.stop()
        await informers.stop()


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for a condition of this process."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110 - the operator tells nobody
            await asyncio.sleep(0.01)


async def until_held(site: OperatorSite, node: str, amounts: BatchAmounts) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await site.held(node) != amounts:  # noqa: ASYNC110 - the operator tells nobody
            await asyncio.sleep(0.01)
