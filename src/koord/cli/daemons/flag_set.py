"""This module parses command lines as Kubernetes' programs do: pflag's syntax and messages, help in sections, and the
types of flag values, with Go's own error messages and how a default is shown.

A program states its flags as a table; `FlagSet.parse` returns the values or the one line that says what is
wrong. Nothing here prints or exits, and nothing but argv is read.
"""

from __future__ import annotations

import csv
import ipaddress
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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


T = TypeVar("T")

_INDENT = 6


class Flag(msgspec.Struct, frozen=True):
    name: str
    kind: FlagType
    help: str
    default: Any = None  # None: the kind's empty value
    short: str = ""
    no_effect_reason: str = ""  # why the flag is taken and changes nothing, if so

    @property
    def initial_value(self) -> Any:
        return self.kind.empty if self.default is None else self.default


class FlagParseError(msgspec.Struct, frozen=True):
    message: str


class FlagValues:
    """FlagValues is what the command line says about each flag; defaults where it says nothing."""

    def __init__(self, values: Mapping[str, Any], given: frozenset[str]) -> None:
        self._values = values
        self._given = given

    def is_set(self, name: str) -> bool:
        if name not in self._values:
            raise KeyError(f"there is no flag --{name}")
        return name in self._given

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def text(self, name: str) -> str:
        return _checked_type(self._values[name], str, name)

    def switch(self, name: str) -> bool:
        return _checked_type(self._values[name], bool, name)

    def number(self, name: str) -> int:
        """Return an integer, or a duration in nanoseconds."""
        return _checked_type(self._values[name], int, name)

    def ratio(self, name: str) -> float:
        return float(self._values[name])

    def seconds(self, name: str) -> float:
        return self.number(name) / 1e9

    def strings(self, name: str) -> tuple[str, ...]:
        found: tuple[str, ...] = _checked_type(self._values[name], tuple, name)
        return found

    def mapping(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = _checked_type(self._values[name], dict, name)
        return found


def _checked_type(value: Any, kind: type[T], name: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"--{name} holds {value!r}, which is no {kind.__name__}")
    return value


class FlagSet:
    """FlagSet is the flags of one program, by section in the order of its help."""

    def __init__(self, program: str, about: str, sections: Mapping[str, Sequence[Flag]]) -> None:
        self.program = program
        self._about = about
        everywhere = (
            Flag("help", BOOLEAN, f"help for {program}", short="h"),
            Flag("version", VERSION, "--version, --version=raw prints version information and quits"),
        )
        self._sections = {**sections, "Global": (*sections.get("Global", ()), *everywhere)}
        self.flags = {flag.name: flag for flags in self._sections.values() for flag in flags}
        self._short = {flag.short: flag for flag in self.flags.values() if flag.short}
        count = sum(len(flags) for flags in self._sections.values())
        if len(self.flags) != count or len(self._short) != sum(1 for flag in self.flags.values() if flag.short):
            raise ValueError(f"{program}: two flags have one name")

    def parse(self, argv: Sequence[str]) -> FlagValues | FlagParseError:
        """Parse everything after the program's name. --help ends parsing, as nothing after it matters."""
        values: dict[str, Any] = {name: flag.initial_value for name, flag in self.flags.items()}
        given: set[str] = set()
        rest: list[str] = []
        words = list(argv)
        try:
            while words:
                word = words.pop(0)
                if word == "--":
                    rest += words
                    break
                if word.startswith("--"):
                    self._parse_long(word, words, values, given)
                elif word.startswith("-") and word != "-":
                    self._parse_shorthands(word, words, values, given)
                else:
                    rest.append(word)
                if "help" in given and values["help"]:
                    return FlagValues(values, frozenset(given))
        except _ParseError as wrong:
            return FlagParseError(str(wrong))
        if rest:
            got = " ".join(map(quoted, rest))
            return FlagParseError(f'"{self.program}" does not take any arguments, got [{got}]')
        return FlagValues(values, frozenset(given))

    def set_without_effect(self, values: FlagValues) -> list[tuple[str, str]]:
        """Return the flags that were given and have no effect, each with the reason."""
        return [
            (f.name, f.no_effect_reason) for f in self.flags.values() if f.no_effect_reason and values.is_set(f.name)
        ]

    def help(self, width: int = 0) -> str:
        """Return the help text; a `width` of 0 does not wrap."""
        parts = [self._about.strip(), f"\nUsage:\n  {self.program} [flags]"]
        for title, flags in self._sections.items():
            parts.append(f"\n{title} flags:\n\n" + "\n".join(_help_lines(flags, width)))
        return "\n".join(parts) + "\n"

    def _parse_long(self, word: str, words: list[str], values: dict[str, Any], given: set[str]) -> None:
        name, equals, value = word[2:].partition("=")
        if not name or name[0] in "-=":
            raise _ParseError(f"bad flag syntax: {word}")
        flag = self.flags.get(name.replace("_", "-"))
        if flag is None:
            raise _ParseError(f"unknown flag: --{name}")
        if not equals:
            if flag.kind.no_value_default:
                value = flag.kind.no_value_default
            elif words:
                value = words.pop(0)
            else:
                raise _ParseError(f"flag needs an argument: --{name}")
        _set_flag(flag, value, values, given)

    def _parse_shorthands(self, word: str, words: list[str], values: dict[str, Any], given: set[str]) -> None:
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            flag = self._short.get(letter)
            if flag is None:
                raise _ParseError(f"unknown shorthand flag: '{letter}' in {word}")
            if letters.startswith("="):
                value, letters = letters[1:], ""
            elif flag.kind.no_value_default:
                value = flag.kind.no_value_default
            elif letters:
                value, letters = letters, ""
            elif words:
                value = words.pop(0)
            else:
                raise _ParseError(f"flag needs an argument: '{letter}' in {word}")
            _set_flag(flag, value, values, given)


class _ParseError(Exception):
    """_ParseError ends parsing from any depth; its text becomes the result."""


def _set_flag(flag: Flag, value: str, values: dict[str, Any], given: set[str]) -> None:
    target = flag.name
    try:
        read = flag.kind.parse(value)
    except FlagValueError as wrong:
        shown = f"-{flag.short}, --{flag.name}" if flag.short else f"--{flag.name}"
        raise _ParseError(f'invalid argument {quoted(value)} for "{shown}" flag: {wrong}') from None
    if flag.kind.is_repeatable and target in given:
        before = values[target]
        read = {**before, **read} if isinstance(read, dict) else before + read
    values[target] = read
    given.add(target)


def _help_lines(flags: Sequence[Flag], width: int) -> list[str]:
    heads = [_flag_heading(flag) for flag in flags]
    column = max(map(len, heads)) + 3
    lines = []
    for head, flag in zip(heads, flags):
        words = _flag_help_text(flag).split("\n")
        if width > column + 24:
            words = [piece for line in words for piece in textwrap.wrap(line, width - column) or [""]]
        lines.append(f"{head:<{column}}{words[0]}".rstrip())
        lines += [" " * column + more for more in words[1:]]
    return lines


def _flag_heading(flag: Flag) -> str:
    start = f"  -{flag.short}, --{flag.name}" if flag.short else f"{'':{_INDENT}}--{flag.name}"
    return f"{start} {flag.kind.help_name}".rstrip()


def _flag_help_text(flag: Flag) -> str:
    text = flag.help
    start = flag.initial_value
    if start != flag.kind.empty and (shown := flag.kind.format(start)):
        text += f" (default {shown})"
    return f"{text} [accepted without effect: {flag.no_effect_reason}]" if flag.no_effect_reason else text
