"""This module marks model fields with schema facts that reach CRDs only: ranges, enums, defaults, Kubernetes'
extensions.

msgspec ignores them when it decodes, on purpose: a server may hold objects written under an older schema,
and a program that reads them must not fail on a value that only admission should refuse.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

T = TypeVar("T")


class SchemaRule(msgspec.Struct, frozen=True, kw_only=True):
    """SchemaRule is what the schema of one value says beyond its type. Of several on one value the outer wins."""

    description: str | None = None
    format: str | None = None
    minimum: int | None = None
    maximum: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    pattern: str | None = None
    enum: tuple[str, ...] | None = None
    default: str | int | bool | msgspec.UnsetType = msgspec.UNSET
    required: bool | None = None  # in the object's `required` list; decoding still fills in a zero value
    nullable: bool | None = None
    preserve_unknown: bool | None = None  # keep whatever is inside and check nothing of it
    schemaless: bool | None = None  # as preserve_unknown, and not even the JSON type is stated
    quantity: bool | None = None
    int_or_string: bool | None = None
    duration: bool | None = None  # says nothing to a schema, but readers of configuration check and normalise it
    map_type: Literal["atomic", "granular"] | None = None
    list_type: Literal["atomic", "set", "map"] | None = None


REQUIRED = SchemaRule(required=True)
NULLABLE = SchemaRule(nullable=True)
PRESERVE_UNKNOWN = SchemaRule(preserve_unknown=True)
SCHEMALESS = SchemaRule(schemaless=True)

Int32 = Annotated[int, SchemaRule(format="int32")]
Percent = Annotated[int, SchemaRule(minimum=0, maximum=100)]
NonNegative = Annotated[int, SchemaRule(minimum=0)]
Switch = Annotated[int, SchemaRule(minimum=0, maximum=1)]
Quantity = Annotated[str | int | float, SchemaRule(quantity=True)]
ResourceList = dict[str, Quantity]
IntOrString = Annotated[int | str, SchemaRule(int_or_string=True)]
Duration = Annotated[str, SchemaRule(duration=True)]  # as Go prints it: "5m0s"; koord.values reads it


def never_omitted(value: T) -> T:
    """Return a field with an immutable default that is always encoded, like a Go field without omitempty.

    msgspec omits a field that still holds its default, except when the default comes from a factory.
    """
    made: T = msgspec.field(default_factory=lambda: value)
    return made


def never_omitted_resources() -> ResourceList:
    """Return such a field for a map: each object gets its own. A plain `dict` factory would be omitted when empty."""
    made: ResourceList = msgspec.field(default_factory=_no_resources)
    return made


def _no_resources() -> ResourceList:
    return {}
