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

from koord.api.config.component import parse_bind_address
from koord.values import duration, go_format
from koord.values.go_format import quoted

_VERSION = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+.*")


class FlagValueError(ValueError):
    """FlagValueError means that text is no value of a flag type. The message is Go's."""


class FlagType(msgspec.Struct, frozen=True):
    help_name: str  # the kind's name in --help
    parse: Callable[[str], Any]
    empty: Any  # what it is when nobody says anything and there is no default
    no_value_default: str = ""  # what `--flag` alone stands for; "" when a value is needed
    is_repeatable: bool = False  # whether a second occurrence adds to the first
    format: Callable[[Any], str] = str


def _parse_text(text: str) -> str:
    return text


def _parse_bool(text: str) -> bool:
    value = go_format.parse_bool(text)
    if value is None:
        raise FlagValueError(f"strconv.ParseBool: parsing {quoted(text)}: invalid syntax")
    return value


def _int_parser(function: str, low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = go_format.any_base_int(text)
        if value is None or (low == 0 and text[0] in "+-"):
            raise FlagValueError(f"strconv.{function}: parsing {quoted(text)}: invalid syntax")
        if not low <= value <= high:
            raise FlagValueError(f"strconv.{function}: parsing {quoted(text)}: value out of range")
        return value

    return read


def _parse_float(text: str) -> float:
    try:
        if not text.isascii() or text != text.strip():  # Python takes more than Go does
            raise ValueError
        return float(text)
    except ValueError:
        raise FlagValueError(f"strconv.ParseFloat: parsing {quoted(text)}: invalid syntax") from None


def _parse_duration_ns(text: str) -> int:
    try:
        return duration.parse(text)
    except duration.DurationError as wrong:
        raise FlagValueError(str(wrong)) from None


def _parse_csv(text: str) -> tuple[str, ...]:
    """Parse one line of CSV: a part with a comma in it is quoted."""
    if not text:
        return ()
    try:
        return tuple(next(csv.reader([text], strict=True)))
    except (csv.Error, StopIteration) as wrong:
        raise FlagValueError(str(wrong)) from None


def _parse_ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError:
        raise FlagValueError(f"failed to parse IP: {quoted(text)}") from None


def _parse_mapping(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in _parse_csv(text):
        key, equals, value = part.partition("=")
        if not equals:
            raise FlagValueError(f"{part} must be formatted as key=value")
        found[key] = value
    return found


def _parse_vmodule(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        pattern, equals, level = part.partition("=")
        if not equals or not pattern or not level:
            raise FlagValueError(f"{quoted(part)} does not have the pattern=N format")
        try:
            found[pattern] = LEVEL.parse(level)
        except FlagValueError as wrong:
            raise FlagValueError(f"parsing verbosity in {quoted(part)}: {wrong}") from None
    return found


def _parse_version(text: str) -> str:
    if text == "raw":
        return text
    if text.startswith("v"):
        if not _VERSION.fullmatch(text):
            raise FlagValueError(f"illegal version string {quoted(text)}")
        return text
    return "true" if _parse_bool(text) else ""


def _format_list(values: tuple[str, ...]) -> str:
    return f"[{','.join(values)}]"


TEXT = FlagType("string", _parse_text, "", format=lambda value: f'"{value}"')
BOOLEAN = FlagType("", _parse_bool, False, no_value_default="true", format=lambda value: "true" if value else "false")
INTEGER = FlagType("int", _int_parser("ParseInt", -(2**63), 2**63 - 1), 0)
INTEGER32 = FlagType("int32", _int_parser("ParseInt", -(2**31), 2**31 - 1), 0)
FLOAT32 = FlagType("float32", _parse_float, 0.0, format=lambda value: f"{value:g}")
FLOAT = FlagType("float", _parse_float, 0.0, format=lambda value: f"{value:g}")
DURATION = FlagType("duration", _parse_duration_ns, 0, format=duration.text)
STRINGS = FlagType("strings", _parse_csv, (), is_repeatable=True, format=_format_list)
ADDRESS = FlagType("ip", _parse_ip, "", format=str)
MAPPING = FlagType("stringToString", _parse_mapping, {}, is_repeatable=True, format=lambda _: "[]")
LEVEL = FlagType("Level", _int_parser("ParseUint", 0, 2**31 - 1), 0)
MODULES = FlagType("pattern=N,...", _parse_vmodule, {}, is_repeatable=True, format=lambda _: "")
VERSION = FlagType("version[=true]", _parse_version, "", no_value_default="true", format=lambda _: "false")
# Gates are read by the program, which knows their names; here they are kept as they were written.
GATES = FlagType("mapStringBool", lambda text: (text,), (), is_repeatable=True, format=lambda _: "")


def parse_listen_address(text: str, example_port: int = 8080) -> tuple[str, int] | str | None:
    """Parse an address: ":8080" is every interface, "0" and "" are none; else return what is wrong."""
    if text in ("", "0"):
        return None
    address = parse_bind_address(text)
    return address or f"{text!r} is not an address like :{example_port} or 127.0.0.1:{example_port}"
