"""Bytes of a watch stream to frames, wherever the network cut them. No I/O: bytes in, frames out."""

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
    """One line of the stream."""

    type: str
    body: Body


class SlicedBody:
    """The object inside a line that looks as API servers write it: it is parsed once, when asked for.

    Cutting the object out by its fixed surroundings halves the cost of a typed event. Should anything follow the
    object inside the line, the cut was wrong; parsing then fails, and the line is taken apart properly.
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
    """Feed it chunks in order. `broken` turns true at a line that is no event: nothing after it can be trusted."""

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
        """The stream has ended: a last line without its newline counts if it is whole, and is a cut otherwise."""
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
        """Other spacing or order, a bare Status from a server in trouble, or no event at all."""
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
