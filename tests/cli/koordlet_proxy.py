"""A transport to the embedded API server that reaches koordlets as kube-apiserver does, by the proxy of their pods."""

from __future__ import annotations

import re
from collections.abc import Mapping

from koord.api.kubernetes.builtin_kinds import NAMESPACES, NODES, PODS
from koord.embedded.cluster import EmbeddedCluster, InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, BytesResponseBody, WatchStream
from koord.telemetry.clock import Clock
from koord.telemetry.component_server import ComponentServer
from koord.telemetry.http_routing import HttpCall

NAMESPACE, PORT = "koordinator-system", 9316
_PROXY = re.compile(rf"/api/v1/namespaces/{NAMESPACE}/pods/http:([^:]+):{PORT}/proxy(/.*)")


class KoordletProxyTransport:
    """Forwards requests to `endpoints`, by the name of the pod; all others go to the API server."""

    def __init__(self, cluster: EmbeddedCluster, endpoints: Mapping[str, ComponentServer]) -> None:
        assert cluster.server is not None, "started"
        self._inner = InProcessTransport(cluster.server)
        self._endpoints = endpoints

    async def send(self, request: ApiRequest) -> ApiResponse:
        found = _PROXY.fullmatch(request.path)
        if found is None or found[1] not in self._endpoints:
            return await self._inner.send(request)
        query = {name: (value,) for name, value in request.query.items()}
        reply = await self._endpoints[found[1]].answer(HttpCall(method="GET", path=found[2], query=query))
        return ApiResponse(status=reply.status, body=BytesResponseBody(reply.body))

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        return await self._inner.watch(request)

    async def close(self) -> None:
        await self._inner.close()


def proxy_client(cluster: EmbeddedCluster, clock: Clock, endpoints: Mapping[str, ComponentServer]) -> Client:
    return Client(KoordletProxyTransport(cluster, endpoints), clock=clock, qps=0, burst=0)


async def run_koordlet_pod(client: Client, name: str, node: str) -> None:
    """Create the pod of a koordlet that runs on a node."""
    pod = {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"koord-app": "koordlet"}},
        "spec": {"nodeName": node, "containers": [{"name": "koordlet", "image": "koord"}]},
    }
    unwrap(await client.create(PODS, pod))
    status = {"status": {"phase": "Running"}}
    unwrap(await client.patch(PODS, name, status, NAMESPACE, kind="merge", subresource="status"))


async def create_namespace(client: Client) -> None:
    """Create the namespace in which koordlets run."""
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}}))


async def create_node(client: Client, name: str) -> None:
    unwrap(await client.create(NODES, {"metadata": {"name": name}}))
