"""The base of everything below an object's top level, and the scalar spellings that all kinds share.

Quantities stay the text that was on the wire; koord.values.quantity gives them arithmetic.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias

from koord.api.model import Model

QuantityText: TypeAlias = str | int | float
ResourceList: TypeAlias = dict[str, QuantityText]
IntOrString: TypeAlias = int | str
# A nested object that a controller stamps new objects from. It stays plain because a typed view drops the fields that
# it does not know, and those must reach the new object.
RawTemplate: TypeAlias = dict[str, Any]


class Part(Model, frozen=True, kw_only=True, gc=False):
    """A piece of an object.

    Parts are frozen and decoded from text, so they form trees and nothing in them can point back up. The cyclic
    collector has nothing to find there, and walking 50,000 pods costs more than decoding them: parts are hidden from
    it. msgspec passes `gc` on to subclasses. Never store a model inside one of its own maps.
    """


class PlainCondition(Part, frozen=True, kw_only=True):
    """The condition that kinds older than meta/v1 Condition carry."""

    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class ObjectReference(Part, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class NamedReference(Part, frozen=True, kw_only=True):
    """LocalObjectReference: an object of known kind in the same namespace."""

    name: str = ""
