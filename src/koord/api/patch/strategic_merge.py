"""This module applies strategic merge patches of built-in kinds: objects merge by field, lists as their schema
says, directives override.

Errors carry kube-apiserver's words and codes; most of them leave it as a 500 because it never classified
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.api.patch.merge_patch import Obj, PatchFailed, bad_patch, server_error, without_null_fields
from koord.api.patch.merge_schema import OPEN_SCHEMA, UNKNOWN_FIELD_SCHEMA, MergeSchema
from koord.api.patch.strategic_lists import (
    DELETE,
    DIRECTIVE,
    MERGE,
    REPLACE,
    MergeError,
    check_order,
    interleave_in_order,
    item_type,
    json_type,
    merge_items,
    split_by_presence,
)
from koord.values import go_format
from koord.values.go_format import quoted

RETAIN_KEYS = "$retainKeys"
DELETE_FROM = "$deleteFromPrimitiveList"
SET_ORDER = "$setElementOrder"

_BAD_RETAIN = "invalid patch format of retainKeys"
_BAD_DELETE = "invalid patch format of primitive list"
_BAD_ORDER = "invalid patch format of setElementOrder list"


def strategic_merge(doc: Obj, patch: Any, node: MergeSchema) -> Obj | PatchFailed:
    """Return the document after a decoded strategic merge patch. Neither is changed; unchanged parts are shared.

    New objects keep directives that only mean something to a merge (`$retainKeys`, `$setElementOrder/...`):
    they are unknown fields, and are dropped with the others when the caller prunes.
    """
    if patch is None:
        return doc
    if not isinstance(patch, dict):
        kind = go_format.json_kind_name(patch)
        return bad_patch(f"json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
    try:
        return merge_maps(doc, patch, node)
    except MergeError as wrong:
        return wrong.failed


def merge_maps(original: Obj, patch: Obj, node: MergeSchema) -> Obj:
    if DIRECTIVE in patch:
        return _apply_directive(patch)
    out = dict(original)
    patch = dict(patch)
    _apply_retain_keys(out, patch)
    _apply_element_order(out, patch, node)
    for name, value in patch.items():
        deletes = name.startswith(DELETE_FROM)
        key = _target(name, DELETE_FROM, _BAD_DELETE) if deletes else name
        if value is None:
            out.pop(key, None)
        elif key not in out or json_type(out[key]) != json_type(value):
            if not deletes:
                _set_new_value(out, key, value)
        elif isinstance(value, dict):
            below, strategy, _ = field_schema(node, key)
            out[key] = value if strategy == REPLACE else merge_maps(out[key], value, below)
        elif isinstance(value, list):
            below, strategy, merge_key = list_schema(node, key)
            if strategy == MERGE or deletes:
                out[key] = merge_items(out[key], value, merge_key, _merger(below), deletes=deletes)
            else:
                out[key] = value
        else:
            out[key] = value
    return out


def _merger(node: MergeSchema) -> Callable[[Obj, Obj], Obj]:
    return lambda original, patch: merge_maps(original, patch, node)


def _apply_directive(patch: Obj) -> Obj:
    directive = patch[DIRECTIVE]
    if directive == REPLACE:
        return {k: v for k, v in patch.items() if k != DIRECTIVE}
    if directive == DELETE:
        return {}
    raise MergeError(
        server_error(f"unknown patch type: {go_format.format_v(directive)} in map: {go_format.format_v(patch)}")
    )


def _set_new_value(out: Obj, key: str, value: Any) -> None:
    """Set a value with nothing to merge into: nulls and directives in it are dropped."""
    kept, keep = _without_directives(without_null_fields(value))
    if keep:
        out[key] = kept
    else:
        out.pop(key, None)


def _without_directives(value: Any) -> tuple[Any, bool]:
    if isinstance(value, dict):
        if DIRECTIVE in value:
            return None, False
        found = {k: _without_directives(v) for k, v in value.items()}
        return {k: v for k, (v, keep) in found.items() if keep}, True
    if isinstance(value, list):
        return [v for v, keep in map(_without_directives, value) if keep], True
    return value, True


def _apply_retain_keys(out: Obj, patch: Obj) -> None:
    if RETAIN_KEYS not in patch:
        return
    keys = patch.pop(RETAIN_KEYS)
    if not isinstance(keys, list):
        raise MergeError(bad_patch(_BAD_RETAIN))
    for key, value in patch.items():
        if value is not None and not key.startswith((DELETE_FROM, SET_ORDER)) and key not in keys:
            raise MergeError(bad_patch(_BAD_RETAIN))
    for key in [key for key in out if key not in keys]:
        del out[key]


def _apply_element_order(out: Obj, patch: Obj, node: MergeSchema) -> None:
    """Merge the lists with a $setElementOrder directive, and take them out of the patch."""
    for name in [name for name in patch if name.startswith(SET_ORDER)]:
        order = patch.pop(name)
        if not isinstance(order, list):
            raise _wrong_type([], order)
        key = _target(name, SET_ORDER, _BAD_ORDER)
        for side in (out, patch):
            if key in side and not isinstance(side[key], list):
                raise _wrong_type([], side[key])
        below, strategy, merge_key = list_schema(node, key)
        live: list[Any] = out.get(key, [])
        wanted: list[Any] = patch.get(key, [])
        check_order(wanted, order, merge_key)
        if key not in out and key not in patch:
            continue
        if key not in patch:
            merged = live
        elif key not in out:
            merged = _without_directives(wanted)[0]
        elif strategy == MERGE:
            merged = merge_items(live, wanted, merge_key, _merger(below), deletes=False)
        else:
            merged = wanted
        patch.pop(key, None)
        item_type(live, wanted)
        named, others = split_by_presence(merged, order, merge_key)
        out[key] = interleave_in_order(named, others, order, live, merge_key)


def _wrong_type(expected: Any, actual: Any) -> MergeError:
    return MergeError(
        server_error(f"expected a {go_format.go_type_name(expected)}, but received a {go_format.go_type_name(actual)}")
    )


def _target(name: str, prefix: str, complaint: str) -> str:
    head, slash, key = name.partition("/")
    if head != prefix or not slash:
        raise MergeError(bad_patch(complaint))
    return key


def field_schema(node: MergeSchema, key: str) -> tuple[MergeSchema, str, str]:
    """Return the schema, list strategy and merge key of a field."""
    if node.kind == OPEN_SCHEMA:
        found = node.fields.get(key, UNKNOWN_FIELD_SCHEMA)
        return found, _strategy(found), found.patch_key
    if node.kind == "map":
        words = "merging an object in json but data type is not struct, instead is: map"
        raise MergeError(server_error(words))
    known = node.fields.get(key)
    if known is None:
        struct = node.go_type.rsplit(".", 1)[-1]
        words = f"unable to find api field in struct {struct} for the json field {quoted(key)}"
        raise MergeError(server_error(words))
    return known, _strategy(known), known.patch_key


def _strategy(node: MergeSchema) -> str:
    return MERGE if MERGE in node.patch_strategy else REPLACE if REPLACE in node.patch_strategy else ""


def list_schema(node: MergeSchema, key: str) -> tuple[MergeSchema, str, str]:
    found, strategy, merge_key = field_schema(node, key)
    if found.kind == OPEN_SCHEMA:
        return found.items or UNKNOWN_FIELD_SCHEMA, strategy, merge_key
    if found.kind != "list" or found.items is None:
        raise MergeError(server_error("expected slice or array type, but got: struct"))
    return found.items, strategy, merge_key
