"""Go's formatting and parsing (fmt, strconv), for messages and fields that must read as Kubernetes' own."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

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
_DECIMAL = re.compile(r"[+-]?[0-9]+", re.ASCII)
_ANY_BASE = re.compile(
    r"([+-]?)(?:0[xX]((?:_?[0-9a-fA-F])+)|0[bB]((?:_?[01])+)|0[oO]((?:_?[0-7])+)|0((?:_?[0-7])+)|(0|[1-9](?:_?[0-9])*))",
    re.ASCII,
)
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_MAX_DIGITS = 256  # more are out of every range, whatever they are
_OUT_OF_RANGE = 1 << 64
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


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
        else "".join(f"\\x{b:02x}" for b in char.encode(errors="surrogatepass"))
        for char in text
    )
    return f'"{"".join(shown)}"'


def in_json(value: str | Sequence[str] | None) -> str:
    """Encode the value as Go's JSON encoder does: a nil list is null, and HTML characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def integer_refusal(text: str) -> str:
    """Return why strconv.Atoi refuses a text for which `parse_decimal_int` is None."""
    reason = "value out of range" if _DECIMAL.fullmatch(text) else "invalid syntax"
    return f"strconv.Atoi: parsing {quoted(text)}: {reason}"


@functools.lru_cache(maxsize=4096)
def parse_decimal_int(text: str, bits: int = 64) -> int | None:
    """Parse as ParseInt with base 10: no spaces, underscores or other scripts."""
    return _within(int(text), bits) if len(text) <= _MAX_DIGITS and _DECIMAL.fullmatch(text) else None


def parse_any_base_int(text: str, bits: int = 64) -> int | None:
    """Parse as ParseInt with base 0."""
    value = any_base_int(text)
    return None if value is None else _within(value, bits)


def any_base_int(text: str) -> int | None:
    """Return the number in whatever range: 0x, 0b, 0o, a leading 0 (octal) and underscores between digits are known."""
    found = _ANY_BASE.fullmatch(text)
    if found is None:
        return None
    sign, *spelled = found.groups()
    base, digits = next((b, d) for b, d in zip((16, 2, 8, 8, 10), spelled) if d is not None)
    value = int(digits.replace("_", ""), base) if len(digits) <= _MAX_DIGITS else _OUT_OF_RANGE
    return -value if sign == "-" else value


def parse_finite_float(text: str) -> float | None:
    """Parse as ParseFloat in decimal notation; infinities and NaN are of no use here and count as unreadable."""
    value = float(text) if _FLOAT.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def parse_bool(text: str) -> bool | None:
    """Parse as ParseBool."""
    return _BOOLS.get(text)


def _within(value: int, bits: int) -> int | None:
    bound = 1 << (bits - 1)
    return value if -bound <= value < bound else None


def format_v(value: Any) -> str:
    """Format as %v: maps with sorted keys, strings bare."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, dict):
        return "map[" + " ".join(f"{k}:{format_v(value[k])}" for k in sorted(value)) + "]"
    return "[" + " ".join(format_v(item) for item in value) + "]"


def format_go_syntax(value: Any) -> str:
    """Format as %#v: the value as it would be written in Go source."""
    if value is None:
        return "interface {}(nil)"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return (
            "map[string]interface {}{"
            + ", ".join(f"{quoted(k)}:{format_go_syntax(value[k])}" for k in sorted(value))
            + "}"
        )
    if isinstance(value, list):
        return "[]interface {}{" + ", ".join(format_go_syntax(item) for item in value) + "}"
    return format_v(value)


def go_type_name(value: Any) -> str:
    """Return %T of a decoded JSON value."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "int64"
    if isinstance(value, float):
        return "float64"
    return "map[string]interface {}" if isinstance(value, dict) else "[]interface {}"


def json_kind_name(value: Any) -> str:
    """Return the word that Go's decoder uses for a JSON value of the wrong type."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "object" if isinstance(value, dict) else "array"


def format_float(value: float) -> str:
    """Format a float as %v and Go's JSON do: shortest digits, no trailing `.0`, an exponent past 21 digits."""
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    return json.dumps(value)
