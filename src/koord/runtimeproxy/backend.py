"""The container runtime behind the proxy: calls of any method pass to it as bytes, with their metadata and deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeAlias

import grpc
import grpc.aio
import msgspec

from koord.wire import cri

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]

MAX_MESSAGE_BYTES = 16 << 20  # what the kubelet and containerd take
_MAX_METADATA_BYTES = 16 << 20  # Go's limit: an error of the runtime travels there, and may quote much
_VERSION_TIMEOUT_S = 10.0
# gRPC would wait up to two minutes before it tries a server again that was restarted.
_RECONNECT_MS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_LIMITS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
)
# A client that pings often is the runtime's to bear or refuse, as it would be without a proxy.
SERVER_OPTIONS = (
    *_LIMITS,
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
)
# Without a pool of its own, two channels to one socket share a connection, and with it the limits of the first.
CHANNEL_OPTIONS = (*_LIMITS, *_RECONNECT_MS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
# What gRPC writes itself on each hop.
_HOP_KEYS = frozenset({"user-agent", "content-type", "te", "grpc-encoding", "grpc-accept-encoding", "grpc-timeout"})


class UnaryReply(msgspec.Struct, frozen=True):
    message: bytes
    initial: Metadata
    trailing: Metadata


def end_to_end(metadata: Iterable[Any] | None) -> Metadata:
    """Return the metadata that belongs to the call and not to one hop of it."""
    return tuple((key, value) for key, value in metadata or () if key not in _HOP_KEYS)


def socket_address(endpoint: str) -> str:
    """Return gRPC's address of a Unix socket, which flags and files name with or without a scheme."""
    return f"unix://{endpoint.removeprefix('unix://')}"


class RuntimeBackend:
    """RuntimeBackend calls the runtime. A call that fails raises grpc.aio.AioRpcError, which holds the status."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = grpc.aio.insecure_channel(socket_address(endpoint), options=CHANNEL_OPTIONS)
        self._last_call_failed = False

    async def version_error(self) -> str:
        """Call Version, waiting a while for a runtime that starts; return why it failed, or nothing."""
        call = self._channel.unary_unary(cri.runtime_method("Version"))
        try:
            await call(b"", timeout=_VERSION_TIMEOUT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    def connection_error(self) -> str | None:
        """Return why the runtime cannot be reached now, as a health check.

        The last call tells, because the channel's own state changes while it connects again. The kubelet calls every
        second, so a runtime that is back is noticed as soon.
        """
        state = self._channel.get_state(try_to_connect=True)
        connected = state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE)
        return None if connected and not self._last_call_failed else f"no connection to {self.endpoint}"

    async def unary(
        self, method: str, message: bytes, metadata: Metadata = (), timeout_s: float | None = None
    ) -> UnaryReply:
        call = self._channel.unary_unary(method)(message, metadata=metadata, timeout=timeout_s)
        try:
            reply = await call
        except grpc.aio.AioRpcError as error:
            self._last_call_failed = error.code() is grpc.StatusCode.UNAVAILABLE
            raise
        self._last_call_failed = False
        return UnaryReply(reply, end_to_end(await call.initial_metadata()), end_to_end(await call.trailing_metadata()))

    def stream(
        self, method: str, messages: AsyncIterator[bytes], metadata: Metadata, timeout_s: float | None
    ) -> grpc.aio.StreamStreamCall:
        """Start a call with any number of messages in both directions."""
        return self._channel.stream_stream(method)(messages, metadata=metadata, timeout=timeout_s)

    async def close(self) -> None:
        await self._channel.close()
