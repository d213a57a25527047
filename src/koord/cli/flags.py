"""This module parses command lines as Kubernetes' programs do: pflag's syntax and messages, help in sections.

A program states its flags as a table; `FlagSet.parse` returns the values or the one line that says what is
wrong. Nothing here prints or exits, and nothing but argv is read.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koord.cli.flag_kind import BOOLEAN, VERSION, BadValue, Kind
from koord.values.quotation import quoted

T = TypeVar("T")

_INDENT = 6


class Flag(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    help: str
    default: Any = None  # None: the kind's empty value
    short: str = ""
    unused: str = ""  # why the flag is taken and changes nothing, if so

    @property
    def start(self) -> Any:
        return self.kind.empty if self.default is None else self.default


class BadCommand(msgspec.Struct, frozen=True):
    message: str


class Values:
    """FlagValues is what the command line says about each flag; defaults where it says nothing."""

    def __init__(self, values: Mapping[str, Any], given: frozenset[str]) -> None:
        self._values = values
        self._given = given

    def given(self, name: str) -> bool:
        if name not in self._values:
            raise KeyError(f"there is no flag --{name}")
        return name in self._given

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def text(self, name: str) -> str:
        return _is(self._values[name], str, name)

    def switch(self, name: str) -> bool:
        return _is(self._values[name], bool, name)

    def number(self, name: str) -> int:
        """Return an integer, or a duration in nanoseconds."""
        return _is(self._values[name], int, name)

    def ratio(self, name: str) -> float:
        return float(self._values[name])

    def seconds(self, name: str) -> float:
        return self.number(name) / 1e9

    def strings(self, name: str) -> tuple[str, ...]:
        found: tuple[str, ...] = _is(self._values[name], tuple, name)
        return found

    def mapping(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = _is(self._values[name], dict, name)
        return found


def _is(value: Any, kind: type[T], name: str) -> T:
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

    def read(self, argv: Sequence[str]) -> Values | BadCommand:
        """Parse everything after the program's name. --help ends parsing, as nothing after it matters."""
        values: dict[str, Any] = {name: flag.start for name, flag in self.flags.items()}
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
                    self._long(word, words, values, given)
                elif word.startswith("-") and word != "-":
                    self._shorts(word, words, values, given)
                else:
                    rest.append(word)
                if "help" in given and values["help"]:
                    return Values(values, frozenset(given))
        except _Wrong as wrong:
            return BadCommand(str(wrong))
        if rest:
            got = " ".join(map(quoted, rest))
            return BadCommand(f'"{self.program}" does not take any arguments, got [{got}]')
        return Values(values, frozenset(given))

    def unused(self, values: Values) -> list[tuple[str, str]]:
        """Return the flags that were given and have no effect, each with the reason."""
        return [(f.name, f.unused) for f in self.flags.values() if f.unused and values.given(f.name)]

    def help(self, width: int = 0) -> str:
        """Return the help text; a `width` of 0 does not wrap."""
        parts = [self._about.strip(), f"\nUsage:\n  {self.program} [flags]"]
        for title, flags in self._sections.items():
            parts.append(f"\n{title} flags:\n\n" + "\n".join(_lines(flags, width)))
        return "\n".join(parts) + "\n"

    def _long(self, word: str, words: list[str], values: dict[str, Any], given: set[str]) -> None:
        name, equals, value = word[2:].partition("=")
        if not name or name[0] in "-=":
            raise _Wrong(f"bad flag syntax: {word}")
        flag = self.flags.get(name.replace("_", "-"))
        if flag is None:
            raise _Wrong(f"unknown flag: --{name}")
        if not equals:
            if flag.kind.bare:
                value = flag.kind.bare
            elif words:
                value = words.pop(0)
            else:
                raise _Wrong(f"flag needs an argument: --{name}")
        _set(flag, value, values, given)

    def _shorts(self, word: str, words: list[str], values: dict[str, Any], given: set[str]) -> None:
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            flag = self._short.get(letter)
            if flag is None:
                raise _Wrong(f"unknown shorthand flag: '{letter}' in {word}")
            if letters.startswith("="):
                value, letters = letters[1:], ""
            elif flag.kind.bare:
                value = flag.kind.bare
            elif letters:
                value, letters = letters, ""
            elif words:
                value = words.pop(0)
            else:
                raise _Wrong(f"flag needs an argument: '{letter}' in {word}")
            _set(flag, value, values, given)


class _Wrong(Exception):
    """_ParseError ends parsing from any depth; its text becomes the result."""


def _set(flag: Flag, value: str, values: dict[str, Any], given: set[str]) -> None:
    target = flag.name
    try:
        read = flag.kind.read(value)
    except BadValue as wrong:
        shown = f"-{flag.short}, --{flag.name}" if flag.short else f"--{flag.name}"
        raise _Wrong(f'invalid argument {quoted(value)} for "{shown}" flag: {wrong}') from None
    if flag.kind.repeats and target in given:
        before = values[target]
        read = {**before, **read} if isinstance(read, dict) else before + read
    values[target] = read
    given.add(target)


def _lines(flags: Sequence[Flag], width: int) -> list[str]:
    heads = [_head(flag) for flag in flags]
    column = max(map(len, heads)) + 3
    lines = []
    for head, flag in zip(heads, flags):
        words = _words(flag).split("\n")
        if width > column + 24:
            words = [piece for line in words for piece in textwrap.wrap(line, width - column) or [""]]
        lines.append(f"{head:<{column}}{words[0]}".rstrip())
        lines += [" " * column + more for more in words[1:]]
    return lines


def _head(flag: Flag) -> str:
    start = f"  -{flag.short}, --{flag.name}" if flag.short else f"{'':{_INDENT}}--{flag.name}"
    return f"{start} {flag.kind.shown}".rstrip()


def _words(flag: Flag) -> str:
    text = flag.help
    start = flag.start
    if start != flag.kind.empty and (shown := flag.kind.write(start)):
        text += f" (default {shown})"
    return f"{text} [accepted without effect: {flag.unused}]" if flag.unused else text
