"""This module reads and writes JSON annotations, and defines the value that stands for unreadable text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from koord.api.model import QuantityText, decode_text
from koord.values.json_text import MalformedText
from koord.values.quantity import Quantity
from koord.values.quantity_syntax import QuantityError

T = TypeVar("T")

# Maps are written with sorted keys, as Go does; a stable text keeps a patch from being sent for nothing.
_ENCODER = msgspec.json.Encoder(order="deterministic")


class MalformedAnnotation(msgspec.Struct, frozen=True):
    """MalformedAnnotation means that the key is there and its text cannot be read."""

    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


def parse_json(
    values: Mapping[str, str],
    key: str,
    shape: type[T],
    amounts: Callable[[T], Iterable[QuantityText]] | None = None,
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
    value = decode_text(text, shape)
    if isinstance(value, MalformedText):
        return MalformedAnnotation(key, value.reason)
    try:
        for amount in amounts(value) if amounts else ():
            Quantity.parse(amount)
    except QuantityError as error:
        return MalformedAnnotation(key, str(error))
    return value


def dump_json(value: Any) -> str:
    return _ENCODER.encode(value).decode()
