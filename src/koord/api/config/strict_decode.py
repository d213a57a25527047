"""This module converts plain data to a configuration model strictly: an unknown field is an error, because a
typo must not become a default.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.model import convert
from koord.values.go_format import quoted

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
