"""A whole container runtime in memory that serves CRI as bytes: it keeps pods and containers, streams events, and
can be told to fail or to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from koord.wire import cri, raw_fields
from koord.wire.cri import CriContainerState
from koord.wire.protobuf import WireError
from koord.wire.raw_fields import encode_chunk, encode_int, encode_string, encode_string_map

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 16 << 20),
    ("grpc.absolute_max_metadata_size", 16 << 20),
)
METHOD = cri.runtime_method
EVENTS = METHOD("GetContainerEvents")
CHAT = "/runtime.v9.FutureService/Chat"


class Seen:
    """One call as the runtime saw it."""

    def __init__(self, method: str, message: bytes, metadata: dict[str, Any], remaining_s: float | None) -> None:
        self.method = method
        self.message = message
        self.metadata = metadata
        self.remaining_s = remaining_s


class FakeRuntime(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self) -> None:
        self.sandboxes: dict[str, bytes] = {}  # id to RunPodSandboxRequest
        self.containers: dict[str, tuple[str, bytes]] = {}  # id to its sandbox and CreateContainerRequest
        self.states: dict[str, CriContainerState] = {}  # of containers that do not run
        self.stop_failures: dict[str, tuple[grpc.StatusCode, str]] = {}  # by container
        self.ignores_filter = False
        self.seen: list[Seen] = []
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.arrived: asyncio.Queue[str] = asyncio.Queue()
        self.failures: dict[str, tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]] = {}
        self.held: dict[str, asyncio.Event] = {}  # calls of the method wait for the event
        self.events: asyncio.Queue[bytes] = asyncio.Queue()
        self.replies: dict[str, bytes] = {}
        self._ids = 0
        self._server: grpc.aio.Server | None = None

    async def start(self, path: str) -> None:
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix://{path}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    def last(self, name: str) -> bytes:
        """Return the message of the newest call of a method."""
        return next(one.message for one in reversed(self.seen) if one.method == METHOD(name))

    def names(self) -> list[str]:
        return [one.method.rpartition("/")[2] for one in self.seen]

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method: str = details.method
        if method == EVENTS:
            return grpc.unary_stream_rpc_method_handler(self._events)
        if method == CHAT:
            return grpc.stream_stream_rpc_method_handler(self._chat)

        async def unary(message: bytes, context: Any) -> bytes:
            return await self._unary(method, message, context)

        return grpc.unary_unary_rpc_method_handler(unary)

    async def _unary(self, method: str, message: bytes, context: Any) -> bytes:
        self.seen.append(Seen(method, message, dict(context.invocation_metadata()), context.time_remaining()))
        self.arrived.put_nowait(method)
        try:
            if method in self.held:
                await self.held[method].wait()
        except asyncio.CancelledError:
            self.cancelled.put_nowait(method)
            raise
        if method in self.failures:
            code, text, trailing = self.failures[method]
            await context.abort(code, text, trailing)
        await context.send_initial_metadata((("runtime-initial", "yes"),))
        context.set_trailing_metadata((("runtime-trailing", "yes"), ("runtime-bin", b"\x00\xff")))
        if method in self.replies:
            return self.replies[method]
        try:
            if method == METHOD("StopContainer") and (id := raw_fields.string_of(message, 1)) in self.stop_failures:
                await context.abort(*self.stop_failures[id])
            return self._act(method.rpartition("/")[2], message)
        except WireError as error:
            return await context.abort(grpc.StatusCode.INTERNAL, f"grpc: error unmarshalling request: {error}")  # type: ignore[no-any-return]

    def _act(self, name: str, message: bytes) -> bytes:
        nameless = ("RunPodSandbox", "Version", "ListContainers", "ListPodSandbox")
        id = raw_fields.string_of(message, 1) if name not in nameless else ""
        if name == "RunPodSandbox":
            self._ids += 1
            self.sandboxes[f"sandbox{self._ids}"] = message
            return encode_string(1, f"sandbox{self._ids}")
        if name == "CreateContainer":
            self._ids += 1
            self.containers[f"container{self._ids}"] = (id, message)
            return encode_string(1, f"container{self._ids}")
        if name == "RemovePodSandbox":
            self.sandboxes.pop(id, None)
        if name == "RemoveContainer":
            self.containers.pop(id, None)
        if name == "ListPodSandbox":
            return b"".join(encode_chunk(1, _listed_pod(id, one)) for id, one in self.sandboxes.items())
        if name == "ListContainers":
            return b"".join(encode_chunk(1, self._listed(id)) for id in self.containers if self._matches(id, message))
        if name == "StopContainer" and self.states.get(id) is not CriContainerState.CREATED:
            self.states[id] = CriContainerState.EXITED
        if name == "Version":
            return encode_string(1, "0.1.0") + encode_string(2, "fake")
        return b""

    def _matches(self, id: str, request: bytes) -> bool:
        wanted = raw_fields.string_map_of(raw_fields.message_of(request, 1) or b"", 4)
        return self.ignores_filter or wanted.items() <= self._labels(id).items()

    def _labels(self, id: str) -> dict[str, str]:
        return raw_fields.string_map_of(raw_fields.message_of(self.containers[id][1], 2) or b"", 9)

    def _listed(self, id: str) -> bytes:
        sandbox, create = self.containers[id]
        config = raw_fields.message_of(create, 2) or b""
        return (
            encode_string(1, id)
            + encode_string(2, sandbox)
            + encode_chunk(3, raw_fields.message_of(config, 1) or b"")
            + encode_int(6, self.states.get(id, CriContainerState.RUNNING))
            + encode_string_map(8, self._labels(id))
            + encode_string_map(9, raw_fields.string_map_of(config, 10))
        )

    async def _events(self, message: bytes, context: Any) -> AsyncIterator[bytes]:
        self.seen.append(Seen(EVENTS, message, dict(context.invocation_metadata()), context.time_remaining()))
        try:
            while True:
                yield await self.events.get()
        except asyncio.CancelledError:
            self.cancelled.put_nowait(EVENTS)
            raise

    async def _chat(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await context.send_initial_metadata((("chat-initial", "yes"),))
        count = 0
        async for message in messages:
            count += 1
            yield message[::-1]
        context.set_trailing_metadata((("chat-count", str(count)),))
        if CHAT in self.failures:
            code, text, trailing = self.failures[CHAT]
            await context.abort(code, text, trailing)


def _listed_pod(id: str, run: bytes) -> bytes:
    config = raw_fields.message_of(run, 1) or b""
    return (
        encode_string(1, id)
        + encode_chunk(2, raw_fields.message_of(config, 1) or b"")
        + encode_string_map(5, raw_fields.string_map_of(config, 6))
        + encode_string_map(6, raw_fields.string_map_of(config, 7))
        + encode_string(7, raw_fields.string_of(run, 2))
    )
