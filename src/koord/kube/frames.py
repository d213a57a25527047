"""This module splits the bytes of a watch stream into frames, wherever the network cut them. It does no I/O."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from koord.api.model import decode
from koord.kube.refused import UNDECODABLE
from koord.kube.transport import UNREADABLE, Body, BytesBody, PlainBody

T = TypeVar("T")

_HEAD = b'{"type":"'
_MIDDLE = b'","object":'
_SHOWN = 200


class _Envelope(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_KIND = msgspec.json.Decoder(_Kind)


class WireFrame(msgspec.Struct, frozen=True):
    """HttpWatchFrame is one line of the stream."""

    type: str
    body: Body


class SlicedBody:
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
        return self._raw if _valid(self._raw) else self._proper()

    def plain(self) -> Any:
        try:
            return msgspec.json.decode(self._raw)
        except UNREADABLE:
            return msgspec.json.decode(self._proper())

    def typed(self, model: type[T]) -> T:
        try:
            return decode(self._raw, model)
        except msgspec.ValidationError:
            raise
        except UNREADABLE:
            return decode(self._proper(), model)

    def _proper(self) -> bytes:
        return bytes(_ENVELOPE.decode(self._line).object)


class FrameSplitter:
    """WatchFrameSplitter is fed chunks in order. `broken` turns true at a line that is no event: nothing after it
    is valid.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.broken = False

    def feed(self, chunk: bytes) -> list[WireFrame]:
        if b"\n" not in chunk:
            self._parts.append(chunk)
            return []
        if self._parts:
            chunk = b"".join((*self._parts, chunk))
        lines = chunk.split(b"\n")
        rest = lines.pop()
        self._parts = [rest] if rest else []
        return self._frames(lines)

    def finish(self) -> list[WireFrame]:
        """Return the last frame after the stream has ended: a final line without newline counts if it is complete."""
        rest = b"".join(self._parts)
        self._parts = []
        return self._frames([rest]) if rest.strip() and _valid(rest) else []

    def _frames(self, lines: list[bytes]) -> list[WireFrame]:
        frames: list[WireFrame] = []
        for line in lines:
            if self.broken:
                break
            if line.startswith(_HEAD):
                end = line.find(b'"', len(_HEAD))
                if line.startswith(_MIDDLE, end) and line.endswith(b"}"):
                    kind = line[len(_HEAD) : end].decode("ascii", "replace")
                    frames.append(WireFrame(kind, SlicedBody(line, end + len(_MIDDLE))))
                    continue
            if line.strip():
                frames.append(self._unusual(line))
        return frames

    def _unusual(self, line: bytes) -> WireFrame:
        """Decode a line with other spacing or order, a bare Status from a failing server, or no event at all."""
        try:
            envelope = _ENVELOPE.decode(line)
        except UNREADABLE:
            self.broken = True
            if _is_status(line):
                return WireFrame("ERROR", BytesBody(line))
            return undecodable_frame(line)
        return WireFrame(envelope.type, BytesBody(bytes(envelope.object)))


def undecodable_frame(line: bytes) -> WireFrame:
    message = f"unable to decode an event from the watch stream: {line[:_SHOWN]!r}"
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return WireFrame("ERROR", PlainBody({**status, "reason": UNDECODABLE, "code": 500}))


def _is_status(line: bytes) -> bool:
    try:
        return _KIND.decode(line).kind == "Status"
    except UNREADABLE:
        return False


def _valid(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return True
