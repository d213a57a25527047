"""Limits of JSON text that comes from objects and files: how long it may be and how deeply it may nest.

Decoders recurse, and so does code that walks what they return: text of some thousand brackets ends in a RecursionError,
where depends on who calls. Text is therefore measured before it is decoded.
"""

from __future__ import annotations

import re

import msgspec

MAX_JSON_BYTES = 4 << 20  # of an annotation, a key of a ConfigMap, a file: the API server stores no larger objects
MAX_JSON_DEPTH = 100

# Strings are skipped whole, because brackets inside them nest nothing.
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"


class MalformedText(msgspec.Struct, frozen=True):
    """MalformedText says why text cannot be read, as the rest of a sentence about it; `line` counts from 1."""

    reason: str
    line: int | None = None

    def __str__(self) -> str:
        return self.reason


def json_limit_exceeded(
    raw: bytes, *, max_bytes: int = MAX_JSON_BYTES, max_depth: int = MAX_JSON_DEPTH
) -> MalformedText | None:
    """Return which limit the text exceeds, or None. Whether it is JSON at all is the decoder's to say."""
    if len(raw) > max_bytes:
        return MalformedText(f"is too long: {len(raw)} bytes, and {max_bytes} are allowed")
    if raw.count(b"[") + raw.count(b"{") <= max_depth:
        return None
    depth = 0
    for token in _STRUCTURE.finditer(raw):
        first = raw[token.start()]
        if first in _OPENING:
            depth += 1
            if depth > max_depth:
                line = raw.count(b"\n", 0, token.start()) + 1
                return MalformedText(f"is nested too deeply: {max_depth} levels are allowed", line)
        elif first in _CLOSING:
            depth -= 1
    return None
