"""Decoding of configuration to models, in two ways.

`decode_strict` is for files that a person checks before use: an unknown field is an error, because a typo must not
become a default. `decode_lenient` converts JSON text as Go programs do: names in any case, unknown names ignored, wrong
types refused. `unknown_names` reports what it ignores, because a misspelt name is a setting that has no effect.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.model import convert, decode_text
from koord.api.schema import unwrap_annotated
from koord.api.schema_markers import SchemaRule
from koord.values import duration
from koord.values.go_format import quoted
from koord.values.json_text import MalformedText
from koord.values.quantity import Quantity, QuantityError

T = TypeVar("T")


def decode_strict(document: Any, model: type[T]) -> T | list[FieldError]:
    """Return the model, or all unknown fields, or the first value of a wrong type."""
    unknown = unknown_fields(document, model)
    if unknown:
        return [
            FieldError(
                path,
                None,
                f"is not a known field (unknown field {_quoted_field_name(path)}); known are {', '.join(known)}",
            )
            for path, known in unknown
        ]
    try:
        return convert(document, model)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        return [FieldError(path.rstrip("`").removeprefix("$."), None, text)]


def _quoted_field_name(path: str) -> str:
    """Return the field's name, quoted as Kubernetes does."""
    return quoted(path.rpartition(".")[2])


def unknown_fields(value: Any, tp: Any, path: str = "") -> list[tuple[str, tuple[str, ...]]]:
    """Return the paths of keys that the model would drop, each with the names that it has there.

    Below free-form maps everything is known.
    """
    tp = _unwrap_optional(tp)
    origin, args = get_origin(tp), get_args(tp)
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct) and isinstance(value, Mapping):
        known = {f.encode_name: f.type for f in msgspec.structs.fields(tp)}
        found = []
        for key, inner in value.items():
            here = f"{path}.{key}" if path else str(key)
            found += unknown_fields(inner, known[key], here) if key in known else [(here, tuple(known))]
        return found
    if origin is tuple and isinstance(value, list | tuple):
        return [p for i, inner in enumerate(value) for p in unknown_fields(inner, args[0], f"{path}[{i}]")]
    if origin is dict and isinstance(value, Mapping):
        return [p for key, inner in value.items() for p in unknown_fields(inner, args[1], f"{path}[{key}]")]
    return []


def _unwrap_optional(tp: Any) -> Any:
    while True:
        if get_origin(tp) is Annotated:
            tp = get_args(tp)[0]
        elif get_origin(tp) in (Union, types.UnionType):
            some = [a for a in get_args(tp) if a is not type(None)]
            if len(some) != 1:
                return tp
            tp = some[0]
        else:
            return tp


_BYTE = re.compile(r" \(byte ([0-9]+)\)")
_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)


def decode_lenient(text: str, model: type[T]) -> T | FieldError:
    """Return the model, or the first thing that cannot be read. Empty text is not JSON."""
    document = decode_text(text, object)
    if isinstance(document, MalformedText):
        return FieldError("", None, _json_error_text(document, text))
    return convert_lenient(document, model)


def json_error_line(text: str) -> int | None:
    """Return the line where text ceases to be JSON, counted from 1; None where it is JSON throughout."""
    document = decode_text(text, object)
    if not isinstance(document, MalformedText):
        return None
    if document.line is not None:
        return document.line
    where = _BYTE.search(document.reason)
    return text.rstrip().count("\n") + 1 if where is None else _line_and_column(text, int(where.group(1)))[0]


def convert_lenient(document: Any, model: type[T]) -> T | FieldError:
    """Convert JSON that is already plain data, as `decode_lenient` does."""
    try:
        plain = _convert_value(document, model, "")
        return msgspec.convert({} if plain is None else plain, model)
    except _ConversionError as misfit:
        return misfit.error
    except msgspec.ValidationError as error:  # what _fit does not look at: unions and free-form parts
        why, _, path = str(error).partition(" - at `")
        return FieldError(path.rstrip("`").removeprefix("$."), None, why)


class UnknownName(msgspec.Struct, frozen=True):
    """UnknownName is a name that `decode_lenient` ignores, and the known one that it resembles."""

    path: str
    closest: str = ""

    def to_field_error(self) -> FieldError:
        hint = f": did you mean {self.closest}?" if self.closest else ""
        return FieldError(self.path, None, f"is not a known setting and has no effect{hint}")


def unknown_names(document: Any, model: Any, path: str = "") -> list[UnknownName]:
    tp, _ = unwrap_annotated(model)
    origin, args = get_origin(tp), get_args(tp)
    if _is_struct(tp) and isinstance(document, Mapping):
        fields = _fields(tp)
        found = []
        for key, inner in document.items():
            here = _joined(path, key)
            known = fields.get(key.lower())
            found += (
                [UnknownName(here, _closest_name(key, fields))]
                if known is None
                else unknown_names(inner, known[1], here)
            )
        return found
    if origin is tuple and isinstance(document, list):
        return [p for i, inner in enumerate(document) for p in unknown_names(inner, args[0], f"{path}[{i}]")]
    if origin is dict and isinstance(document, Mapping):
        return [p for key, inner in document.items() for p in unknown_names(inner, args[1], f"{path}[{key}]")]
    return []


class _ConversionError(Exception):
    """_ConversionError never leaves this module: it ends a conversion and becomes a value."""

    def __init__(self, path: str, value: Any, rule: str) -> None:
        super().__init__(path)
        self.error = FieldError(path, value, rule)


def _convert_value(value: Any, model: Any, path: str) -> Any:
    """Return the value with names spelt as the model spells them; null counts as absent everywhere."""
    tp, rule = unwrap_annotated(model)
    origin, args = get_origin(tp), get_args(tp)
    if value is None:
        return None
    if _is_struct(tp):
        return _convert_struct(value, tp, path)
    if rule.quantity:
        return _quantity(value, path)
    if rule.duration:
        return _duration(value, path)
    if rule.int_or_string:
        if isinstance(value, str):
            return value
        return _integer(value, path, _INT32)
    if origin is tuple:
        if not isinstance(value, list):
            raise _ConversionError(path, value, "must be a list")
        items = [_convert_value(item, args[0], f"{path}[{i}]") for i, item in enumerate(value)]
        return [_zero(args[0]) if item is None else item for item in items]
    if origin is dict:
        if not isinstance(value, dict):
            raise _ConversionError(path, value, "must be an object")
        fitted = {key: _convert_value(item, args[1], f"{path}[{key}]") for key, item in value.items()}
        return {key: _zero(args[1]) if item is None else item for key, item in fitted.items()}
    return _scalar(value, tp, path, rule)


def _convert_struct(value: Any, tp: type[msgspec.Struct], path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _ConversionError(path, value, "must be an object")
    fields = _fields(tp)
    fitted: dict[str, Any] = {}
    for key, inner in value.items():
        known = fields.get(key.lower())
        if known is None:
            continue
        name, field_type = known
        made = _convert_value(inner, field_type, _joined(path, name))
        if made is not None:
            fitted[name] = made
    for name in _required(tp):
        fitted.setdefault(name, "")
    return fitted


def _scalar(value: Any, tp: Any, path: str, rule: SchemaRule) -> Any:
    if tp is bool:
        if not isinstance(value, bool):
            raise _ConversionError(path, value, "must be true or false")
    elif tp is int:
        return _integer(value, path, _INT32 if rule.format == "int32" else _INT64)
    elif tp is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _ConversionError(path, value, "must be a number")
    elif tp is str and not isinstance(value, str):
        raise _ConversionError(path, value, "must be a string")
    return value


def _integer(value: Any, path: str, allowed: range) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _ConversionError(path, value, "must be a whole number")
    if value not in allowed:
        raise _ConversionError(path, value, f"must be from {allowed.start} to {allowed.stop - 1}")
    return value


def _quantity(value: Any, path: str) -> str:
    """Return a quantity as Kubernetes prints it: 1000M becomes 1G."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _ConversionError(path, value, "must be a quantity, such as 500M or 1Gi")
    try:
        return str(Quantity.parse(value))
    except QuantityError:
        raise _ConversionError(path, value, "must be a quantity, such as 500M or 1Gi") from None


def _duration(value: Any, path: str) -> str:
    """Return a duration as Go prints it: 90s becomes 1m30s."""
    try:
        return duration.text(duration.parse(value if isinstance(value, str) else ""))
    except duration.DurationError:
        raise _ConversionError(path, value, "must be a duration, such as 5m or 1h30m") from None


def _zero(model: Any) -> Any:
    """Return what Go leaves where a list or a map holds null."""
    tp, _ = unwrap_annotated(model)
    if _is_struct(tp):
        return dict.fromkeys(_required(tp), "")
    return {str: "", int: 0, float: 0.0, bool: False}.get(tp)


@lru_cache(maxsize=512)
def _fields(tp: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    """Return the wire name and the annotated type of each field, by lower-case wire name."""
    hints = get_type_hints(tp, include_extras=True)
    return {f.encode_name.lower(): (f.encode_name, hints[f.name]) for f in msgspec.structs.fields(tp)}


@lru_cache(maxsize=512)
def _required(tp: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(f.encode_name for f in msgspec.structs.fields(tp) if f.required)


def _is_struct(tp: Any) -> bool:
    return isinstance(tp, type) and issubclass(tp, msgspec.Struct)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _closest_name(key: str, fields: Mapping[str, tuple[str, Any]]) -> str:
    close = get_close_matches(key.lower(), fields, n=1, cutoff=0.75)
    return fields[close[0]][0] if close else ""


def _json_error_text(malformed: MalformedText, text: str) -> str:
    if malformed.reason.startswith("is "):  # it exceeds a limit
        return malformed.reason
    said = malformed.reason.removeprefix("JSON is malformed: ")
    if said == "Input data was truncated":
        return "is not JSON: it ends too early"
    where = _BYTE.search(said)
    if where is None:
        return f"is not JSON: {said}"
    line, column = _line_and_column(text, int(where.group(1)))
    return f"is not JSON: {said[: where.start()]} at line {line}, column {column}"


def _line_and_column(text: str, byte: int) -> tuple[int, int]:
    before = text.encode()[:byte].decode(errors="replace")
    return before.count("\n") + 1, len(before) - before.rfind("\n")
