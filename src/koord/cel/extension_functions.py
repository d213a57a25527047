"""The extensions of CEL that Kubernetes has: more of strings and lists, regular expressions, sets, optional values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from koord.cel.functions import (
    EvaluationFault,
    NoOverload,
    OptionalValue,
    contains_element,
    is_equal,
    is_less,
    to_string,
    type_of,
)
from koord.values.go_regexp import compile_regexp

_INT = "int"


def _typed(*kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that checks the types of the leading arguments that are there."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any) -> Any:
            if any(type_of(value) != kind for value, kind in zip(arguments, kinds, strict=False)):
                raise NoOverload
            return function(*arguments)

        return checked

    return wrap


# Strings and regular expressions --------------------------------------------------------------------------------------


@_typed("string", _INT)
def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise EvaluationFault(f"index out of range: {at}")
    return text[at : at + 1]


def _index_of(where: Any, what: Any, start: Any = None) -> int:
    if isinstance(where, list) and start is None:
        return next((at for at, element in enumerate(where) if is_equal(element, what)), -1)
    return int(_text_index(where, what, 0 if start is None else start))


@_typed("string", "string", _INT)
def _text_index(text: str, part: str, start: int) -> int:
    if not 0 <= start <= len(text):
        raise EvaluationFault(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(where: Any, what: Any, last: Any = None) -> int:
    if isinstance(where, list) and last is None:
        return next((at for at in range(len(where) - 1, -1, -1) if is_equal(where[at], what)), -1)
    return int(_last_text_index(where, what, len(where) if last is None and isinstance(where, str) else last))


@_typed("string", "string", _INT)
def _last_text_index(text: str, part: str, last: int) -> int:
    if not 0 <= last <= len(text):
        raise EvaluationFault(f"index out of range: {last}")
    return text.rfind(part, 0, last + len(part))


@_typed("string", "string", "string", _INT)
def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    return text.replace(old, new, count if count >= 0 else -1)


@_typed("string", "string", _INT)
def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if count == 1:
        return [text]
    if not separator:
        letters = list(text)
        return letters if count < 0 or len(letters) <= count else [*letters[: count - 1], text[count - 1 :]]
    return text.split(separator, count - 1 if count > 0 else -1)


def _searched(text: str, pattern: str) -> Iterable[str]:
    try:
        return (found[0] for found in compile_regexp(pattern).finditer(text))
    except ValueError as error:
        raise EvaluationFault(f"Illegal regex: {error}") from None


@_typed("string", "string")
def _find(text: str, pattern: str) -> str:
    return next(iter(_searched(text, pattern)), "")


@_typed("string", "string", _INT)
def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = _searched(text, pattern)
    return list(found if limit < 0 else itertools.islice(found, limit))


_QUOTED = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}


@_typed("string")
def _quote(text: str) -> str:
    escaped = "".join(_QUOTED.get(char, rf"\{char}" if char in '"\\' else char) for char in text)
    return f'"{escaped}"'


_CLAUSE = re.compile(r"%(?:\.(\d+))?([%sdfebxXo])|%(.?)", re.DOTALL)


@_typed("string", "list")
def _format(text: str, arguments: list[Any]) -> str:
    """Fill the clauses of a text: %s, %d, %f, %e, %b, %x, %X, %o, with a precision where it makes sense."""
    left = iter(arguments)

    def filled(clause: re.Match[str]) -> str:
        if clause[2] is None:
            raise EvaluationFault(f"could not parse formatting clause: unrecognized formatting clause {clause[3]!r}")
        if clause[2] == "%":
            return "%"
        try:
            value = next(left)
        except StopIteration:
            raise EvaluationFault(f"index {len(arguments)} out of range") from None
        return _formatted(clause[2], value, int(clause[1]) if clause[1] else 6)

    return _CLAUSE.sub(filled, text)


def _formatted(verb: str, value: Any, precision: int) -> str:
    kind = type_of(value)
    if verb == "s":
        return _shown(value)
    if verb == "d" and kind in ("int", "uint"):
        return str(int(value))
    if verb in "fe" and kind in ("int", "uint", "double"):
        return f"{float(value):.{precision}f}" if verb == "f" else _scientific(float(value), precision)
    if verb in "bo" and kind in ("int", "uint", "bool"):
        return f"{int(value):{verb}}"
    if verb in "xX":
        if kind in ("int", "uint"):
            return f"{int(value):{verb}}"
        if kind in ("string", "bytes"):
            digits = (value.encode() if isinstance(value, str) else value).hex()
            return str(digits.upper() if verb == "X" else digits)
    raise EvaluationFault(f"error during formatting: %{verb} does not take a {kind}")


def _shown(value: Any, *, is_inner: bool = False) -> str:
    """Return a value as %s shows it; texts inside of lists and maps are quoted."""
    if isinstance(value, list):
        return f"[{', '.join(_shown(one, is_inner=True) for one in value)}]"
    if isinstance(value, Mapping):
        pairs = sorted((_shown(key, is_inner=True), _shown(one, is_inner=True)) for key, one in value.items())
        return f"{{{', '.join(f'{key}:{one}' for key, one in pairs)}}}"
    if is_inner and isinstance(value, str):
        return str(_quote(value))
    return "null" if value is None else to_string(value)


_SUPERSCRIPTS = str.maketrans("0123456789-+", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b ")


def _scientific(value: float, precision: int) -> str:
    """Return a number as %e shows it: the exponent of ten raised, in two digits at least."""
    mantissa, _, exponent = f"{value:.{precision}e}".partition("e")
    return f"{mantissa}\u00d710{exponent.removeprefix('+').translate(_SUPERSCRIPTS)}"


# Lists and sets -------------------------------------------------------------------------------------------------------


@_typed("list")
def _distinct(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not contains_element(value, found):
            found.append(value)
    return found


@_typed("list", _INT)
def _flatten(values: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise EvaluationFault("level must be non-negative")
    flat: list[Any] = []
    for value in values:
        flat += _flatten(value, depth - 1) if isinstance(value, list) and depth else [value]
    return flat


@_typed("list", _INT, _INT)
def _slice(values: list[Any], begin: int, end: int) -> list[Any]:
    if not 0 <= begin <= end <= len(values):
        raise EvaluationFault(f"cannot slice({begin}, {end}), list is length {len(values)}")
    return values[begin:end]


@_typed("list")
def _sort(values: list[Any]) -> list[Any]:
    ordered: list[Any] = []
    for value in values:
        at = next((i for i, other in enumerate(ordered) if is_less(value, other)), len(ordered))
        ordered.insert(at, value)
    return ordered


@_typed("list")
def _reverse(values: list[Any]) -> list[Any]:
    return values[::-1]


_MAX_RANGE = 100_000


@_typed(_INT)
def _range(count: int) -> list[int]:
    if count > _MAX_RANGE:
        raise EvaluationFault(f"lists.range({count}): at most {_MAX_RANGE}")
    return list(range(count))


@_typed("list", "list")
def _set_contains(values: list[Any], others: list[Any]) -> bool:
    return all(contains_element(other, values) for other in others)


@_typed("list", "list")
def _set_intersects(values: list[Any], others: list[Any]) -> bool:
    return any(contains_element(other, values) for other in others)


def _set_equivalent(values: Any, others: Any) -> bool:
    return bool(_set_contains(values, others)) and bool(_set_contains(others, values))


def _end_of(at: int) -> Callable[[list[Any]], OptionalValue]:
    return _typed("list")(lambda values: OptionalValue(values[at]) if values else OptionalValue())


# Optionals ------------------------------------------------------------------------------------------------------------


def _non_zero(value: Any) -> OptionalValue:
    return OptionalValue(value) if value or type_of(value) not in _HAVE_ZERO else OptionalValue()


_HAVE_ZERO = ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type")


@_typed("optional_type", "optional_type")
def _or(optional: OptionalValue, other: OptionalValue) -> OptionalValue:
    return optional if optional.is_present else other


def _optional_index(value: Any, key: Any) -> OptionalValue:
    """Return the element if it is there, of a value that may itself be optional: `value[?key]`."""
    if isinstance(value, OptionalValue):
        return _optional_index(value.value(), key) if value.is_present else value
    if isinstance(value, Mapping):
        return OptionalValue(value[key]) if key in value else OptionalValue()
    if isinstance(value, list) and type_of(key) in ("int", "uint"):
        return OptionalValue(value[key]) if 0 <= key < len(value) else OptionalValue()
    raise NoOverload


EXTENSION_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "lists.range": _range,
    "sets.contains": _set_contains,
    "sets.equivalent": _set_equivalent,
    "sets.intersects": _set_intersects,
    "strings.quote": _quote,
    "optional.of": OptionalValue,
    "optional.none": OptionalValue,
    "optional.ofNonZeroValue": _non_zero,
    "_[?_]": _optional_index,
    "_?._": _optional_index,
}
EXTENSION_METHODS: Mapping[str, Callable[..., Any]] = {
    "charAt": _char_at,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "replace": _replace,
    "split": _split,
    "format": _format,
    "reverse": _reverse,
    "find": _find,
    "findAll": _find_all,
    "distinct": _distinct,
    "flatten": _flatten,
    "slice": _slice,
    "sort": _sort,
    "first": _end_of(0),
    "last": _end_of(-1),
    "or": _or,
}
