"""This module compares two objects of one kind and returns removed, modified and added field sets.

Equal subtrees are skipped by comparing them whole, which Python does in C, so the cost follows the size of
the change and not that of the object.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.embedded.apiserver.merge.element import SELF
from koord.embedded.apiserver.merge.fieldset import MEMBER, Fields, in_order
from koord.embedded.apiserver.merge.walk import ANY, below, item_step, items_of, open_ended
from koord.embedded.apiserver.schema.node import Node


class Comparison(msgspec.Struct, frozen=True):
    removed: Fields
    modified: Fields
    added: Fields


def compare(old: dict[str, Any], new: dict[str, Any], node: Node) -> Comparison:
    removed: Fields = {}
    modified: Fields = {}
    added: Fields = {}
    if old and new:
        _maps(old, new, node, removed, modified, added)
    elif new:
        added = {step: tree for step, tree in whole(new, node).items() if step != SELF}
    elif old:
        removed = {step: tree for step, tree in whole(old, node).items() if step != SELF}
    return Comparison(removed, modified, added)


def same(a: Any, b: Any, node: Node) -> bool:
    """Return whether two JSON values are equal.

    Python differs only in 1 == True, which matters where the type is unknown.
    """
    return bool(a == b) and (not open_ended(node) or _same_types(a, b))


def _same_types(a: Any, b: Any) -> bool:
    """Return whether two values that are equal to Python are equal as JSON too."""
    if isinstance(a, dict):
        return all(_same_types(v, b[k]) for k, v in a.items())
    if isinstance(a, list):
        return all(_same_types(x, y) for x, y in zip(a, b))
    return isinstance(a, bool) == isinstance(b, bool)


def whole(value: Any, node: Node) -> Fields:
    """Return the fields owned by whoever adds the value: every leaf, and every container above it."""
    kind = node.kind
    if kind == "object":
        if not value or node.atomic or not isinstance(value, dict):
            return MEMBER
        fields = node.fields
        out: Fields = {SELF: MEMBER}
        for key in sorted(value):
            item = value[key]
            # Most fields are scalars: they are handled here because a call for each costs more than the rest.
            if item.__class__ is dict or item.__class__ is list:
                out["f:" + key] = whole(item, fields.get(key) or ANY)
            else:
                out["f:" + key] = MEMBER
        return out
    if kind == "map" or kind == "any":
        if not value or node.atomic or not isinstance(value, dict):
            return MEMBER
        inner = node.values or ANY
        out = {SELF: MEMBER}
        for key in sorted(value):
            item = value[key]
            out["f:" + key] = whole(item, inner) if item.__class__ is dict or item.__class__ is list else MEMBER
        return out
    if kind == "list" and value and node.list_type != "atomic" and isinstance(value, list):
        inner = node.items or ANY
        items: Fields = {}
        for item in value:
            step = item_step(node, item)
            items[step] = MEMBER if step in items else whole(item, inner)  # doubles are owned as one, without content
        return {SELF: MEMBER, **{step: items[step] for step in in_order(items)}}
    return MEMBER


def _values(old: Any, new: Any, node: Node, step: str, removed: Fields, modified: Fields, added: Fields) -> None:
    """Compare two values that are both present and differ."""
    kind = node.kind
    if kind == "any" and not node.atomic:
        _untyped(old, new, step, removed, modified, added)
        return
    if kind == "object" or kind == "map":
        left = old if isinstance(old, dict) else {}
        right = new if isinstance(new, dict) else {}
        if node.atomic or (not left and not right):
            modified[step] = MEMBER
            return
        gone: Fields = {}
        changed: Fields = {}
        fresh: Fields = {}
        _maps(left, right, node, gone, changed, fresh)
    elif kind == "list" and node.list_type != "atomic":
        before = old if isinstance(old, list) else []
        after = new if isinstance(new, list) else []
        if not before and not after:
            modified[step] = MEMBER
            return
        gone, changed, fresh = {}, {}, {}
        _lists(before, after, node, gone, changed, fresh)
    else:
        modified[step] = MEMBER
        return
    if gone:
        removed[step] = gone
    if changed:
        modified[step] = changed
    if fresh:
        added[step] = fresh


def _maps(old: Fields, new: Fields, node: Node, removed: Fields, modified: Fields, added: Fields) -> None:
    for key in sorted({**old, **new}):
        if key not in new:
            removed["f:" + key] = whole(old[key], below(node, key))
        elif key not in old:
            added["f:" + key] = whole(new[key], below(node, key))
        else:
            before, after = old[key], new[key]
            if before is not after and not same(before, after, below(node, key)):
                _values(before, after, below(node, key), "f:" + key, removed, modified, added)


def _untyped(old: Any, new: Any, step: str, removed: Fields, modified: Fields, added: Fields) -> None:
    was = isinstance(old, dict)
    now = isinstance(new, dict)
    gone: Fields = {}
    changed: Fields = {}
    fresh: Fields = {}
    if (was or old is None) and (now or new is None) and (old or new):
        _maps(old or {}, new or {}, ANY, gone, changed, fresh)
    else:
        # A change of form: the old form's fields go, the new one's come, and the field itself is modified.
        if was and old:
            _maps(old, {}, ANY, gone, changed, fresh)
        if now and new:
            _maps({}, new, ANY, gone, changed, fresh)
        modified[step] = MEMBER
    if gone:
        removed[step] = gone
    if changed:
        modified[step] = changed
    if fresh:
        added[step] = fresh


def _lists(old: list[Any], new: list[Any], node: Node, removed: Fields, modified: Fields, added: Fields) -> None:
    inner = items_of(node)
    before = _by_step(old, node)
    after = _by_step(new, node)
    for step in in_order({**before, **after}):
        left = before.get(step, [])
        right = after.get(step, [])
        if len(left) <= 1 and len(right) <= 1:
            if not left:
                added[step] = whole(right[0], inner)
            elif not right:
                removed[step] = whole(left[0], inner)
            elif not same(left[0], right[0], inner):
                _values(left[0], right[0], inner, step, removed, modified, added)
        elif len(left) > 1 and len(right) > 1:
            if left != right:
                modified[step] = MEMBER
        elif len(left) > 1:
            removed[step] = MEMBER
            if right:
                added[step] = whole(right[0], inner)
        else:
            if left:
                removed[step] = whole(left[0], inner)
            added[step] = MEMBER


def _by_step(items: list[Any], node: Node) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(item_step(node, item), []).append(item)
    return found
