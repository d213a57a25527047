"""This module frames ttrpc, the RPC protocol of containerd: requests and responses on numbered streams.

A frame is a ten-byte header (data length, stream, type, flags, big endian) and its data. koord uses unary calls alone,
whose flags are 0. NRI has two such connections on one socket: a mux frame is an eight-byte header (connection and
payload length, big endian) and a payload. Mux frames have no meaning of their own: each connection is a stream of
bytes, and a message may begin and end anywhere in a frame.
"""

from __future__ import annotations

import struct

import msgspec

from koord.wire.protobuf import Int32, Int64, WireError, codec_of

REQUEST, RESPONSE, STREAM_DATA = 1, 2, 3
MAX_DATA = 4 << 20
MAX_STATUS_TEXT = 1000
_HEADER = struct.Struct(">IIBB")

# The codes of google.rpc.Code that ttrpc peers exchange.
OK, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED = 0, 2, 3, 4
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 12, 13, 14

PLUGIN_CONNECTION = 1  # the runtime is the client, the plugin the server
RUNTIME_CONNECTION = 2  # the plugin is the client, the runtime the server
MAX_PAYLOAD = 10 + (4 << 20)
_MUX_HEADER = struct.Struct(">II")


def encode_mux_frame(connection: int, payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"a mux frame of {len(payload)} bytes is longer than {MAX_PAYLOAD}")
    return _MUX_HEADER.pack(connection, len(payload)) + payload


class MuxDecoder:
    """MuxDecoder divides received bytes into pieces of the connections' streams. It keeps at most one header."""

    def __init__(self) -> None:
        self._header = b""
        self._connection = 0
        self._left = 0  # bytes of the present payload that have not come

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return connection and bytes for each piece, in order; raises WireError, after which the socket is useless."""
        pieces: list[tuple[int, bytes]] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                pieces.append((self._connection, piece))
                at += len(piece)
                continue
            missing = _MUX_HEADER.size - len(self._header)
            self._header += data[at : at + missing]
            at += missing
            if len(self._header) == _MUX_HEADER.size:
                self._connection, self._left = _MUX_HEADER.unpack(self._header)
                self._header = b""
                if self._left > MAX_PAYLOAD:
                    raise WireError(f"a mux frame announces {self._left} bytes, more than {MAX_PAYLOAD}")
        return pieces

    @property
    def is_inside_frame(self) -> bool:
        """Return whether the bytes end inside a frame: a peer that closes here was cut off."""
        return bool(self._header) or self._left > 0


class TtrpcFrame(msgspec.Struct, frozen=True):
    stream: int
    kind: int
    data: bytes = b""
    flags: int = 0


class OversizedFrame(msgspec.Struct, frozen=True):
    """An OversizedFrame stands for a frame whose data was longer than MAX_DATA and was discarded."""

    stream: int
    kind: int
    size: int


class TtrpcStatus(msgspec.Struct, frozen=True):
    """A TtrpcStatus is the error of a call; the code OK is none."""

    code: Int32 = OK
    message: str = ""

    def __str__(self) -> str:
        return f"{self.message} (code {self.code})" if self.message else f"code {self.code}"


class TtrpcRequest(msgspec.Struct, frozen=True, kw_only=True):
    service: str = ""
    method: str = ""
    payload: bytes = b""
    timeout_nano: Int64 = 0  # 0: the caller waits without limit
    metadata: dict[str, str] = {}


class TtrpcResponse(msgspec.Struct, frozen=True, kw_only=True):
    status: TtrpcStatus | None = None
    payload: bytes = b""


REQUEST_CODEC = codec_of(TtrpcRequest)
RESPONSE_CODEC = codec_of(TtrpcResponse)


def encode_muxed_frame(connection: int, frame: TtrpcFrame) -> bytes:
    """Return the mux frames of a ttrpc frame: one for the header, and one for the data where there is any.

    Go's reader offers 4096 bytes for the frame in which a message begins, and drops the connection when that frame is
    longer. A frame with the header alone always fits, and the data's frame is read into a buffer of its size.
    """
    if len(frame.data) > MAX_DATA:
        raise WireError(f"a ttrpc message of {len(frame.data)} bytes is longer than {MAX_DATA}")
    header = _HEADER.pack(len(frame.data), frame.stream, frame.kind, frame.flags)
    encoded = encode_mux_frame(connection, header)
    return encoded + encode_mux_frame(connection, frame.data) if frame.data else encoded


class TtrpcDecoder:
    """TtrpcDecoder collects the frames of one byte stream. It keeps at most one frame of MAX_DATA bytes."""

    def __init__(self) -> None:
        self._header = b""
        self._data = bytearray()
        self._left = 0  # bytes of the present frame that have not come
        self._size = self._stream = self._kind = self._flags = 0
        self._in_frame = False

    def feed(self, data: bytes) -> list[TtrpcFrame | OversizedFrame]:
        """Return the frames that are complete with these bytes, in order."""
        frames: list[TtrpcFrame | OversizedFrame] = []
        at = 0
        while at < len(data) or (self._in_frame and not self._left):
            if self._in_frame:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if self._size <= MAX_DATA:
                    self._data += piece
                if not self._left:
                    frames.append(self._take_frame())
                continue
            missing = _HEADER.size - len(self._header)
            self._header += data[at : at + missing]
            at += missing
            if len(self._header) == _HEADER.size:
                self._size, self._stream, self._kind, self._flags = _HEADER.unpack(self._header)
                self._header, self._left, self._in_frame = b"", self._size, True
        return frames

    @property
    def is_inside_frame(self) -> bool:
        return bool(self._header) or self._in_frame

    def _take_frame(self) -> TtrpcFrame | OversizedFrame:
        self._in_frame = False
        if self._size > MAX_DATA:
            return OversizedFrame(self._stream, self._kind, self._size)
        data, self._data = bytes(self._data), bytearray()
        return TtrpcFrame(self._stream, self._kind, data, self._flags)


def check_request_stream(stream: int, last_stream: int) -> TtrpcStatus | None:
    """Return why a server refuses a request's stream; clients use odd numbers that only increase."""
    if stream % 2 == 0:
        return TtrpcStatus(INVALID_ARGUMENT, f"stream {stream} is even, and clients use odd streams")
    if stream <= last_stream:
        return TtrpcStatus(INVALID_ARGUMENT, f"stream {stream} does not come after stream {last_stream}")
    return None


def error_status(code: int, text: str) -> TtrpcStatus:
    """Return a status with a text of any origin, made short and encodable."""
    return TtrpcStatus(code, text[:MAX_STATUS_TEXT].encode(errors="replace").decode())


def response_frame(stream: int, response: TtrpcResponse) -> TtrpcFrame:
    return TtrpcFrame(stream, RESPONSE, RESPONSE_CODEC.encode(response))


def request_frame(stream: int, request: TtrpcRequest) -> TtrpcFrame:
    return TtrpcFrame(stream, REQUEST, REQUEST_CODEC.encode(request))
