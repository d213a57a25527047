"""This module frames the byte streams of NRI's two connections on one socket.

A frame is an eight-byte header (connection and payload length, big endian) and a payload. Frames have no meaning of
their own: each connection is a stream of bytes, and a message may begin and end anywhere in a frame.
"""

from __future__ import annotations

import struct

from koord.wire.protobuf import WireError

PLUGIN_CONNECTION = 1  # the runtime is the client, the plugin the server
RUNTIME_CONNECTION = 2  # the plugin is the client, the runtime the server
MAX_PAYLOAD = 10 + (4 << 20)
_HEADER = struct.Struct(">II")


def encode_mux_frame(connection: int, payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"a mux frame of {len(payload)} bytes is longer than {MAX_PAYLOAD}")
    return _HEADER.pack(connection, len(payload)) + payload


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
            missing = _HEADER.size - len(self._header)
            self._header += data[at : at + missing]
            at += missing
            if len(self._header) == _HEADER.size:
                self._connection, self._left = _HEADER.unpack(self._header)
                self._header = b""
                if self._left > MAX_PAYLOAD:
                    raise WireError(f"a mux frame announces {self._left} bytes, more than {MAX_PAYLOAD}")
        return pieces

    @property
    def is_inside_frame(self) -> bool:
        """Return whether the bytes end inside a frame: a peer that closes here was cut off."""
        return bool(self._header) or self._left > 0
