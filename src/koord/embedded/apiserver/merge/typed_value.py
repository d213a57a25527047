"""This module views a value through its schema node for field ownership.

It says what is a leaf and what is owned by key or by item, and holds the operations of server-side apply on
typed values: the fields that a configuration mentions, merging one value into another, and removing fields.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from koord.embedded.apiserver.merge import fieldset
from koord.embedded.apiserver.merge.fieldset import MEMBER, SELF, FieldSet, sort_steps
from koord.embedded.apiserver.schema.builtin_decoding import go_zero_value
from koord.embedded.apiserver.schema.schema_node import SchemaNode

UNTYPED = SchemaNode(kind="any")  # a value nothing is known of: maps are owned key by key, lists as a whole
ABSENT = msgspec.UNSET


def child_node(node: SchemaNode, key: str) -> SchemaNode:
    """Return the node of an entry of a map or struct."""
    if node.kind == "map":
        return node.values or UNTYPED
    return node.fields.get(key) or UNTYPED


def is_declared_field(node: SchemaNode, key: str) -> bool:
    """Return whether the entry is a named field of a struct; the keys of a map are not."""
    return node.kind == "object" and key in node.fields


def is_map_node(node: SchemaNode) -> bool:
    return node.kind == "object" or node.kind == "map"


def is_granular_list(node: SchemaNode) -> bool:
    return node.kind == "list" and node.list_type != "atomic"


def item_step(node: SchemaNode, item: Any) -> str:
    """Return the step to one item of a granular list. Raises ValueError in kube-apiserver's words when it has none."""
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
                return fieldset.key_step(keys[0], value)
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
        return fieldset.keys_step(found)
    if isinstance(item, dict):
        raise ValueError("associative list without keys has an element that's a map type")
    if isinstance(item, list):
        raise ValueError("not supported: associative list with lists as elements")
    if item is None:
        raise ValueError("associative list without keys has an element that's an explicit null")
    return fieldset.value_step(item)


def _key_default(node: SchemaNode, name: str) -> Any:
    field = node.items.fields.get(name) if node.items else None
    return field.default if field else ABSENT


def item_node(node: SchemaNode) -> SchemaNode:
    return node.items or UNTYPED


@lru_cache(maxsize=65536)
def has_untyped_part(node: SchemaNode) -> bool:
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
def zero_object(node: SchemaNode) -> dict[str, Any]:
    """Return the zero object of a kind in Go: structs are present, and so is everything without omitempty.

    A create is an update of this object, which is why `f:spec` of a new pod is not owned as such but that of a
    custom resource is.
    """
    if not node.go_type:
        return {}
    return {name: _zero_field(field) for name, field in node.fields.items() if _is_written_when_zero(field)}


def _zero_field(field: SchemaNode) -> Any:
    return zero_object(field) if field.kind == "object" and not field.pointer else go_zero_value(field)


def _is_written_when_zero(field: SchemaNode) -> bool:
    if field.omit_zero:
        return False
    by_value = field.go_type != "" and not field.pointer and field.kind != "list" and field.kind != "map"
    return by_value or not field.omit_empty


def mentioned_fields(value: Any, node: SchemaNode) -> FieldSet:
    """Return the fields that a configuration sets; a struct is owned through its fields, a map entry also as such."""
    found = _mentioned_below(value, node)
    return found if found is not None else {}


def _mentioned_below(value: Any, node: SchemaNode) -> FieldSet | None:
    """Return what a value owns below itself; MEMBER when it is a leaf, None when it owns nothing at all."""
    if is_map_node(node) or (node.kind == "any" and isinstance(value, dict)):
        if node.atomic:
            return MEMBER
        if not isinstance(value, dict):
            return None
        out: FieldSet = {}
        for key in sorted(value):
            item = value[key]
            tree = _mentioned_below(item, child_node(node, key))
            if item is None or item == {} or not is_declared_field(node, key):
                tree = _with_self(tree)
            if tree is not None:
                out["f:" + key] = tree
        return out or None
    if is_granular_list(node):
        if not isinstance(value, list):
            return None
        return _mentioned_items(value, node)
    return MEMBER


def _with_self(tree: FieldSet | None) -> FieldSet:
    return {SELF: MEMBER, **tree} if tree else MEMBER


def _mentioned_items(value: list[Any], node: SchemaNode) -> FieldSet | None:
    items: dict[str, FieldSet] = {}
    for item in value:
        step = item_step(node, item)
        items[step] = MEMBER if step in items else _with_self(_mentioned_below(item, item_node(node)))
    return {step: items[step] for step in sort_steps(items)} or None


def with_struct_parents(fields: FieldSet, node: SchemaNode) -> FieldSet:
    """Return the set with every struct field above one of its fields as a member too. Maps and items are not added."""
    out: FieldSet = {}
    for step, tree in fields.items():
        if not tree or step == SELF:
            out[step] = tree
            continue
        inner = UNTYPED
        if step[0] == "f" and (is_map_node(node) or node.kind == "any"):
            inner = child_node(node, step[2:])
        elif step[0] == "k" and node.kind == "list":
            inner = item_node(node)
        deeper = with_struct_parents(tree, inner)
        if SELF not in deeper and step[0] == "f" and is_declared_field(node, step[2:]):
            deeper = {SELF: MEMBER, **deeper}
        out[step] = deeper
    return out


def overlay(live: Any, config: Any, node: SchemaNode) -> Any:
    """Merge a configuration into the live value, removing nothing; return ABSENT when neither side has a value."""
    if live is ABSENT and config is ABSENT:
        return ABSENT
    kind = node.kind
    if kind == "any":
        form = config if config is not ABSENT and config is not None else live
        if not isinstance(form, dict):
            return _config_or_live(live, config)
        kind = "map"
    if kind == "object" or kind == "map":
        left = live if isinstance(live, dict) else {}
        right = config if isinstance(config, dict) else {}
        if node.atomic or (not left and not right):
            return _config_or_live(live, config)
        out = {}
        for key in {**left, **right}:
            value = overlay(left.get(key, ABSENT), right.get(key, ABSENT), child_node(node, key))
            if value is not ABSENT:
                out[key] = value
        return out or ABSENT
    if kind == "list" and node.list_type != "atomic":
        before = live if isinstance(live, list) else []
        after = config if isinstance(config, list) else []
        if not before and not after:
            return _config_or_live(live, config)
        return _overlay_items(before, after, node) or ABSENT
    return _config_or_live(live, config)


def _config_or_live(live: Any, config: Any) -> Any:
    return live if config is ABSENT else config


def _overlay_items(live: list[Any], config: list[Any], node: SchemaNode) -> list[Any]:
    """Merge list items in the configuration's order, keeping live-only items beside the shared items next to them."""
    inner = item_node(node)
    left_steps = [item_step(node, item) for item in live]
    right = {item_step(node, item): item for item in config}
    left: dict[str, Any] = {}
    for step, item in zip(left_steps, live):
        left[step] = None if step in left else item  # a double matches nothing in particular
    right_steps = list(right)
    shared = [step for step in right_steps if step in left]
    out: list[Any] = []
    merged: set[str] = set()
    i = j = 0

    def take(step: str, mine: Any, theirs: Any) -> None:
        value = overlay(mine, theirs, inner)
        if value is not ABSENT:
            out.append(value)

    while i < len(left_steps) or j < len(right_steps):
        if i < len(left_steps) and j < len(right_steps):
            step = left_steps[i]
            if step == right_steps[j]:
                merged.add(step)
                take(step, left[step], right[step])
                i += 1
                j += 1
                shared = shared[1:]
                continue
            if step in right and shared and shared[0] != step:
                i += 1  # it comes later, where the configuration has it
                continue
        if i < len(left_steps):
            step = left_steps[i]
            if step not in right:
                take(step, live[i], ABSENT)
                i += 1
                continue
            if step in merged:
                i += 1
        if j < len(right_steps):
            step = right_steps[j]
            merged.add(step)
            take(step, left.get(step, ABSENT), right[step])
            j += 1
            if shared and shared[0] == step:
                shared = shared[1:]
    return out


def remove_fields(value: Any, fields: FieldSet, node: SchemaNode) -> Any:
    """Return the value without the given fields; a container that loses everything becomes null, as it does in Go."""
    if isinstance(value, dict) and (is_map_node(node) or node.kind == "any"):
        if not value or node.atomic:
            return None
        out = {}
        for key, item in value.items():
            tree = fields.get("f:" + key)
            if tree is None:
                out[key] = item
            elif tree and SELF not in tree:
                out[key] = remove_fields(item, tree, child_node(node, key))
        return out or None
    if is_granular_list(node) and isinstance(value, list):
        kept = []
        for item in value:
            tree = fields.get(item_step(node, item))
            if tree is None:
                kept.append(item)
            elif tree and SELF not in tree:
                kept.append(remove_fields(item, tree, item_node(node)))
        return kept or None
    if is_map_node(node) or node.kind == "list" or isinstance(value, list):
        return None
    return value


def collapse_atomic_fields(fields: FieldSet, node: SchemaNode) -> FieldSet:
    """Return the set with everything below an atomic field collapsed into that field."""
    out: FieldSet | None = None
    for step, tree in fields.items():
        if not tree or step == SELF:
            continue
        inner = item_node(node) if node.kind == "list" else child_node(node, step[2:])
        whole = inner.atomic or (inner.kind == "list" and inner.list_type == "atomic")
        fitted = MEMBER if whole else collapse_atomic_fields(tree, inner)
        if fitted is not tree:
            out = dict(fields) if out is None else out
            out[step] = fitted
    return fields if out is None else out
