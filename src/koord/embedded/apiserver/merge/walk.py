"""This module views a value through its schema node for field ownership.

It says what is a leaf and what is owned by key or by item, and holds the operations of server-side apply on
typed values: the fields that a configuration mentions, merging one value into another, and removing fields.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from koord.embedded.apiserver.merge import element
from koord.embedded.apiserver.schema.node import Node

ANY = Node(kind="any")  # a value nothing is known of: maps are owned key by key, lists as a whole
Absent = msgspec.UnsetType
ABSENT = msgspec.UNSET


def below(node: Node, key: str) -> Node:
    """Return the node of an entry of a map or struct."""
    if node.kind == "map":
        return node.values or ANY
    return node.fields.get(key) or ANY


def declared(node: Node, key: str) -> bool:
    """Return whether the entry is a named field of a struct; the keys of a map are not."""
    return node.kind == "object" and key in node.fields


def is_map(node: Node) -> bool:
    return node.kind == "object" or node.kind == "map"


def granular_list(node: Node) -> bool:
    return node.kind == "list" and node.list_type != "atomic"


def item_step(node: Node, item: Any) -> str:
    """Return the step to one item of a granular list.

    Raises ValueError in kube-apiserver's words when it has none.
    """
    if node.list_type == "map":
        if not isinstance(item, dict):
            what = "a null element" if item is None else "non-map elements"
            raise ValueError(f"associative list with keys may not have {what}")
        keys = node.list_keys
        if len(keys) == 1:
            value = item.get(keys[0], ABSENT)
            if value is ABSENT:
                value = _key_default(node, keys[0])
            if value is not ABSENT and not isinstance(value, dict | list):
                return element.of_key(keys[0], value)
        found = []
        for name in keys:
            value = item.get(name, ABSENT)
            if value is ABSENT:
                value = _key_default(node, name)
            if value is not ABSENT:
                found.append((name, value))
        if not found:
            named = " ".join(f'"{name}"' for name in keys)
            raise ValueError(
                f"associative list with keys has an element that omits all key fields [{named}]"
                " (and doesn't have default values for any key fields)"
            )
        return element.of_keys(found)
    if isinstance(item, dict):
        raise ValueError("associative list without keys has an element that's a map type")
    if isinstance(item, list):
        raise ValueError("not supported: associative list with lists as elements")
    if item is None:
        raise ValueError("associative list without keys has an element that's an explicit null")
    return element.of_value(item)


def _key_default(node: Node, name: str) -> Any:
    field = node.items.fields.get(name) if node.items else None
    return field.default if field else ABSENT


def items_of(node: Node) -> Node:
    return node.items or ANY


@lru_cache(maxsize=65536)
def open_ended(node: Node) -> bool:
    """Return whether a value of this node can contain something of unknown type."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if here.kind == "any" or here.preserve_unknown:
            return True
        # Ownership is kept beside the object, it is never compared as part of it.
        waiting += [field for name, field in here.fields.items() if name != "managedFields"]
        waiting += [part for part in (here.values, here.items) if part is not None]
    return False


# A bound, because custom kinds come and go; it is far above the number of kinds a server has.
@lru_cache(maxsize=4096)
def zero(node: Node) -> dict[str, Any]:
    """Return the zero object of a kind in Go: structs are present, and so is everything without omitempty.

    A create is an update of this object, which is why `f:spec` of a new pod is not owned as such but that of a
    custom resource is.
    """
    if not node.go_type:
        return {}
    return {name: _zero_value(field) for name, field in node.fields.items() if _written(field)}


def _written(field: Node) -> bool:
    if field.omit_zero:
        return False
    by_value = field.go_type != "" and not field.pointer and field.kind != "list" and field.kind != "map"
    return by_value or not field.omit_empty


def _zero_value(field: Node) -> Any:
    if field.pointer:
        return None
    if field.kind == "object":
        return zero(field)
    return {"string": "", "integer": 0, "number": 0, "boolean": False, "quantity": "0", "int-or-string": 0}.get(
        field.kind if field.format != "date-time" else "any"
    )
