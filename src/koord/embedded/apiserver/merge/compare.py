"""This module compares two objects of one kind and returns removed, modified and added field sets.

Equal subtrees are skipped by comparing them whole, which Python does in C, so the cost follows the size of
the change and not that of the object.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.embedded.apiserver.merge.fieldset import MEMBER, SELF, FieldSet, sort_steps
from koord.embedded.apiserver.merge.typed_value import UNTYPED, child_node, has_untyped_part, item_node, item_step
from koord.embedded.apiserver.schema.custom_validation import same_booleans
from koord.embedded.apiserver.schema.schema_node import SchemaNode


class Comparison(msgspec.Struct, frozen=True):
    removed: FieldSet
    modified: FieldSet
    added: FieldSet


def compare(old: dict[str, Any], new: dict[str, Any], node: SchemaNode) -> Comparison:
    removed: FieldSet = {}
    modified: FieldSet = {}
    added: FieldSet = {}
    if old and new:
        _compare_maps(old, new, node, removed, modified, added)
    elif new:
        added = {step: tree for step, tree in all_fields(new, node).items() if step != SELF}
    elif old:
        removed = {step: tree for step, tree in all_fields(old, node).items() if step != SELF}
    return Comparison(removed, modified, added)


def equal_values(a: Any, b: Any, node: SchemaNode) -> bool:
    """Return whether two JSON values are equal. Python differs only in 1 == True, where the type is unknown."""
    return bool(a == b) and (not has_untyped_part(node) or same_booleans(a, b))


def all_fields(value: Any, node: SchemaNode) -> FieldSet:
    """Return the fields owned by whoever adds the value: every leaf, and every container above it."""
    kind = node.kind
    if kind == "object":
        if not value or node.atomic or not isinstance(value, dict):
            return MEMBER
        fields = node.fields
        out: FieldSet = {SELF: MEMBER}
        for key in sorted(value):
            item = value[key]
            # Most fields are scalars: they are handled here because a call for each costs more than the rest.
            if item.__class__ is dict or item.__class__ is list:
                out["f:" + key] = all_fields(item, fields.get(key) or UNTYPED)
            else:
                out["f:" + key] = MEMBER
        return out
    if kind == "map" or kind == "any":
        if not value or node.atomic or not isinstance(value, dict):
            return MEMBER
        inner = node.values or UNTYPED
        out = {SELF: MEMBER}
        for key in sorted(value):
            item = value[key]
            out["f:" + key] = all_fields(item, inner) if item.__class__ is dict or item.__class__ is list else MEMBER
        return out
    if kind == "list" and value and node.list_type != "atomic" and isinstance(value, list):
        inner = node.items or UNTYPED
        items: FieldSet = {}
        for item in value:
            step = item_step(node, item)
            items[step] = (
                MEMBER if step in items else all_fields(item, inner)
            )  # doubles are owned as one, without content
        return {SELF: MEMBER, **{step: items[step] for step in sort_steps(items)}}
    return MEMBER


def _compare_values(
    old: Any, new: Any, node: SchemaNode, step: str, removed: FieldSet, modified: FieldSet, added: FieldSet
) -> None:
    """Compare two values that are both present and differ."""
    kind = node.kind
    if kind == "any" and not node.atomic:
        _compare_untyped(old, new, step, removed, modified, added)
        return
    if kind == "object" or kind == "map":
        left = old if isinstance(old, dict) else {}
        right = new if isinstance(new, dict) else {}
        if node.atomic or (not left and not right):
            modified[step] = MEMBER
            return
        gone: FieldSet = {}
        changed: FieldSet = {}
        fresh: FieldSet = {}
        _compare_maps(left, right, node, gone, changed, fresh)
    elif kind == "list" and node.list_type != "atomic":
        before = old if isinstance(old, list) else []
        after = new if isinstance(new, list) else []
        if not before and not after:
            modified[step] = MEMBER
            return
        gone, changed, fresh = {}, {}, {}
        _compare_lists(before, after, node, gone, changed, fresh)
    else:
        modified[step] = MEMBER
        return
    for kept, found in ((removed, gone), (modified, changed), (added, fresh)):
        if found:
            kept[step] = found


def _compare_maps(
    old: FieldSet, new: FieldSet, node: SchemaNode, removed: FieldSet, modified: FieldSet, added: FieldSet
) -> None:
    for key in sorted({**old, **new}):
        if key not in new:
            removed["f:" + key] = all_fields(old[key], child_node(node, key))
        elif key not in old:
            added["f:" + key] = all_fields(new[key], child_node(node, key))
        else:
            before, after = old[key], new[key]
            if before is not after and not equal_values(before, after, child_node(node, key)):
                _compare_values(before, after, child_node(node, key), "f:" + key, removed, modified, added)


def _compare_untyped(old: Any, new: Any, step: str, removed: FieldSet, modified: FieldSet, added: FieldSet) -> None:
    was = isinstance(old, dict)
    now = isinstance(new, dict)
    gone: FieldSet = {}
    changed: FieldSet = {}
    fresh: FieldSet = {}
    if (was or old is None) and (now or new is None) and (old or new):
        _compare_maps(old or {}, new or {}, UNTYPED, gone, changed, fresh)
    else:
        # A change of form: the old form's fields go, the new one's come, and the field itself is modified.
        if was and old:
            _compare_maps(old, {}, UNTYPED, gone, changed, fresh)
        if now and new:
            _compare_maps({}, new, UNTYPED, gone, changed, fresh)
        modified[step] = MEMBER
    for kept, found in ((removed, gone), (modified, changed), (added, fresh)):
        if found:
            kept[step] = found


def _compare_lists(
    old: list[Any], new: list[Any], node: SchemaNode, removed: FieldSet, modified: FieldSet, added: FieldSet
) -> None:
    inner = item_node(node)
    before = _items_by_step(old, node)
    after = _items_by_step(new, node)
    for step in sort_steps({**before, **after}):
        left = before.get(step, [])
        right = after.get(step, [])
        if len(left) <= 1 and len(right) <= 1:
            if not left:
                added[step] = all_fields(right[0], inner)
            elif not right:
                removed[step] = all_fields(left[0], inner)
            elif not equal_values(left[0], right[0], inner):
                _compare_values(left[0], right[0], inner, step, removed, modified, added)
        elif len(left) > 1 and len(right) > 1:
            if left != right:
                modified[step] = MEMBER
        elif len(left) > 1:
            removed[step] = MEMBER
            if right:
                added[step] = all_fields(right[0], inner)
        else:
            if left:
                removed[step] = all_fields(left[0], inner)
            added[step] = MEMBER


def _items_by_step(items: list[Any], node: SchemaNode) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(item_step(node, item), []).append(item)
    return found
