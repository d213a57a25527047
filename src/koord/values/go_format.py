"""Go's formatting of text and numbers in error messages, for messages that must read as Kubernetes' own."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence

_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}
_INTEGER = re.compile(r"[-+]?[0-9]+")


def join_errors(errors: Iterable[str]) -> str:
    """Join errors as apimachinery's Aggregate does: one stands for itself, several stand in brackets, each once."""
    distinct = list(dict.fromkeys(errors))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]" if distinct else ""


def quoted(text: str) -> str:
    """Quote the text as Go's %q prints it."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted_bytes(text: str) -> str:
    """Quote the text as Go's time package does: whatever is not plain ASCII is shown as bytes."""
    shown = (
        f"\\{char}"
        if char in '"\\'
        else char
        if " " <= char < "\x80"
        else "".join(f"\\x{b:02x}" for b in char.encode())
        for char in text
    )
    return f'"{"".join(shown)}"'


def in_json(value: str | Sequence[str] | None) -> str:
    """Encode the value as Go's JSON encoder does: a nil list is null, and HTML characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@functools.lru_cache(maxsize=4096)
def integer(text: str) -> int | None:
    """Return the int64 that Go's strconv parses from the text, or None: no spaces, underscores or other scripts."""
    if not _INTEGER.fullmatch(text) or len(text) > 1000:
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def integer_refusal(text: str) -> str:
    """Return why strconv.Atoi refuses a text for which `integer` is None."""
    reason = "value out of range" if _INTEGER.fullmatch(text) else "invalid syntax"
    return f"strconv.Atoi: parsing {quoted(text)}: {reason}"
