"""These functions operate on typed objects for server-side apply."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.merge.element import SELF
from koord.embedded.apiserver.merge.fieldset import MEMBER, Fields, in_order
from koord.embedded.apiserver.merge.walk import ABSENT, ANY, below, declared, granular_list, is_map, item_step, items_of
from koord.embedded.apiserver.schema.node import Node


def mentioned(value: Any, node: Node) -> Fields:
    """Return the fields that a configuration sets; a struct is owned through its fields, a map entry also as such."""
    found = _mentioned(value, node)
    return found if found is not None else {}


def _mentioned(value: Any, node: Node) -> Fields | None:
    """Return what a value owns below itself; MEMBER when it is a leaf, None when it owns nothing at all."""
    if is_map(node) or (node.kind == "any" and isinstance(value, dict)):
        if node.atomic:
            return MEMBER
        if not isinstance(value, dict):
            return None
        out: Fields = {}
        for key in sorted(value):
            item = value[key]
            tree = _mentioned(item, below(node, key))
            if item is None or item == {} or not declared(node, key):
                tree = _owned(tree)
            if tree is not None:
                out["f:" + key] = tree
        return out or None
    if granular_list(node):
        if not isinstance(value, list):
            return None
        return _mentioned_items(value, node)
    return MEMBER


def _owned(tree: Fields | None) -> Fields:
    return {SELF: MEMBER, **tree} if tree else MEMBER


def _mentioned_items(value: list[Any], node: Node) -> Fields | None:
    items: dict[str, Fields] = {}
    for item in value:
        step = item_step(node, item)
        items[step] = MEMBER if step in items else _owned(_mentioned(item, items_of(node)))
    return {step: items[step] for step in in_order(items)} or None


def with_parents(fields: Fields, node: Node) -> Fields:
    """Return the set with every struct field above one of its fields as a member too.

    Maps and items are not added.
    """
    out: Fields = {}
    for step, tree in fields.items():
        if not tree or step == SELF:
            out[step] = tree
            continue
        inner = ANY
        if step[0] == "f" and (is_map(node) or node.kind == "any"):
            inner = below(node, step[2:])
        elif step[0] == "k" and node.kind == "list":
            inner = items_of(node)
        deeper = with_parents(tree, inner)
        if SELF not in deeper and step[0] == "f" and declared(node, step[2:]):
            deeper = {SELF: MEMBER, **deeper}
        out[step] = deeper
    return out


def overlaid(live: Any, config: Any, node: Node) -> Any:
    """Merge a configuration into the live value, removing nothing; return ABSENT when neither side has a value."""
    if live is ABSENT and config is ABSENT:
        return ABSENT
    kind = node.kind
    if kind == "any":
        form = config if config is not ABSENT and config is not None else live
        if not isinstance(form, dict):
            return _last(live, config)
        kind = "map"
    if kind == "object" or kind == "map":
        left = live if isinstance(live, dict) else {}
        right = config if isinstance(config, dict) else {}
        if node.atomic or (not left and not right):
            return _last(live, config)
        out = {}
        for key in {**left, **right}:
            value = overlaid(left.get(key, ABSENT), right.get(key, ABSENT), below(node, key))
            if value is not ABSENT:
                out[key] = value
        return out or ABSENT
    if kind == "list" and node.list_type != "atomic":
        before = live if isinstance(live, list) else []
        after = config if isinstance(config, list) else []
        if not before and not after:
            return _last(live, config)
        return _overlaid_items(before, after, node) or ABSENT
    return _last(live, config)


def _last(live: Any, config: Any) -> Any:
    return live if config is ABSENT else config


def _overlaid_items(live: list[Any], config: list[Any], node: Node) -> list[Any]:
    """Merge list items in the configuration's order, keeping live-only items beside the shared items next to them."""
    inner = items_of(node)
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
        value = overlaid(mine, theirs, inner)
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


def removed(value: Any, fields: Fields, node: Node) -> Any:
    """Return the value without the given fields; a container that loses everything becomes null, as it does in Go."""
    if isinstance(value, dict) and (is_map(node) or node.kind == "any"):
        if not value or node.atomic:
            return None
        out = {}
        for key, item in value.items():
            tree = fields.get("f:" + key)
            if tree is None:
                out[key] = item
            elif tree and SELF not in tree:
                out[key] = removed(item, tree, below(node, key))
        return out or None
    if granular_list(node) and isinstance(value, list):
        kept = []
        for item in value:
            tree = fields.get(item_step(node, item))
            if tree is None:
                kept.append(item)
            elif tree and SELF not in tree:
                kept.append(removed(item, tree, items_of(node)))
        return kept or None
    if is_map(node) or node.kind == "list" or isinstance(value, list):
        return None
    return value


def fitting(fields: Fields, node: Node) -> Fields:
    """Return the set with everything below an atomic field collapsed into that field."""
    out: Fields | None = None
    for step, tree in fields.items():
        if not tree or step == SELF:
            continue
        inner = items_of(node) if node.kind == "list" else below(node, step[2:])
        whole = inner.atomic or (inner.kind == "list" and inner.list_type == "atomic")
        fitted = MEMBER if whole else fitting(tree, inner)
        if fitted is not tree:
            out = dict(fields) if out is None else out
            out[step] = fitted
    return fields if out is None else out
