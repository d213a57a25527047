"""This module reads and writes JSON annotations, and defines the value that stands for unreadable text.

Names of fields are known in any case, as Go programs take them: {"CPUSet": "0"} is {"cpuset": "0"}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from koord.api.model import QuantityText, convert, decode_text
from koord.values.json_text import MalformedText
from koord.values.quantity import Quantity, QuantityError

T = TypeVar("T")

# Maps are written with sorted keys, as Go does; a stable text keeps a patch from being sent for nothing.
_ENCODER = msgspec.json.Encoder(order="deterministic")
_KEY = re.compile(r'"([A-Za-z0-9]+)"\s*:')  # what may be the name of a field; resource names have a dot or a slash


class MalformedAnnotation(msgspec.Struct, frozen=True):
    """MalformedAnnotation means that the key is there and its text cannot be read."""

    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


def parse_json(
    values: Mapping[str, str], key: str, shape: type[T], amounts: Callable[[T], Iterable[QuantityText]] | None = None
) -> T | MalformedAnnotation | None:
    """Parse the typed value under `key`; JSON null counts as missing.

    `amounts` lists the quantities inside. They stay text, but one that is no quantity makes the annotation
    malformed here, so that no reader meets it later.
    """
    text = values.get(key)
    if text is None:
        return None
    if text.strip() == "null":
        return None
    value: T | MalformedText = _decode(text, shape)
    if isinstance(value, MalformedText):
        return MalformedAnnotation(key, value.reason)
    try:
        for amount in amounts(value) if amounts else ():
            Quantity.parse(amount)
    except QuantityError as error:
        return MalformedAnnotation(key, str(error))
    return value


def _decode(text: str, shape: Any) -> Any:
    """Return the value of the shape, or MalformedText."""
    names, lowered = _all_names(shape), _lowered_names(shape)
    if not any(one not in names and one.lower() in lowered for one in set(_KEY.findall(text))):
        return decode_text(text, shape)
    plain = decode_text(text, object)
    if isinstance(plain, MalformedText):
        return plain
    try:
        return convert(_respelt(plain, shape), shape)
    except msgspec.ValidationError as error:
        return MalformedText(str(error))


@lru_cache(maxsize=256)
def _all_names(shape: Any) -> frozenset[str]:
    """Return the names of all fields of a shape and of what it holds."""
    if _is_struct(shape):
        inner = (_all_names(one) for _, one in _fields(shape).values())
        return frozenset(name for name, _ in _fields(shape).values()).union(*inner)
    return frozenset(name for one in get_args(shape) for name in _all_names(one))


@lru_cache(maxsize=256)
def _lowered_names(shape: Any) -> frozenset[str]:
    return frozenset(one.lower() for one in _all_names(shape))


def _respelt(value: Any, shape: Any) -> Any:
    """Return the JSON value with fields named as the shape names them; keys of maps are data and stay."""
    if _is_struct(shape) and isinstance(value, dict):
        fields = _fields(shape)
        known = ((fields[key.lower()], inner) for key, inner in value.items() if key.lower() in fields)
        return {name: _respelt(inner, inner_shape) for (name, inner_shape), inner in known}
    inner_shapes = get_args(shape)
    if isinstance(value, dict) and get_origin(shape) is dict:
        return {key: _respelt(inner, inner_shapes[1]) for key, inner in value.items()}
    if isinstance(value, list) and get_origin(shape) is tuple:
        return [_respelt(inner, inner_shapes[0]) for inner in value]
    alternatives = [one for one in inner_shapes if _is_struct(one) or get_args(one)]
    return _respelt(value, alternatives[0]) if len(alternatives) == 1 else value


@lru_cache(maxsize=256)
def _fields(shape: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    """Return the name and the type of each field by its name in lower case."""
    return {one.encode_name.lower(): (one.encode_name, one.type) for one in msgspec.structs.fields(shape)}


def _is_struct(shape: Any) -> bool:
    return isinstance(shape, type) and issubclass(shape, msgspec.Struct)


def value_or_none(found: T | MalformedAnnotation | None, faults: list[str]) -> T | None:
    """Return the value that was read; a malformed one is added to `faults` and counts as missing."""
    if isinstance(found, MalformedAnnotation):
        faults.append(str(found))
        return None
    return found


def dump_json(value: Any) -> str:
    return _ENCODER.encode(value).decode()
