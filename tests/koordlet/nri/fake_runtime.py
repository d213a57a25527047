"""A container runtime as NRI plugins see it, on a real unix socket: it accepts, registers, configures, synchronizes.

Frames are packed and unpacked here, apart from the code under test. Like containerd it reads the beginning of each
message through a buffer of 4096 bytes, and closes the connection when the frame is longer; and it sends the first
4096 bytes of a message and the rest as two frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Any

import msgspec

from koord.wire.nri_messages import (
    PLUGIN_SERVICE,
    RUNTIME_SERVICE,
    ConfigureRequest,
    ConfigureResponse,
    ContainerUpdate,
    NriContainer,
    NriPodSandbox,
    RegisterPluginRequest,
    SynchronizeRequest,
    SynchronizeResponse,
    UpdateContainersRequest,
    UpdateContainersResponse,
    decode_message,
    encode_message,
)
from koord.wire.ttrpc import REQUEST_CODEC, RESPONSE_CODEC, TtrpcRequest, TtrpcResponse, TtrpcStatus

BUFFER = 4096
SERVED, CALLED = 1, 2  # from the plugin's side
PATIENCE_S = 20.0


class PluginGone(Exception):
    """The plugin closed the connection, or the runtime dropped it."""


class FakeRuntime:
    """One runtime; `peers` are the plugins that connected, oldest first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.configuration = ConfigureRequest(
            runtime_name="fake", runtime_version="1.0", registration_timeout=5000, request_timeout=2000
        )
        self.pods: tuple[NriPodSandbox, ...] = ()
        self.containers: tuple[NriContainer, ...] = ()
        self.chunk = 100  # containers of one Synchronize message
        self.ends_after_parts: int | None = None  # messages of a Synchronize after which the runtime ends
        self.registers = True  # whether RegisterPlugin is answered
        self.answers_first = False  # RegisterPlugin is answered before Configure is called
        self.drops_at_once = False
        self.refusal: TtrpcStatus | None = None
        self.failed: tuple[ContainerUpdate, ...] = ()
        self.peers: list[RuntimePeer] = []
        self._server: asyncio.Server | None = None
        self._accepted = asyncio.Condition()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, str(self.path))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in self.peers:
            await peer.close()
        self.path.unlink(missing_ok=True)

    async def peer(self, number: int = 0) -> RuntimePeer:
        """Wait for a plugin that is registered and synchronized."""
        async with asyncio.timeout(PATIENCE_S), self._accepted:
            await self._accepted.wait_for(lambda: len(self.peers) > number)
        peer = self.peers[number]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.shield(peer.ready)
        return peer

    async def accepted(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self._accepted:
            await self._accepted.wait_for(lambda: len(self.peers) >= number)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RuntimePeer(self, reader, writer)
        self.peers.append(peer)
        async with self._accepted:
            self._accepted.notify_all()
        if self.drops_at_once:
            await peer.close()


class RuntimePeer:
    """One connected plugin, from the runtime's side."""

    def __init__(self, runtime: FakeRuntime, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.registered: RegisterPluginRequest | None = None
        self.events = 0
        self.synchronize_answers: list[SynchronizeResponse] = []
        self.updates: list[UpdateContainersRequest] = []
        self.gone = asyncio.Event()
        self._runtime = runtime
        self._reader = reader
        self._writer = writer
        self._stream = 1
        self._calls: dict[int, asyncio.Future[TtrpcResponse]] = {}
        self._buffers = {SERVED: b"", CALLED: b""}
        self._tasks = {asyncio.create_task(self._read())}

    async def call(self, method: str, message: msgspec.Struct | bytes, *, timeout_s: float = 2.0) -> bytes:
        """Return the answer's payload; raises TtrpcError for an error and PluginGone."""
        stream, self._stream = self._stream, self._stream + 2
        return await self.wait(self.send(method, message, stream=stream, timeout_s=timeout_s))

    def send(
        self,
        method: str,
        message: msgspec.Struct | bytes,
        *,
        stream: int,
        service: str = PLUGIN_SERVICE,
        timeout_s: float = 2.0,
    ) -> asyncio.Future[TtrpcResponse]:
        payload = message if isinstance(message, bytes) else encode_message(message)
        request = TtrpcRequest(
            service=service,
            method=method,
            payload=payload,
            timeout_nano=int(timeout_s * 1e9),
            metadata={"ns": "k8s.io"},
        )
        answer: asyncio.Future[TtrpcResponse] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        self.send_frame(SERVED, stream, 1, REQUEST_CODEC.encode(request))
        return answer

    async def wait(self, answer: asyncio.Future[TtrpcResponse]) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            response = await answer
        if response.status is not None and response.status.code:
            raise TtrpcError(response.status)
        return response.payload

    def send_frame(self, connection: int, stream: int, kind: int, data: bytes) -> None:
        message = struct.pack(">IIBB", len(data), stream, kind, 0) + data
        for part in (message[:BUFFER], message[BUFFER:]):
            if part:
                self.send_raw(struct.pack(">II", connection, len(part)) + part)

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    def stop_reading(self) -> None:
        """Take nothing more from the socket, so that the plugin's writes have to wait."""
        for task in self._tasks:
            task.cancel()
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        self._finish()

    # Reading -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                connection, size = struct.unpack(">II", await self._reader.readexactly(8))
                payload = await self._reader.readexactly(size)
                if not self._buffers[connection] and size > BUFFER:
                    break  # as Go does: the frame does not fit into the buffer that was offered
                self._buffers[connection] += payload
                self._take_messages(connection)
        self._writer.close()
        self._finish()

    def _finish(self) -> None:
        self.gone.set()
        waited: list[asyncio.Future[Any]] = [self.ready, *self._calls.values()]
        for answer in waited:
            if not answer.done():
                answer.set_exception(PluginGone())
                answer.exception()  # not everybody waits for it

    def _take_messages(self, connection: int) -> None:
        while len(buffer := self._buffers[connection]) >= 10:
            size, stream, kind, _ = struct.unpack(">IIBB", buffer[:10])
            if len(buffer) < 10 + size:
                return
            data, self._buffers[connection] = buffer[10 : 10 + size], buffer[10 + size :]
            if connection == SERVED and kind == 2:
                answer = self._calls.pop(stream, None)
                if answer is not None and not answer.done():
                    answer.set_result(RESPONSE_CODEC.decode(data))
            elif connection == CALLED and kind == 1:
                task = asyncio.create_task(self._serve(stream, REQUEST_CODEC.decode(data)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    # The service of the runtime --------------------------------------------------------------------------------------

    async def _serve(self, stream: int, request: TtrpcRequest) -> None:
        assert request.service == RUNTIME_SERVICE
        if request.method == "RegisterPlugin":
            self.registered = decode_message(RegisterPluginRequest, request.payload)
            await self._register(stream)
        else:
            assert request.method == "UpdateContainers"
            self.updates.append(decode_message(UpdateContainersRequest, request.payload))
            answer = encode_message(UpdateContainersResponse(failed=self._runtime.failed))
            self._respond(stream, TtrpcResponse(payload=answer))

    async def _register(self, stream: int) -> None:
        runtime = self._runtime
        if runtime.refusal is not None:
            self._respond(stream, TtrpcResponse(status=runtime.refusal))
            return
        if runtime.answers_first:
            self._respond(stream, TtrpcResponse())
        if not runtime.registers:
            return
        try:
            self.events = decode_message(ConfigureResponse, await self.call("Configure", runtime.configuration)).events
            await self._synchronize()
        except TtrpcError:
            self._writer.close()  # a plugin that fails here is dropped
            return
        except PluginGone:
            return
        if not runtime.answers_first:
            self._respond(stream, TtrpcResponse())
        if not self.ready.done():
            self.ready.set_result(None)

    async def _synchronize(self) -> None:
        runtime = self._runtime
        parts = [
            SynchronizeRequest(containers=runtime.containers[at : at + runtime.chunk], more=True)
            for at in range(0, len(runtime.containers), runtime.chunk)
        ]
        first = SynchronizeRequest(pods=runtime.pods, more=bool(parts))
        if parts:
            parts[-1] = msgspec.structs.replace(parts[-1], more=False)
        for part in (first, *parts):
            if len(self.synchronize_answers) == runtime.ends_after_parts:
                self._writer.close()
                raise PluginGone
            answer = decode_message(SynchronizeResponse, await self.call("Synchronize", part))
            self.synchronize_answers.append(answer)

    def _respond(self, stream: int, response: TtrpcResponse) -> None:
        self.send_frame(CALLED, stream, 2, RESPONSE_CODEC.encode(response))


class TtrpcError(Exception):
    """An answer with a status other than OK."""

    def __init__(self, status: TtrpcStatus) -> None:
        super().__init__(str(status))
        self.code = status.code
        self.text = status.message
