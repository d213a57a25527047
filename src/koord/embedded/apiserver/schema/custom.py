"""These functions decode a custom object: metadata, pruning, defaults, strict decoding errors."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.embedded.apiserver.schema import embedded
from koord.embedded.apiserver.schema.decoding import Decoded
from koord.embedded.apiserver.schema.defaulting import apply_defaults
from koord.embedded.apiserver.schema.fitting import fits
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.prune import drop_nulls, prune


def decode_custom(obj: dict[str, Any], node: Node, *, preserve: bool = False) -> Decoded:
    """Return the object as the server stores it, leaving the argument alone.

    `preserve`: the CRD keeps unknown fields.
    """
    if not preserve and fits(obj, node):
        return _stored_as_it_came(obj)
    return decode_custom_slowly(obj, node, preserve=preserve)


def decode_custom_slowly(obj: dict[str, Any], node: Node, *, preserve: bool = False) -> Decoded:
    out = settled(obj)
    unknown: list[str] = []
    if "metadata" in out:
        meta = embedded.read_meta(out["metadata"])
        if meta.error:
            return Decoded(None, (), meta.error)
        out["metadata"] = meta.value
        unknown += [f"metadata.{name}" for name in embedded.unquoted(meta.unknown)]
    if not preserve:
        unknown += prune(out, node)
    apply_defaults(out, node)
    if not preserve:
        drop_nulls(out, node)
    try:
        unknown += embedded.coerce(out, node)
    except embedded.Coerced as stop:
        return Decoded(None, (), str(stop))
    return Decoded(out, tuple(f'unknown field "{path}"' for path in unknown))


def _stored_as_it_came(obj: dict[str, Any]) -> Decoded:
    out: dict[str, Any] = msgspec.to_builtins(obj)
    if "metadata" not in out:
        return Decoded(out)
    meta = embedded.read_meta(out["metadata"])
    if meta.error:
        return Decoded(None, (), meta.error)
    out["metadata"] = meta.value
    return Decoded(out, tuple(f'unknown field "metadata.{name}"' for name in embedded.unquoted(meta.unknown)))


def settled(value: Any) -> Any:
    """Return a private copy in which a float without a fraction is an integer, which is how Go writes it back."""
    if isinstance(value, dict):
        return {k: settled(v) for k, v in value.items()}
    if isinstance(value, list):
        return [settled(v) for v in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value
