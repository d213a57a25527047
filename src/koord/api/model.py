"""This module holds the base classes of every wire model, the one codec that reads and writes them, and the
scalar types that all kinds share.

A model is a read-only view of an object: unknown fields are dropped on decode, so a decoded object is never
written back whole. Writes are patches (see koord.kube). Go servers write `null` for empty lists and maps;
the fast path does not accept it, and `decode` falls back to a pass that removes nulls, so programs never
meet `None` in place of a list. Quantities stay the text that was on the wire; koord.values.quantity gives
them arithmetic.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import msgspec

from koord.values.json_text import MAX_JSON_BYTES, MalformedText, json_limit_exceeded

T = TypeVar("T")


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Model is the base of wire models. `kw_only` is not inherited by msgspec, so each subclass states it again."""


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}
_ENCODER = msgspec.json.Encoder()


def decode(raw: bytes | msgspec.Raw, model: type[T]) -> T:
    """Decode bytes to a model. Raise msgspec.ValidationError with the path of the offending field."""
    decoder = _DECODERS.get(model)
    if decoder is None:
        decoder = _DECODERS[model] = msgspec.json.Decoder(model)
    try:
        try:
            return decoder.decode(raw)  # type: ignore[no-any-return]
        except msgspec.ValidationError:
            return convert(msgspec.json.decode(raw), model)
    except RecursionError:
        raise msgspec.ValidationError("it is nested too deeply") from None


def decode_text(text: str | bytes, model: type[T], *, max_bytes: int = MAX_JSON_BYTES) -> T | MalformedText:
    """Decode JSON that somebody wrote into an annotation, a ConfigMap, a review or a file, within limits on its length
    and depth: what is decoded can be walked by code that recurses.
    """
    try:
        raw = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        return MalformedText(f"is not Unicode: {error.reason} at character {error.start}")
    exceeded = json_limit_exceeded(raw, max_bytes=max_bytes)
    if exceeded is not None:
        return exceeded
    try:
        return decode(raw, model)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return MalformedText(str(error))


def convert(obj: Any, model: type[T]) -> T:
    """Convert dicts and lists to a model, with the same tolerance for nulls."""
    try:
        return msgspec.convert(obj, model, str_keys=True)
    except msgspec.ValidationError:
        return msgspec.convert(without_nulls(obj), model, str_keys=True)


def without_nulls(value: Any) -> Any:
    """Return the same JSON value with every null map entry and null list item removed."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value if v is not None]
    return value


def encode(value: Any) -> bytes:
    return _ENCODER.encode(value)


def to_dict(model: msgspec.Struct) -> dict[str, Any]:
    """Return a model as JSON dicts and lists; msgspec.to_builtins leaves tuples, which never equal decoded lists."""
    plain: dict[str, Any] = msgspec.json.decode(_ENCODER.encode(model))
    return plain


QuantityText: TypeAlias = str | int | float
ResourceList: TypeAlias = dict[str, QuantityText]
IntOrString: TypeAlias = int | str
# A nested object that a controller stamps new objects from. It stays plain because a typed view drops the fields that
# it does not know, and those must reach the new object.
Obj: TypeAlias = dict[str, Any]  # an object as JSON has it
RawTemplate: TypeAlias = dict[str, Any]


class Submodel(Model, frozen=True, kw_only=True, gc=False):
    """Submodel is a piece of an object below its top level.

    Submodels are frozen and decoded from text, so they form trees without cycles. The cyclic collector has
    nothing to find there, and walking 50,000 pods costs more than decoding them: submodels are hidden from it.
    msgspec passes `gc` on to subclasses. Never store a model inside one of its own maps.
    """


class LegacyCondition(Submodel, frozen=True, kw_only=True):
    """LegacyCondition is the condition of kinds older than meta/v1 Condition."""

    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class ObjectReference(Submodel, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class NamedReference(Submodel, frozen=True, kw_only=True):
    """NamedReference is core/v1's LocalObjectReference: an object of known kind in the same namespace."""

    name: str = ""
