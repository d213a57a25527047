"""This module splits the bytes of a watch stream into frames, wherever the network cut them. It does no I/O."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from koord.api.model import decode
from koord.kube.transport.api_error import WATCH_DECODING_REASON
from koord.kube.transport.interface import DECODE_ERRORS, BytesResponseBody, ResponseBody, UnstructuredBody

T = TypeVar("T")

_LINE_START = b'{"type":"'
_OBJECT_START = b'","object":'
_MAX_SHOWN_BYTES = 200


class _Envelope(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class HttpWatchFrame(msgspec.Struct, frozen=True):
    """HttpWatchFrame is one line of the stream."""

    type: str
    body: ResponseBody


class WatchLineBody:
    """WatchLineBody is the object inside a line of the usual layout; it is parsed once, when asked for.

    Cutting the object out by its fixed surroundings halves the cost of a typed event. Should anything follow
    the object inside the line, the cut was wrong; parsing then fails, and the line is decoded as a whole
    envelope.
    """

    __slots__ = ("_line", "_raw")

    def __init__(self, line: bytes, start: int) -> None:
        self._line = line
        self._raw = line[start:-1]

    def raw(self) -> bytes:
        return self._raw if _is_valid_json(self._raw) else self._decode_envelope()

    def plain(self) -> Any:
        return self.typed(object)

    def typed(self, model: type[T]) -> T:
        try:
            return decode(self._raw, model)
        except msgspec.ValidationError:
            raise
        except DECODE_ERRORS:
            return decode(self._decode_envelope(), model)

    def _decode_envelope(self) -> bytes:
        return bytes(decode(self._line, _Envelope).object)


class WatchFrameSplitter:
    """WatchFrameSplitter is fed chunks in order. `broken` is true from a line on that is no event."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.broken = False

    def feed(self, chunk: bytes) -> list[HttpWatchFrame]:
        if b"\n" not in chunk:
            self._parts.append(chunk)
            return []
        if self._parts:
            chunk = b"".join((*self._parts, chunk))
        lines = chunk.split(b"\n")
        rest = lines.pop()
        self._parts = [rest] if rest else []
        return self._frames(lines)

    def finish(self) -> list[HttpWatchFrame]:
        """Return the last frame after the stream has ended: a final line without newline counts if it is complete."""
        rest = b"".join(self._parts)
        self._parts = []
        return self._frames([rest]) if rest.strip() and _is_valid_json(rest) else []

    def _frames(self, lines: list[bytes]) -> list[HttpWatchFrame]:
        frames: list[HttpWatchFrame] = []
        for line in lines:
            if self.broken:
                break
            if line.startswith(_LINE_START):
                end = line.find(b'"', len(_LINE_START))
                if line.startswith(_OBJECT_START, end) and line.endswith(b"}"):
                    kind = line[len(_LINE_START) : end].decode("ascii", "replace")
                    frames.append(HttpWatchFrame(kind, WatchLineBody(line, end + len(_OBJECT_START))))
                    continue
            if line.strip():
                frames.append(self._decode_unusual_line(line))
        return frames

    def _decode_unusual_line(self, line: bytes) -> HttpWatchFrame:
        """Decode a line with other spacing or order, a bare Status from a failing server, or no event at all."""
        try:
            envelope = decode(line, _Envelope)
        except DECODE_ERRORS:
            self.broken = True
            if _is_status(line):
                return HttpWatchFrame("ERROR", BytesResponseBody(line))
            return undecodable_frame(line)
        return HttpWatchFrame(envelope.type, BytesResponseBody(bytes(envelope.object)))


def undecodable_frame(line: bytes) -> HttpWatchFrame:
    message = f"unable to decode an event from the watch stream: {line[:_MAX_SHOWN_BYTES]!r}"
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return HttpWatchFrame("ERROR", UnstructuredBody({**status, "reason": WATCH_DECODING_REASON, "code": 500}))


def _is_status(line: bytes) -> bool:
    try:
        return decode(line, _Kind).kind == "Status"
    except DECODE_ERRORS:
        return False


def _is_valid_json(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except DECODE_ERRORS:
        return False
    except RecursionError:
        return True  # as far as anybody can tell
    return True
