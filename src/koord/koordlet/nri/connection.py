"""This module carries ttrpc calls both ways over one NRI socket: it serves one connection and calls on the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from koord.wire.protobuf import WireError
from koord.wire.ttrpc import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    PLUGIN_CONNECTION,
    REQUEST,
    REQUEST_CODEC,
    RESOURCE_EXHAUSTED,
    RESPONSE,
    RESPONSE_CODEC,
    RUNTIME_CONNECTION,
    STREAM_DATA,
    UNAVAILABLE,
    MuxDecoder,
    OversizedFrame,
    TtrpcDecoder,
    TtrpcFrame,
    TtrpcRequest,
    TtrpcResponse,
    TtrpcStatus,
    check_request_stream,
    encode_muxed_frame,
    error_status,
    request_frame,
    response_frame,
)

MAX_REQUESTS = 256  # that are answered at the same time; a runtime sends one after the other
_READ_BYTES = 1 << 16
_WRITE_S = 10.0  # a peer that takes nothing for so long is given up
_CANCEL_S = 1.0  # for answers that are under way when the connection closes
_LOG = logging.getLogger(__name__)

RequestServer = Callable[[TtrpcRequest], Awaitable[TtrpcResponse]]


class NriConnection:
    """NriConnection is one open socket. `ended` gets the reason as soon as it is of no more use; `close` frees it.

    `serve` answers the runtime's requests, each in a task of its own, so answers may leave in another order.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, serve: RequestServer) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = reader
        self._writer = writer
        self._serve = serve
        self._mux = MuxDecoder()
        self._requests = TtrpcDecoder()
        self._responses = TtrpcDecoder()
        self._last_request = 0
        self._next_call = 1
        self._calls: dict[int, asyncio.Future[bytes | TtrpcStatus]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._end_after_answer = ""
        self._reading = asyncio.create_task(self._read(), name="nri-read")

    async def call(self, service: str, method: str, payload: bytes, timeout_s: float) -> bytes | TtrpcStatus:
        """Call the runtime; a TtrpcStatus says why there is no answer."""
        if self.ended.done():
            return TtrpcStatus(UNAVAILABLE, self.ended.result())
        stream, self._next_call = self._next_call, self._next_call + 2
        request = TtrpcRequest(
            service=service, method=method, payload=payload, timeout_nano=int(timeout_s * 1_000_000_000)
        )
        answer: asyncio.Future[bytes | TtrpcStatus] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(RUNTIME_CONNECTION, request_frame(stream, request))
                return await answer
        except TimeoutError:
            return TtrpcStatus(DEADLINE_EXCEEDED, f"{method} had no answer after {timeout_s:g} s")
        except OSError as error:
            self._end(f"the connection failed: {error}")
            return TtrpcStatus(UNAVAILABLE, self.ended.result())
        except WireError as error:
            return TtrpcStatus(RESOURCE_EXHAUSTED, f"{method}: {error}")
        finally:
            del self._calls[stream]

    def end_after_answer(self, why: str) -> None:
        """End the connection when the answer that is being made is sent."""
        self._end_after_answer = why

    async def close(self, why: str) -> None:
        """Close the socket and end every task; returns when all is done."""
        self._end(why)
        self._reading.cancel()
        for task in self._answers:
            task.cancel()
        _, late = await asyncio.wait({self._reading, *self._answers}, timeout=_CANCEL_S)
        for task in late:
            _LOG.error("NRI: %s goes on after its connection was closed", task.get_name())
        self._writer.close()
        try:
            async with asyncio.timeout(_CANCEL_S):
                await self._writer.wait_closed()
        except TimeoutError:  # the peer does not take what is left to send
            self._writer.transport.abort()
        except OSError as error:
            _LOG.debug("NRI: the socket failed while it was closed: %s", error)

    def _end(self, why: str) -> None:
        if self.ended.done():
            return
        self.ended.set_result(why)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_result(TtrpcStatus(UNAVAILABLE, why))

    # Reading -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while not self.ended.done():
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    cut_off = any(part.is_inside_frame for part in (self._mux, self._requests, self._responses))
                    self._end(f"the runtime closed the connection{' inside a message' if cut_off else ''}")
                    return
                for connection, piece in self._mux.feed(data):  # those of other connections are discarded
                    if connection == PLUGIN_CONNECTION:
                        for frame in self._requests.feed(piece):
                            self._take_request(frame)
                    elif connection == RUNTIME_CONNECTION:
                        for frame in self._responses.feed(piece):
                            self._take_response(frame)
                await self._drain()  # who sends and takes no answers is not read either
        except (OSError, WireError) as error:
            self._end(f"the connection failed: {error}")

    def _take_response(self, frame: TtrpcFrame | OversizedFrame) -> None:
        answer = self._calls.get(frame.stream)
        if frame.kind != RESPONSE or answer is None or answer.done():
            return  # the answer of a call that is no longer waited for
        if isinstance(frame, OversizedFrame):
            answer.set_result(TtrpcStatus(RESOURCE_EXHAUSTED, f"an answer of {frame.size} bytes was discarded"))
            return
        try:
            response = RESPONSE_CODEC.decode(frame.data)
        except WireError as error:
            answer.set_result(TtrpcStatus(INTERNAL, str(error)))
            return
        failed = response.status is not None and response.status.code
        answer.set_result(response.status if failed and response.status is not None else response.payload)

    def _take_request(self, frame: TtrpcFrame | OversizedFrame) -> None:
        """Start the answer of a request, or refuse it."""
        if frame.kind == STREAM_DATA:
            self._refuse(frame.stream, TtrpcStatus(INVALID_ARGUMENT, f"stream {frame.stream} is not open"))
        if frame.kind != REQUEST:
            return
        refusal = check_request_stream(frame.stream, self._last_request)
        if refusal is not None:
            self._refuse(frame.stream, refusal)
            return
        self._last_request = frame.stream
        if isinstance(frame, OversizedFrame):
            self._refuse(frame.stream, TtrpcStatus(RESOURCE_EXHAUSTED, f"a request of {frame.size} bytes is too long"))
            return
        if len(self._answers) >= MAX_REQUESTS:
            self._refuse(frame.stream, TtrpcStatus(RESOURCE_EXHAUSTED, f"{MAX_REQUESTS} requests are being answered"))
            return
        try:
            request = REQUEST_CODEC.decode(frame.data)
        except WireError as error:
            self._refuse(frame.stream, TtrpcStatus(INTERNAL, str(error)))
            return
        task = asyncio.create_task(self._answer(frame.stream, request), name=f"nri-{request.method}")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    # Writing -------------------------------------------------------------------------------------------------------

    async def _answer(self, stream: int, request: TtrpcRequest) -> None:
        try:
            response = await self._serve(request)
        except Exception as error:  # noqa: BLE001
            _LOG.exception("NRI: %s failed", request.method)
            response = TtrpcResponse(status=error_status(INTERNAL, f"{type(error).__name__}: {error}"))
        try:
            await self._send(PLUGIN_CONNECTION, response_frame(stream, response))
        except OSError as error:
            self._end(f"the connection failed: {error}")
        if self._end_after_answer:
            self._end(self._end_after_answer)

    def _refuse(self, stream: int, status: TtrpcStatus) -> None:
        self._writer.write(encode_muxed_frame(PLUGIN_CONNECTION, response_frame(stream, TtrpcResponse(status=status))))

    async def _send(self, connection: int, frame: TtrpcFrame) -> None:
        """Send a frame. Both of its mux frames are one write, so that nothing comes between them."""
        if not self.ended.done():
            self._writer.write(encode_muxed_frame(connection, frame))
            await self._drain()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._writer.drain()
        except TimeoutError:
            raise OSError(f"the runtime took nothing for {_WRITE_S:g} s") from None
