"""This module implements the JSONPath of printer columns as kubectl reads it.

It knows fields, indexes, ranges, wildcards and comparison filters. A path is parsed once into steps;
applying it to an object gives all values that it reaches, in order.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

JsonPathStep = Callable[[Any], Iterable[Any]]

_NAME = re.compile(r"(?:[^.\[\]\s'\"\\{}()=<>!?@,:*]|\\.)+")
_QUOTED = re.compile(r"\[\s*(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")\s*\]")
_INDEX = re.compile(r"\[\s*(-?\d+|\*)\s*\]")
_RANGE = re.compile(r"\[\s*(-?\d*)\s*:\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?\]")
_UNION = re.compile(r"\[\s*(-?\d+(?:\s*,\s*-?\d+)+)\s*\]")
_FILTER = re.compile(r"\[\?\(\s*@((?:[^=!<>\])]|\[[^\]]*\])*?)\s*(?:(==|!=|<=|>=|<|>)\s*([^)]*?))?\s*\)\]")


class JsonPathError(ValueError):
    """This error says that the text is not a path that this server supports."""


class JsonPath:
    def __init__(self, steps: tuple[JsonPathStep, ...]) -> None:
        self._steps = steps

    def find(self, value: Any) -> list[Any]:
        found = [value]
        for step in self._steps:
            found = [below for here in found for below in step(here)]
        return found


@functools.lru_cache(maxsize=4096)
def parse_jsonpath(text: str) -> JsonPath:
    """Parse a path such as `.status.conditions[?(@.type=="Ready")].status`. Raises JsonPathError."""
    steps: list[JsonPathStep] = []
    at = 0
    while at < len(text):
        at = _parse_step(text, at, steps)
    return JsonPath(tuple(steps))


def _parse_step(text: str, at: int, steps: list[JsonPathStep]) -> int:
    if text.startswith("..", at):
        found = _NAME.match(text, at + 2)
        if found is None:
            raise JsonPathError(f"nothing to look for after .. in {text!r}")
        steps.append(functools.partial(_recursive_descent, name=_unescaped(found[0])))
        return found.end()
    if text[at] == ".":
        if text.startswith("*", at + 1):
            steps.append(_wildcard)
            return at + 2
        if text.startswith("[", at + 1) or at + 1 == len(text):  # ".[0]", and "." alone is the whole
            return at + 1
        found = _NAME.match(text, at + 1)
        if found is None:
            raise JsonPathError(f"unexpected {text[at + 1]!r} in {text!r}")
        steps.append(functools.partial(_field, name=_unescaped(found[0])))
        return found.end()
    if text[at] != "[":
        raise JsonPathError(f"unexpected {text[at]!r} in {text!r}")
    for pattern, make in _BRACKETS:
        found = pattern.match(text, at)
        if found is not None:
            steps.append(make(found))
            return found.end()
    raise JsonPathError(f"unterminated or unknown bracket in {text!r}")


def _unescaped(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


def _field(value: Any, name: str) -> Iterable[Any]:
    return (value[name],) if isinstance(value, dict) and name in value else ()


def _wildcard(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [value[key] for key in sorted(value)]
    return value if isinstance(value, list) else ()


def _recursive_descent(value: Any, name: str) -> Iterable[Any]:
    found = list(_field(value, name))
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return found + [hit for item in below for hit in _recursive_descent(item, name)]


def _index(found: re.Match[str]) -> JsonPathStep:
    if found[1] == "*":
        return _wildcard
    place = int(found[1])

    def step(value: Any) -> Iterable[Any]:
        inside = isinstance(value, list) and -len(value) <= place < len(value)
        return (value[place],) if inside else ()

    return step


def _index_union(found: re.Match[str]) -> JsonPathStep:
    places = [int(text) for text in found[1].split(",")]

    def step(value: Any) -> Iterable[Any]:
        return [value[p] for p in places if isinstance(value, list) and -len(value) <= p < len(value)]

    return step


def _range(found: re.Match[str]) -> JsonPathStep:
    ends = slice(*(int(text) if text else None for text in found.groups()))
    return lambda value: value[ends] if isinstance(value, list) else ()


def _quoted(found: re.Match[str]) -> JsonPathStep:
    # kubectl reads ['a.b'] as .a.b, so that a dot that is meant needs its backslash here too.
    return parse_jsonpath("." + (found[1] if found[1] is not None else found[2])).find


def _filter(found: re.Match[str]) -> JsonPathStep:
    left = parse_jsonpath(found[1].strip())
    operator, right = found[2], (found[3] or "").strip()
    wanted = _literal(right) if operator else None

    def keeps(item: Any) -> bool:
        values = left.find(item)
        if not values:
            return False
        return True if operator is None else _compare(values[0], operator, wanted)

    return lambda value: [item for item in (value if isinstance(value, list) else ()) if keeps(item)]


def _literal(text: str) -> Any:
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]:
        return _unescaped(text[1:-1])
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise JsonPathError(f"cannot compare with {text!r}") from None


def _compare(value: Any, operator: str, wanted: Any) -> bool:
    if isinstance(value, bool) != isinstance(wanted, bool) or isinstance(value, str) != isinstance(wanted, str):
        return False
    if not isinstance(value, str | bool | int | float):
        return False
    match operator:
        case "==":
            return bool(value == wanted)
        case "!=":
            return bool(value != wanted)
        case "<":
            return bool(value < wanted)
        case "<=":
            return bool(value <= wanted)
        case ">":
            return bool(value > wanted)
    return bool(value >= wanted)


_BRACKETS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], JsonPathStep]], ...] = (
    (_QUOTED, _quoted),
    (_INDEX, _index),
    (_UNION, _index_union),
    (_RANGE, _range),
    (_FILTER, _filter),
)
