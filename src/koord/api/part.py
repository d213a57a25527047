"""This module holds the base of everything below an object's top level, and the scalar types that all kinds
share.
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
    """Submodel is a piece of an object below its top level.

    Submodels are frozen and decoded from text, so they form trees without cycles. The cyclic collector has
    nothing to find there, and walking 50,000 pods costs more than decoding them: submodels are hidden from it.
    msgspec passes `gc` on to subclasses. Never store a model inside one of its own maps.
    """


class PlainCondition(Part, frozen=True, kw_only=True):
    """LegacyCondition is the condition of kinds older than meta/v1 Condition."""

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
    """NamedReference is core/v1's LocalObjectReference: an object of known kind in the same namespace."""

    name: str = ""
