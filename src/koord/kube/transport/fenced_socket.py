"""Connections whose bytes leave only while their sender may write.

A process that was stopped (SIGSTOP, a frozen cgroup, a suspended machine) goes on where it was, with whatever waited in
queues and buffers, and its lease may be another's by then. A check before a request is queued says nothing about the
moment when it leaves; so the fence is looked at right before each `send` of the socket: between the two lies no queue,
no await and no other callback. Neither asyncio's nor uvloop's transports have that place (uvloop writes at the end of
an iteration of its loop), which is why there is a transport here.

What the kernel has taken is out of reach, but not without a bound: data that the peer has not acknowledged within
`WriteFence.unacknowledged_s` is given up (TCP_USER_TIMEOUT counts while the process is stopped), and a connection
that is closed with a request unanswered is reset, which drops what the kernel still holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler

_READ_BYTES = 1 << 18
_HIGH_WATER_BYTES = 1 << 16  # of unsent bytes; above it the protocol is asked to pause
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER, on, for no time

SocketFactory = Callable[[Any], socket.socket]


class WriteFence(msgspec.Struct, frozen=True, kw_only=True):
    """WriteFence says when a process may write, and for how long the kernel may try to deliver what it was given."""

    is_open: Callable[[], bool]
    unacknowledged_s: float


class FenceClosed(ConnectionError):
    """FenceClosed ends a connection whose next bytes may not leave. `sent` says whether earlier bytes of it did."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("this process may no longer write")
        self.sent = sent


class FencedSocketTransport(asyncio.Transport):
    """FencedSocketTransport is a stream transport over one connected socket, in the clear or over TLS."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, fence: WriteFence) -> None:
        super().__init__({"socket": sock, "peername": sock.getpeername(), "sockname": sock.getsockname()})
        self._extra: dict[str, Any]
        self._loop = loop
        self._sock = sock
        self._fence = fence
        self._protocol: asyncio.Protocol | None = None
        self._tls: ssl.SSLObject | None = None
        self._tls_in, self._tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._unsent = bytearray()
        self._unanswered = False  # whether bytes have left since the peer last said something
        self._waits_to_send = self._reading = self._paused = self._closing = False

    # Connecting ------------------------------------------------------------------------------------------------------

    async def handshake(self, context: ssl.SSLContext, server_hostname: str | None) -> None:
        """Begin TLS. The fence does not hold back a handshake: it changes nothing on the server."""
        self.pause_reading()
        tls = context.wrap_bio(self._tls_in, self._tls_out, server_hostname=server_hostname)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._loop.sock_sendall(self._sock, self._tls_out.read())
                received = await self._loop.sock_recv(self._sock, _READ_BYTES)
                if not received:
                    raise ConnectionResetError("the peer closed the connection during the TLS handshake") from None
                self._tls_in.write(received)
        await self._loop.sock_sendall(self._sock, self._tls_out.read())
        self._tls = tls
        self._extra |= {"sslcontext": context, "ssl_object": tls, "peercert": tls.getpeercert()}

    def start(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self.resume_reading()

    # Writing ---------------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not data:
            return
        if self._tls is not None:
            self._tls.write(data)
            data = self._tls_out.read()
        self._unsent += data
        if not self._waits_to_send:
            self._send()
        if len(self._unsent) > _HIGH_WATER_BYTES and not self._paused and not self._closing:
            self._paused = True
            self._connected_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def _send(self) -> None:
        try:
            while self._unsent:
                if not self._fence.is_open():
                    raise FenceClosed(sent=self._unanswered)
                count = self._sock.send(self._unsent)
                self._unanswered = True
                del self._unsent[:count]
        except BlockingIOError:
            if not self._waits_to_send:
                self._waits_to_send = True
                self._loop.add_writer(self._sock.fileno(), self._send)
            return
        except OSError as failure:
            self._end(failure)
            return
        if self._waits_to_send:
            self._waits_to_send = False
            self._loop.remove_writer(self._sock.fileno())
        if self._paused:
            self._paused = False
            self._connected_protocol().resume_writing()
        if self._closing:
            self._end(None)

    # Reading ---------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            received = self._sock.recv(_READ_BYTES)
            plain = self._decrypted(received) if self._tls is not None and received else received
        except BlockingIOError:
            return
        except OSError as failure:  # errors of TLS among them
            self._end(failure)
            return
        self._unanswered = False
        if plain:
            self._connected_protocol().data_received(plain)
        elif plain is not None and not self._closing:
            self._connected_protocol().eof_received()
            self.close()

    def _decrypted(self, received: bytes) -> bytes | None:
        """Return the plain text, empty at the end of the stream, or None when there is none yet."""
        assert self._tls is not None
        self._tls_in.write(received)
        parts = []
        try:
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            if self._tls_out.pending:  # such as the answer to a key update
                self._unsent += self._tls_out.read()
                self._send()
            return b"".join(parts) or None
        except ssl.SSLZeroReturnError:
            pass
        return b"".join(parts)

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock.fileno())

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._loop.add_reader(self._sock.fileno(), self._receive)

    def is_reading(self) -> bool:
        return self._reading

    # Ending ----------------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close when all is sent. There is no closing message of TLS: HTTP says itself where a message ends."""
        if not self._closing:
            self._closing = True
            self.pause_reading()
            if not self._unsent:
                self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, failure: OSError | None) -> None:
        if self._sock.fileno() < 0:
            return
        self._closing = True
        self._unsent.clear()
        self.pause_reading()
        self._loop.remove_writer(self._sock.fileno())
        if self._unanswered:
            with contextlib.suppress(OSError):  # the peer may have reset it before us
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._sock.close()
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, failure)

    # What is asked of every transport --------------------------------------------------------------------------------

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, _HIGH_WATER_BYTES

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._connected_protocol()

    def _connected_protocol(self) -> asyncio.Protocol:
        assert self._protocol is not None  # `start` came first
        return self._protocol


class FencedConnector(aiohttp.TCPConnector):
    """FencedConnector is a pool of fenced connections."""

    def __init__(self, fence: WriteFence, socket_factory: SocketFactory, *, limit: int) -> None:
        super().__init__(limit=limit)
        self._fence = fence
        self._make_socket = socket_factory

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        """Return a connection, after a look at it: another version of aiohttp may make them elsewhere than below."""
        made = await super()._create_connection(req, traces, timeout)
        if made.transport is not None and not isinstance(made.transport, FencedSocketTransport):
            made.close()
            raise RuntimeError(f"aiohttp {aiohttp.__version__} makes connections that the fence does not guard")
        return made

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: list[Any],
        req: aiohttp.ClientRequest,
        timeout: aiohttp.ClientTimeout,
        client_error: type[Exception] = aiohttp.ClientConnectorError,
        **kwargs: Any,
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """Connect to the first address; the caller goes on to the next."""
        sock = self._make_socket(addr_infos[0])
        with _connector_errors(req, client_error, sock):
            async with asyncio.timeout(timeout.sock_connect):
                sock.setblocking(False)
                if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux alone has it
                    sock.setsockopt(
                        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._fence.unacknowledged_s * 1000)
                    )
                await self._loop.sock_connect(sock, addr_infos[0][4])
                transport = FencedSocketTransport(self._loop, sock, self._fence)
                if kwargs.get("ssl") is not None:
                    await transport.handshake(kwargs["ssl"], kwargs.get("server_hostname"))
        protocol: ResponseHandler = self._factory()
        transport.start(protocol)
        return transport, protocol

    async def _start_tls_connection(
        self,
        underlying_transport: asyncio.Transport,
        req: aiohttp.ClientRequest,
        timeout: aiohttp.ClientTimeout,
        client_error: type[Exception] = aiohttp.ClientConnectorError,
    ) -> tuple[asyncio.BaseTransport, ResponseHandler]:
        """Begin TLS inside the tunnel that a proxy opened."""
        assert isinstance(underlying_transport, FencedSocketTransport)
        context = self._get_ssl_context(req)
        assert context is not None
        with _connector_errors(req, client_error, underlying_transport.get_extra_info("socket")):
            async with asyncio.timeout(timeout.sock_connect):
                await underlying_transport.handshake(context, req.server_hostname or req.host)
        protocol: ResponseHandler = self._factory()
        underlying_transport.start(protocol)
        return underlying_transport, protocol


@contextlib.contextmanager
def _connector_errors(req: aiohttp.ClientRequest, client_error: type[Exception], sock: socket.socket) -> Any:
    """Close the socket on failure, and raise failures as the connector's callers expect them."""
    try:
        yield
    except ssl.SSLCertVerificationError as failure:
        sock.close()
        raise aiohttp.ClientConnectorCertificateError(req.connection_key, failure) from failure
    except ssl.SSLError as failure:
        sock.close()
        raise aiohttp.ClientConnectorSSLError(req.connection_key, failure) from failure
    except TimeoutError as failure:
        sock.close()
        if failure.errno is None:
            raise
        raise client_error(req.connection_key, failure) from failure
    except OSError as failure:
        sock.close()
        raise client_error(req.connection_key, failure) from failure
    except BaseException:
        sock.close()
        raise
