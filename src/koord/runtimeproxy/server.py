"""The gRPC server that the kubelet talks to. It has no list of methods: whatever is called passes to the runtime."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from koord.runtimeproxy.backend import SERVER_OPTIONS, RuntimeBackend, UnaryReply, end_to_end
from koord.runtimeproxy.interception import HookRefusal, InterceptedCall, Interceptor
from koord.runtimeproxy.metrics import RuntimeProxyMetrics
from koord.wire import cri

STOP_GRACE_S = 5.0
_OTHER = "other"  # the metric's label for a method that CRI does not have today
# One message each way. They would pass as streams as well, which costs a third of a millisecond more.
_RUNTIME_METHODS = (
    *("Version", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus", "ListPodSandbox"),
    *("CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "ListContainers", "ContainerStatus"),
    *("UpdateContainerResources", "ReopenContainerLog", "ExecSync", "Exec", "Attach", "PortForward"),
    *("ContainerStats", "ListContainerStats", "PodSandboxStats", "ListPodSandboxStats", "UpdateRuntimeConfig"),
    *("Status", "CheckpointContainer", "ListMetricDescriptors", "ListPodSandboxMetrics", "RuntimeConfig"),
    "UpdatePodSandboxResources",
)
_IMAGE_METHODS = ["ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo"]
UNARY_METHODS = {
    **{cri.runtime_method(name): name for name in _RUNTIME_METHODS},
    **{f"/{cri.IMAGE_SERVICE}/{name}": name for name in _IMAGE_METHODS},
}
_SOCKET_UMASK = 0o117  # root and its group, as the runtime's own socket


class RuntimeProxyServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """RuntimeProxyServer serves a Unix socket and passes every call on."""

    def __init__(self, backend: RuntimeBackend, interceptor: Interceptor, metrics: RuntimeProxyMetrics) -> None:
        self._backend = backend
        self._interceptor = interceptor
        self._metrics = metrics
        self._server: grpc.aio.Server | None = None
        self._streams: set[asyncio.Task[Any]] = set()

    async def start(self, endpoint: str) -> str:
        """Bind and serve; return why that failed, or nothing."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self,))
        before = os.umask(_SOCKET_UMASK)
        try:
            server.add_insecure_port(f"unix://{endpoint}")
        except RuntimeError as error:
            return f"cannot bind {endpoint}: {error}"
        finally:
            os.umask(before)
        await server.start()
        self._server = server
        return ""

    async def stop(self) -> None:
        """Take no more calls and let those under way end for some seconds; streams are ended, as they never end."""
        for task in self._streams:
            task.cancel()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of any method: gRPC calls this for each call."""
        method: str = details.method

        if method in UNARY_METHODS:

            async def unary(message: bytes, context: Any) -> bytes:
                return await self._unary(method, message, context)

            return grpc.unary_unary_rpc_method_handler(unary)

        async def stream(messages: AsyncIterator[bytes], context: Any) -> None:
            task = asyncio.current_task()
            assert task is not None  # gRPC runs each call in one
            self._streams.add(task)
            try:
                await self._stream(method, messages, context)
            finally:
                self._streams.discard(task)

        return grpc.stream_stream_rpc_method_handler(stream)

    async def _unary(self, method: str, message: bytes, context: Any) -> bytes:
        metadata = end_to_end(context.invocation_metadata())
        latest: list[UnaryReply] = []

        async def forward(changed: bytes) -> bytes:
            reply = await self._backend.unary(method, changed, metadata, context.time_remaining())
            latest.append(reply)
            return reply.message

        handler = self._interceptor.handlers.get(method)
        answer: bytes | HookRefusal
        try:
            if handler is None:
                answer = await forward(message)
            else:
                answer = await handler(InterceptedCall(message, forward, context.time_remaining))
        except grpc.aio.AioRpcError as error:
            initial = end_to_end(error.initial_metadata())
            if initial:
                await context.send_initial_metadata(initial)
            return await self._fail(method, error, context)
        if isinstance(answer, HookRefusal):
            self._count(method, grpc.StatusCode.UNKNOWN)
            return await context.abort(grpc.StatusCode.UNKNOWN, answer.message)  # type: ignore[no-any-return]
        for reply in latest:
            if reply.initial:
                await context.send_initial_metadata(reply.initial)
            context.set_trailing_metadata(reply.trailing)
        self._count(method, grpc.StatusCode.OK)
        return answer

    async def _stream(self, method: str, messages: AsyncIterator[bytes], context: Any) -> None:
        metadata = end_to_end(context.invocation_metadata())
        call = self._backend.stream(method, messages, metadata, context.time_remaining())
        try:
            initial = end_to_end(await call.initial_metadata())
            if initial:
                await context.send_initial_metadata(initial)
            async for message in call:
                await context.write(message)
        except grpc.aio.AioRpcError as error:
            await self._fail(method, error, context)
        finally:
            call.cancel()  # does nothing to a call that has ended
        context.set_trailing_metadata(end_to_end(await call.trailing_metadata()))
        self._count(method, grpc.StatusCode.OK)

    async def _fail(self, method: str, error: grpc.aio.AioRpcError, context: Any) -> bytes:
        """Give the kubelet the runtime's error as it is: code, message, details and metadata."""
        self._count(method, error.code())
        trailing = end_to_end(error.trailing_metadata())
        return await context.abort(error.code(), error.details() or "", trailing)  # type: ignore[no-any-return]

    def _count(self, method: str, code: grpc.StatusCode) -> None:
        self._metrics.requests.labels(UNARY_METHODS.get(method, _OTHER), code.name).inc()
