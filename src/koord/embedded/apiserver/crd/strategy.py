"""This module builds the resources that a CRD makes the server serve, one for each served version.

A resource has a strategy that follows its schema, conversion to the storage version, and printer columns.
With conversion strategy None only the apiVersion changes: fields that the schema of the target version does
not name are pruned, and objects stored under an older schema are read with the defaults of the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.crd import jsonpath
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.refusal import FieldError
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.validation import validate, validate_update

Obj = dict[str, Any]


def custom_strategy(
    node: Node, *, status: bool, selectable: Sequence[str], refuse_create: Callable[[Obj], refusal.Refusal] | None
) -> Strategy:
    """Return the strategy of custom objects, which takes from their schema all that a built-in kind has in code.

    `selectable`: paths of fields that lists can be filtered by. `refuse_create`: set while the CRD is
    terminating.
    """
    ignored = ("metadata", "status") if status else ("metadata",)

    def prepare_update(new: Obj, old: Obj) -> None:
        if {k: v for k, v in new.items() if k not in ignored} != {k: v for k, v in old.items() if k not in ignored}:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate_create(obj: Obj) -> list[FieldError]:
        if refuse_create is not None:
            raise refuse_create(obj)
        return validate(obj, node)

    def update_errors(new: Obj, old: Obj) -> list[FieldError]:
        return validate_update(new, old, node)

    return Strategy(
        prepare_create=_first_generation,
        prepare_update=prepare_update,
        validate_create=validate_create,
        validate_update=update_errors,
        validate_status=update_errors,
        fields=selectable_fields(selectable),
    )


def _first_generation(obj: Obj) -> None:
    obj["metadata"]["generation"] = 1


def selectable_fields(paths: Sequence[str]) -> Mapping[str, Callable[[Obj], str]]:
    return {path.removeprefix("."): _field(path) for path in paths}


def _field(path: str) -> Callable[[Obj], str]:
    way = jsonpath.parse(path)

    def value(obj: Obj) -> str:
        found = way.find(obj)
        if not found or found[0] is None:
            return ""
        if isinstance(found[0], bool):
            return "true" if found[0] else "false"
        return str(found[0])

    return value
