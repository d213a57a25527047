"""The functions and operators of standard CEL on its values, which are JSON's with uint, bytes, timestamp, duration and
Kubernetes' own types beside them.

Types are never mixed: `1 + 1.0` is an error, as in CEL. A function that is not defined for the types of its arguments
raises NoOverload; one that has no value for them raises EvaluationFault. The evaluation returns both as a CelError.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from koord.cel.syntax import CelError, UnsignedInteger
from koord.values import duration, timestamp
from koord.values.go_regexp import compile_regexp
from koord.values.quantity import Quantity

_INT64 = range(-(1 << 63), 1 << 63)
_UINT64 = range(1 << 64)


class EvaluationFault(Exception):
    """Raised where an expression has no value."""


class OptionalValue:
    """A value that may be absent: `hasValue()`, `value()` and `orValue(x)` ask for it."""

    __slots__ = ("_values",)

    def __init__(self, *values: Any) -> None:
        self._values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OptionalValue) and self._values == other._values

    def __hash__(self) -> int:
        return hash(len(self._values))

    @property
    def is_present(self) -> bool:
        return bool(self._values)

    def value(self) -> Any:
        if not self._values:
            raise EvaluationFault("optional.none() dereference")
        return self._values[0]


class CelType(str):
    """A type as a value: what `type(x)` returns."""


TYPE_NAMES = frozenset(("bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type"))


def type_of(value: Any) -> str:
    match value:
        case CelType():
            return "type"
        case bool():
            return "bool"
        case UnsignedInteger():
            return "uint"
        case int():
            return "int"
        case float():
            return "double"
        case str():
            return "string"
        case bytes():
            return "bytes"
        case None:
            return "null_type"
        case list():
            return "list"
        case datetime():
            return "google.protobuf.Timestamp"
        case timedelta():
            return "google.protobuf.Duration"
        case Quantity():
            return "kubernetes.Quantity"
        case OptionalValue():
            return "optional_type"
    return str(getattr(value, "cel_type", "map"))


def apply_function(function: Callable[..., Any], name: str, arguments: list[Any]) -> Any:
    try:
        return function(*arguments)
    except (TypeError, NoOverload):
        types = ", ".join(type_of(argument) for argument in arguments)
        raise EvaluationFault(f"no such overload: {name}({types})") from None


class NoOverload(Exception):
    """Raised by a function that is not defined for its arguments' types."""


def _same_type(left: Any, right: Any, *types: str) -> str:
    kind = type_of(left)
    if kind != type_of(right) or (types and kind not in types):
        raise NoOverload
    return kind


def select_field(value: Any, field: str) -> Any:
    if isinstance(value, OptionalValue):  # what follows `.?` in a chain is optional too
        if not value.is_present or not has_field(value.value(), field):
            return OptionalValue()
        return OptionalValue(select_field(value.value(), field))
    if not isinstance(value, Mapping):
        raise EvaluationFault(f"no such key: {field}" if value is None else "no such overload")
    try:
        found = value[field]
    except KeyError:
        raise EvaluationFault(f"no such key: {field}") from None
    if isinstance(found, CelError):  # a variable of a policy that has no value
        raise EvaluationFault(found.message)
    return found


def has_field(value: Any, field: str) -> bool:
    if not isinstance(value, Mapping):
        raise EvaluationFault("no such overload")
    return field in value


def _index(value: Any, key: Any) -> Any:
    if isinstance(value, Mapping):
        try:
            return value[key]  # a map may have a value for keys that it does not list
        except KeyError:
            raise EvaluationFault(f"no such key: {key}") from None
    if isinstance(value, list) and type_of(key) in ("int", "uint"):
        if not 0 <= key < len(value):
            raise EvaluationFault(f"index out of bounds: {key}")
        return value[key]
    raise NoOverload


def _ranged(value: int, kind: str) -> int:
    if value not in (_UINT64 if kind == "uint" else _INT64):
        raise EvaluationFault(f"{'unsigned ' if kind == 'uint' else ''}integer overflow")
    return UnsignedInteger(value) if kind == "uint" else value


def _add(left: Any, right: Any) -> Any:
    kinds = (type_of(left), type_of(right))
    if kinds == ("google.protobuf.Duration", "google.protobuf.Timestamp"):
        return right + left
    if kinds == ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return left + right
    kind = _same_type(left, right, "int", "uint", "double", "string", "bytes", "list", "google.protobuf.Duration")
    return _ranged(left + right, kind) if kind in ("int", "uint") else left + right


def _subtract(left: Any, right: Any) -> Any:
    if type_of(left) == "google.protobuf.Timestamp" and isinstance(right, datetime | timedelta):
        return left - right
    kind = _same_type(left, right, "int", "uint", "double", "google.protobuf.Duration")
    return _ranged(left - right, kind) if kind in ("int", "uint") else left - right


def _multiply(left: Any, right: Any) -> Any:
    kind = _same_type(left, right, "int", "uint", "double")
    return left * right if kind == "double" else _ranged(left * right, kind)


def _divide(left: Any, right: Any) -> Any:
    kind = _same_type(left, right, "int", "uint", "double")
    if kind == "double":
        if right == 0:
            return float("nan") if left == 0 or left != left else float("inf") if left > 0 else float("-inf")
        return left / right
    if right == 0:
        raise EvaluationFault("division by zero")
    quotient = abs(left) // abs(right)
    return _ranged(quotient if (left < 0) == (right < 0) else -quotient, kind)


def _modulo(left: Any, right: Any) -> Any:
    kind = _same_type(left, right, "int", "uint")
    if right == 0:
        raise EvaluationFault("modulus by zero")
    rest = abs(left) % abs(right)
    return _ranged(-rest if left < 0 else rest, kind)


_NUMBERS = ("int", "uint", "double")


def is_equal(left: Any, right: Any) -> bool:
    kinds = (type_of(left), type_of(right))
    if kinds[0] in _NUMBERS and kinds[1] in _NUMBERS:
        return bool(left == right)
    if kinds[0] != kinds[1]:
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(is_equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(is_equal(value, right[key]) for key, value in left.items())
    return bool(left == right)


_ORDERED = ("bool", "string", "bytes", "google.protobuf.Timestamp", "google.protobuf.Duration")


def is_less(left: Any, right: Any) -> bool:
    return bool(STANDARD_FUNCTIONS["_<_"](left, right))


def _order(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def ordered(left: Any, right: Any) -> bool:
        if not (type_of(left) in _NUMBERS and type_of(right) in _NUMBERS):
            _same_type(left, right, *_ORDERED)
        return compare(left, right)

    return ordered


def contains_element(element: Any, within: Any) -> bool:
    if isinstance(within, list):
        return any(is_equal(element, one) for one in within)
    if isinstance(within, Mapping):
        return element in within
    raise NoOverload


def _size(value: Any) -> int:
    if isinstance(value, str | bytes | list | Mapping) and not isinstance(value, CelType):
        return len(value)
    raise NoOverload


def _matches(text: Any, pattern: Any) -> bool:
    _same_type(text, pattern, "string")
    try:
        return compile_regexp(pattern).search(text) is not None
    except ValueError as error:
        raise EvaluationFault(f"invalid regular expression: {error}") from None


def _to_int(value: Any) -> int:
    match type_of(value):
        case "int" | "uint":
            return _ranged(int(value), "int")
        case "double" if value == value and abs(value) < 2**63:
            return int(value)
        case "string" if re.fullmatch(r"[+-]?\d+", value):
            return _ranged(int(value), "int")
        case "google.protobuf.Timestamp":
            return int(value.timestamp())
        case "string" | "double":
            raise EvaluationFault(f"type conversion error from {type_of(value)} to int")
    raise NoOverload


def _to_uint(value: Any) -> int:
    return _ranged(_to_int(value), "uint")


def _to_double(value: Any) -> float:
    if type_of(value) not in (*_NUMBERS, "string"):
        raise NoOverload
    try:
        return float(value)
    except ValueError:
        raise EvaluationFault("type conversion error from string to double") from None


def to_string(value: Any) -> str:
    match type_of(value):
        case "string":
            return str(value)
        case "bool":
            return "true" if value else "false"
        case "int" | "uint":
            return str(int(value))
        case "double":
            return f"{value:g}" if value != int(value) else str(int(value))
        case "bytes":
            return bytes(value).decode(errors="replace")
        case "google.protobuf.Timestamp":
            return timestamp.text(value)
        case "google.protobuf.Duration":
            return f"{value.total_seconds():g}s"
        case "net.IP" | "net.CIDR":
            return str(value)
    raise NoOverload


def _to_timestamp(value: Any) -> datetime:
    if type_of(value) == "string":
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            raise EvaluationFault("type conversion error from string to timestamp") from None
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    if type_of(value) == "int":
        return datetime.fromtimestamp(value, UTC)
    raise NoOverload


def _to_duration(value: Any) -> timedelta:
    if type_of(value) != "string":
        raise NoOverload
    try:
        return timedelta(seconds=duration.parse_seconds(value))
    except ValueError:
        raise EvaluationFault("type conversion error from string to duration") from None


def _of_strings(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*arguments: Any) -> Any:
        if any(type_of(argument) != "string" for argument in arguments):
            raise NoOverload
        return function(*arguments)

    return checked


def _not(value: Any) -> bool:
    if not isinstance(value, bool):
        raise NoOverload
    return not value


def _negate(value: Any) -> Any:
    if type_of(value) not in ("int", "double"):
        raise NoOverload
    return _ranged(-value, "int") if isinstance(value, int) else -value


def _join(parts: Any, separator: Any = "") -> str:
    if not isinstance(parts, list) or any(type_of(part) != "string" for part in (*parts, separator)):
        raise NoOverload
    return str(separator).join(parts)


def _substring(text: Any, begin: Any, end: Any = None) -> str:
    if type_of(text) != "string" or type_of(begin) != "int" or (end is not None and type_of(end) != "int"):
        raise NoOverload
    last = len(text) if end is None else end
    if not 0 <= begin <= last <= len(text):
        raise EvaluationFault(f"index out of range: {begin}")
    return str(text)[begin:last]


def _listed(function: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if not isinstance(value, list):
            raise NoOverload
        return function(value)

    return checked


def _nonempty(choose: Callable[[list[Any]], Any], name: str) -> Callable[[Any], Any]:
    def chosen(value: list[Any]) -> Any:
        if not value:
            raise EvaluationFault(f"{name} called on empty list")
        return choose(value)

    return _listed(chosen)


def _of_optional(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(value: Any, *arguments: Any) -> Any:
        if not isinstance(value, OptionalValue):
            raise NoOverload
        return function(value, *arguments)

    return checked


STANDARD_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "_+_": _add,
    "_-_": _subtract,
    "_*_": _multiply,
    "_/_": _divide,
    "_%_": _modulo,
    "_==_": is_equal,
    "_!=_": lambda left, right: not is_equal(left, right),
    "_<_": _order(lambda left, right: bool(left < right)),
    "_<=_": _order(lambda left, right: bool(left <= right)),
    "_>_": _order(lambda left, right: bool(left > right)),
    "_>=_": _order(lambda left, right: bool(left >= right)),
    "_[_]": _index,
    "@in": contains_element,
    "!_": _not,
    "-_": _negate,
    "size": _size,
    "int": _to_int,
    "uint": _to_uint,
    "double": _to_double,
    "string": to_string,
    "bytes": _of_strings(lambda text: text.encode()),
    "timestamp": _to_timestamp,
    "duration": _to_duration,
    "matches": _matches,
    "dyn": lambda value: value,
    "type": lambda value: CelType(type_of(value)),
}
STANDARD_METHODS: Mapping[str, Callable[..., Any]] = {
    "size": _size,
    "matches": _matches,
    "contains": _of_strings(lambda text, part: part in text),
    "startsWith": _of_strings(lambda text, part: text.startswith(part)),
    "endsWith": _of_strings(lambda text, part: text.endswith(part)),
    "lowerAscii": _of_strings(lambda text: text.lower()),
    "upperAscii": _of_strings(lambda text: text.upper()),
    "trim": _of_strings(lambda text: text.strip()),
    "substring": _substring,
    "join": _join,
    "isSorted": _listed(lambda value: all(not STANDARD_FUNCTIONS["_>_"](a, b) for a, b in itertools.pairwise(value))),
    "sum": _listed(sum),
    "min": _nonempty(min, "min"),
    "max": _nonempty(max, "max"),
    "hasValue": _of_optional(lambda optional: optional.is_present),
    "value": _of_optional(lambda optional: optional.value()),
    "orValue": _of_optional(lambda optional, other: optional.value() if optional.is_present else other),
}
