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
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_SHRINKS = 0.95
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))


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
    if raw.count(b"[") + raw.count(b"{") <= max_depth or _collapses(raw, max_depth):
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


def _collapses(raw: bytes, max_depth: int) -> bool:
    """Return whether nothing is left of the brackets after removing empty pairs, the innermost ones each time.

    Each step runs over all bytes at once: bodies of requests are measured here. It gives up, and leaves the text to the
    exact measure, where little is removed at a time.
    """
    outside = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_ONE_KIND, _NO_STRUCTURE).split(b'"')[::2]
    brackets = b"".join(outside)
    for _ in range(max_depth):
        rest = brackets.replace(b"[]", b"")
        if not rest:
            return True
        if len(rest) > len(brackets) * _SHRINKS:
            return False
        brackets = rest
    return False


TOO_DEEP = "<nested too deeply>"


def without_deep_values(raw: bytes, max_depth: int = MAX_JSON_DEPTH) -> bytes:
    """Return the JSON with each list and map below `max_depth` replaced by TOO_DEEP; the rest can be decoded."""
    kept, depth, after = [], 0, 0
    for token in _STRUCTURE.finditer(raw):
        first = raw[token.start()]
        if first in _OPENING:
            depth += 1
            if depth == max_depth + 1:
                kept += [raw[after : token.start()], f'"{TOO_DEEP}"'.encode()]
        elif first in _CLOSING:
            depth -= 1
            if depth == max_depth:
                after = token.end()
    return b"".join(kept) + (raw[after:] if depth <= max_depth else b"")
