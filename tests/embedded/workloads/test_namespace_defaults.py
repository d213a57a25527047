"""Every namespace has its default ServiceAccount and the server's CA, and the server says where it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS, SERVICES
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import WorkloadCluster, workload_cluster

MINE = ("serviceaccount", "root-ca-certificate-publisher", "namespace")
SYSTEM = ("default", "kube-node-lease", "kube-public", "kube-system")


async def has(here: WorkloadCluster, namespace: str) -> Any:
    return await here.until(lambda: here.get(SERVICE_ACCOUNTS, "default", namespace))


def test_accounts_are_made_for_old_and_new_namespaces_and_come_back() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            for namespace in SYSTEM:
                await has(here, namespace)
            await here.create(NAMESPACES, {"metadata": {"name": "team"}})
            first = await has(here, "team")
            await here.delete(SERVICE_ACCOUNTS, "default", "team")

            async def another() -> bool:
                found = await here.get(SERVICE_ACCOUNTS, "default", "team")
                return found is not None and found.metadata.uid != first.metadata.uid

            await here.until(another)
            assert await here.get(CONFIG_MAPS, "kube-root-ca.crt", "team") is None  # nobody reaches this server by TLS

            async def gone() -> bool:
                return await here.get(NAMESPACES, "team", None) is None

            await here.delete(NAMESPACES, "team", None)
            await here.until(gone)

    run_virtual(story)


async def raw(client: Client, path: str) -> Any:
    return (await client.raw(ApiRequest(method="GET", path=path))).body.plain()


async def test_a_cluster_says_where_it_is_and_by_which_authority(tmp_path: Path) -> None:
    def workloads(context: Any) -> ControllerManager:
        return ControllerManager(
            context.client, context.informers, context.clock, context.seed, only=MINE, root_ca=context.root_ca
        )

    for _ in range(2):  # the second start finds them, and another port
        cluster = EmbeddedCluster(ClusterSettings(port=0, data_dir=tmp_path), [("workloads", workloads)])
        await cluster.start()
        try:
            client = cluster.client
            assert client is not None
            port = int(cluster.url.rpartition(":")[2])
            service = await client.get(SERVICES, "kubernetes", "default")
            assert not isinstance(service, ApiError)
            plain = await raw(client, "/api/v1/namespaces/default/services/kubernetes")
            assert plain["spec"]["clusterIP"] == "10.96.0.1"
            assert plain["spec"]["ports"] == [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}]
            assert plain["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
            endpoints = await raw(client, "/api/v1/namespaces/default/endpoints/kubernetes")
            assert endpoints["subsets"] == [
                {"addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}
            ]
            part = await raw(client, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
            assert (part["addressType"], part["ports"][0]["port"]) == ("IPv4", port)
            assert part["endpoints"] == [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}]
            authority = (tmp_path / "pki" / "ca.crt").read_text()
            for namespace in SYSTEM:
                await published(client, namespace, authority)
            await client.patch(
                CONFIG_MAPS, "kube-root-ca.crt", {"data": {"ca.crt": "x", "y": "z"}}, "default", kind="merge"
            )
            await published(client, "default", authority)
        finally:
            await cluster.stop()


async def published(client: Client, namespace: str, authority: str) -> None:
    async with asyncio.timeout(20):
        while True:
            found = await client.get(CONFIG_MAPS, "kube-root-ca.crt", namespace)
            if not isinstance(found, ApiError) and found.data == {"ca.crt": authority}:
                assert found.metadata.annotations["kubernetes.io/description"].startswith("Contains a CA bundle")
                return
            await asyncio.sleep(0.01)
