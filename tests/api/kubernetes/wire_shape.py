"""Compare a model, field by field and all the way down, with the frozen OpenAPI definitions."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect

from tests.api.kubernetes.freeze import DEFINITIONS, DISCOVERY

Definitions = Mapping[str, Mapping[str, str]]

SCALARS: dict[type[inspect.Type], str] = {
    inspect.StrType: "string",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.DateTimeType: "time",
}
UNIONS = {
    frozenset({inspect.StrType, inspect.IntType, inspect.FloatType}): "quantity",
    frozenset({inspect.StrType, inspect.IntType}): "int-or-string",
}


@functools.cache
def frozen() -> dict[str, Any]:
    with gzip.open(DEFINITIONS) as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


@functools.cache
def discovery() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(DISCOVERY.read_text()))


def complaints(model: type, definition: str, definitions: Definitions) -> list[str]:
    """What is wrong with a model, as `path: model says X, server says Y`; nothing when it agrees."""
    kind = inspect.type_info(model)
    return list(_compare(kind, f"@{definition}", model.__name__, definitions))


def _compare(kind: inspect.Type, wire: str, path: str, definitions: Definitions) -> Iterator[str]:
    match kind:
        case inspect.Metadata():
            yield from _compare(kind.type, wire, path, definitions)
        case inspect.UnionType():
            present = [t for t in kind.types if not isinstance(t, inspect.NoneType)]
            if len(present) == 1:
                yield from _compare(present[0], wire, path, definitions)
            else:
                union = UNIONS.get(frozenset(type(t) for t in present), "unknown union")
                if union != wire:
                    yield f"{path}: model says {union}, server says {wire}"
        case inspect.StructType() if wire.startswith("@"):
            properties = definitions[wire[1:]]
            for field in kind.fields:
                below = f"{path}.{field.encode_name}"
                if field.encode_name not in properties:
                    yield f"{below}: not on the wire"
                else:
                    yield from _compare(field.type, properties[field.encode_name], below, definitions)
        case inspect.VarTupleType() if wire.startswith("["):
            yield from _compare(kind.item_type, wire[1:], f"{path}[]", definitions)
        case inspect.DictType() if wire.startswith("{"):
            yield from _compare(kind.value_type, wire[1:], f"{path}{{}}", definitions)
        case inspect.DictType(value_type=inspect.AnyType()) if wire == "any" or wire.startswith("@"):
            pass  # kept plain on purpose
        case _:
            said = SCALARS.get(type(kind), type(kind).__name__)
            if said != wire:
                yield f"{path}: model says {said}, server says {wire}"


def structs(model: type) -> set[type]:
    """Every Struct class that a model is made of, itself included."""
    found: set[type] = set()

    def visit(kind: inspect.Type) -> None:
        match kind:
            case inspect.StructType():
                if kind.cls not in found:
                    found.add(kind.cls)
                    for field in kind.fields:
                        visit(field.type)
            case inspect.UnionType():
                for member in kind.types:
                    visit(member)
            case inspect.VarTupleType():
                visit(kind.item_type)
            case inspect.DictType():
                visit(kind.value_type)
            case inspect.Metadata():
                visit(kind.type)

    visit(inspect.type_info(model))
    return found
