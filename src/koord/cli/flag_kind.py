"""This module defines the types of flag values: how text is parsed, with Go's own error messages, and how a
default is shown.
"""

from __future__ import annotations

import csv
import ipaddress
import re
from collections.abc import Callable
from typing import Any

import msgspec

from koord.values import duration
from koord.values.quotation import quoted

_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")
# Go's: an underscore stands between digits or after the sign of a base, and only where there could be such a sign.
_INTEGER = re.compile(
    r"[+-]?(0[xX](_?[0-9a-fA-F])+|0[bB](_?[01])+|0[oO](_?[0-7])+|0(_?[0-7])*|[1-9](_?[0-9])*)", re.ASCII
)
_LONGEST = 128  # digits; more is out of range whatever they are
_VERSION = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+.*")


class BadValue(ValueError):
    """FlagValueError means that text is no value of a flag type. The message is Go's."""


class Kind(msgspec.Struct, frozen=True):
    shown: str  # the kind's name in --help
    read: Callable[[str], Any]
    empty: Any  # what it is when nobody says anything and there is no default
    bare: str = ""  # what `--flag` alone stands for; "" when a value is needed
    repeats: bool = False  # whether a second occurrence adds to the first
    write: Callable[[Any], str] = str


def _text(text: str) -> str:
    return text


def _boolean(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise BadValue(f"strconv.ParseBool: parsing {quoted(text)}: invalid syntax")


def _whole(function: str, low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or (low == 0 and text[0] in "+-"):
            raise BadValue(f"strconv.{function}: parsing {quoted(text)}: invalid syntax")
        plain = text.replace("_", "")
        sign, digits = (-1, plain[1:]) if plain[0] == "-" else (1, plain.lstrip("+"))
        octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
        value = sign * int(digits, 8 if octal else 0) if len(digits) <= _LONGEST else high + 1
        if not low <= value <= high:
            raise BadValue(f"strconv.{function}: parsing {quoted(text)}: value out of range")
        return value

    return read


def _float(text: str) -> float:
    try:
        if not text.isascii() or text != text.strip():  # Python takes more than Go does
            raise ValueError
        return float(text)
    except ValueError:
        raise BadValue(f"strconv.ParseFloat: parsing {quoted(text)}: invalid syntax") from None


def _duration(text: str) -> int:
    try:
        return duration.parse(text)
    except duration.DurationError as wrong:
        raise BadValue(str(wrong)) from None


def _strings(text: str) -> tuple[str, ...]:
    """Parse one line of CSV: a part with a comma in it is quoted."""
    if not text:
        return ()
    try:
        return tuple(next(csv.reader([text], strict=True)))
    except (csv.Error, StopIteration) as wrong:
        raise BadValue(str(wrong)) from None


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError:
        raise BadValue(f"failed to parse IP: {quoted(text)}") from None


def _mapping(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in _strings(text):
        key, equals, value = part.partition("=")
        if not equals:
            raise BadValue(f"{part} must be formatted as key=value")
        found[key] = value
    return found


def _modules(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        pattern, equals, level = part.partition("=")
        if not equals or not pattern or not level:
            raise BadValue(f"{quoted(part)} does not have the pattern=N format")
        try:
            found[pattern] = LEVEL.read(level)
        except BadValue as wrong:
            raise BadValue(f"parsing verbosity in {quoted(part)}: {wrong}") from None
    return found


def _version(text: str) -> str:
    if text == "raw":
        return text
    if text.startswith("v"):
        if not _VERSION.fullmatch(text):
            raise BadValue(f"illegal version string {quoted(text)}")
        return text
    return "true" if _boolean(text) else ""


def _listed(values: tuple[str, ...]) -> str:
    return f"[{','.join(values)}]"


TEXT = Kind("string", _text, "", write=lambda value: f'"{value}"')
BOOLEAN = Kind("", _boolean, False, bare="true", write=lambda value: "true" if value else "false")
INTEGER = Kind("int", _whole("ParseInt", -(2**63), 2**63 - 1), 0)
INTEGER32 = Kind("int32", _whole("ParseInt", -(2**31), 2**31 - 1), 0)
FLOAT32 = Kind("float32", _float, 0.0, write=lambda value: f"{value:g}")
FLOAT = Kind("float", _float, 0.0, write=lambda value: f"{value:g}")
DURATION = Kind("duration", _duration, 0, write=duration.text)
STRINGS = Kind("strings", _strings, (), repeats=True, write=_listed)
ADDRESS = Kind("ip", _address, "", write=str)
MAPPING = Kind("stringToString", _mapping, {}, repeats=True, write=lambda _: "[]")
LEVEL = Kind("Level", _whole("ParseUint", 0, 2**31 - 1), 0)
MODULES = Kind("pattern=N,...", _modules, {}, repeats=True, write=lambda _: "")
VERSION = Kind("version[=true]", _version, "", bare="true", write=lambda _: "false")
# Gates are read by the program, which knows their names; here they are kept as they were written.
GATES = Kind("mapStringBool", lambda text: (text,), (), repeats=True, write=lambda _: "")
