"""A kubelet's pod resources in memory: it answers what a test put there, and can be told to fail."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from koord.wire import pod_resources
from koord.wire.raw_fields import encode_chunk, encode_string, string_of

ALLOCATABLE = encode_chunk(1, encode_string(1, "example.com/x")) + encode_string(99, "later")


def pod_message(name: str, devices: bytes = b"", namespace: str = "default") -> bytes:
    """Return a PodResources with one container."""
    return encode_string(1, name) + encode_string(2, namespace) + encode_chunk(3, encode_string(1, "main") + devices)


class FakeKubelet(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self) -> None:
        self.pods: dict[str, bytes] = {}
        self.broken = False
        self.calls: list[str] = []
        self._server: grpc.aio.Server | None = None

    async def start(self, path: str) -> None:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix://{path}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method: str = details.method
        known = (pod_resources.LIST, pod_resources.GET, pod_resources.ALLOCATABLE, pod_resources.LIST_V1ALPHA1)
        if method not in known:
            return None

        async def unary(message: bytes, context: Any) -> bytes:
            self.calls.append(method)
            if self.broken:
                return b"\xff"
            if method == pod_resources.ALLOCATABLE:
                return ALLOCATABLE
            if method != pod_resources.GET:
                return b"".join(encode_chunk(1, pod) for pod in self.pods.values())
            found = self.pods.get(string_of(message, 1))
            if found is None:
                return await context.abort(grpc.StatusCode.UNKNOWN, "pod is not found in podResources")  # type: ignore[no-any-return]
            return encode_chunk(1, found)

        return grpc.unary_unary_rpc_method_handler(unary)
