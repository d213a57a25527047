"""This module merges lists under strategic merge: items are matched by key or value, deleted, added, and ordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.api.patch.merge_patch import Obj, PatchFailed, server_error, unprocessable
from koord.values import go_format

DIRECTIVE = "$patch"
DELETE = "delete"
REPLACE = "replace"
MERGE = "merge"


class MergeError(Exception):
    """MergeError unwinds the merge; `strategic_merge` returns its failure as a value."""

    def __init__(self, failed: PatchFailed) -> None:
        super().__init__(failed.message)
        self.failed = failed


def json_type(value: Any) -> type:
    """Return what distinguishes values in Go: a boolean is no number, and a whole number no fraction."""
    return dict if isinstance(value, dict) else list if isinstance(value, list) else type(value)


def merge_items(
    original: list[Any], patch: list[Any], key: str, merge: Callable[[Obj, Obj], Obj], *, deletes: bool
) -> list[Any]:
    if not original and not patch:
        return original
    if item_type(original, patch) is not dict:
        if deletes:
            return [item for item in original if not _contains(item, patch)]
        merged = _distinct([*original, *patch])
    else:
        if not key:
            raise MergeError(server_error("cannot merge lists without merge key for struct"))
        original, patch = _apply_list_directives(original, patch, key)
        merged = _merge_by_key(original, patch, key, merge)
    named, others = split_by_presence(merged, patch, key)
    return interleave_in_order(named, others, patch, original, key)


def item_type(*lists: list[Any]) -> type:
    found: type | None = None
    for item in (item for items in lists for item in items):
        if found is None:
            found = json_type(item)
            if found is list:
                raise MergeError(unprocessable())
        elif json_type(item) is not found:
            raise MergeError(server_error(f"list element types are not identical: {go_format.format_v(list(lists))}"))
    if found is None:
        raise MergeError(server_error("no elements in any of the given slices"))
    return found


def _apply_list_directives(original: list[Any], patch: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """Return the lists after the `$patch` items were applied."""
    plain: list[Any] = []
    replaces = False
    for item in patch:
        directive = item.get(DIRECTIVE, _ABSENT)
        if directive is _ABSENT:
            plain.append(item)
        elif directive == DELETE:
            if key not in item:
                raise _keyless(item, key)
            original = [other for other in original if not _json_equal(_map(other).get(key, _ABSENT), item[key])]
        elif directive == REPLACE:
            replaces = True
        elif directive == MERGE:
            raise MergeError(server_error("merging lists cannot yet be specified in the patch"))
        else:
            words = f"unknown patch type: {go_format.format_v(directive)} in map: {go_format.format_v(item)}"
            raise MergeError(server_error(words))
    return (plain, []) if replaces else (original, plain)


def _merge_by_key(original: list[Any], patch: list[Any], key: str, merge: Callable[[Obj, Obj], Obj]) -> list[Any]:
    merged = list(original)
    for item in patch:
        if key not in item:
            raise _keyless(item, key)
        position = _find(merged, key, item[key])
        if position < 0:
            merged.append(item)
        else:
            merged[position] = merge(merged[position], item)
    return merged


def split_by_presence(items: list[Any], order: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """Split items into those that the order names and those that only the server has."""
    named: list[Any] = []
    others: list[Any] = []
    for item in items:
        if key:
            if key not in _map(item):
                raise _keyless(item, key)
            there = _find(order, key, item[key]) >= 0
        else:
            there = _contains(item, order)
        (named if there else others).append(item)
    return named, others


def interleave_in_order(named: list[Any], others: list[Any], order: list[Any], live: list[Any], key: str) -> list[Any]:
    """Order named items as the order says; the server's own keep their place in the live list where they can."""
    named = _sorted(named, order, key)
    others = _sorted(others, live, key)
    out: list[Any] = []
    i = j = 0
    while i < len(others) or j < len(named):
        if i < len(others) and (j == len(named) or _before(others[i], named[j], live, key)):
            out.append(others[i])
            i += 1
        else:
            out.append(named[j])
            j += 1
    return out


def _before(a: Any, b: Any, live: list[Any], key: str) -> bool:
    first, second = _position(a, live, key), _position(b, live, key)
    return 0 <= first < second


def _sorted(items: list[Any], order: list[Any], key: str) -> list[Any]:
    if key:
        for item in [*items, *order]:
            if key not in _map(item):
                raise _keyless(item, key)
        # Deletions sort last: they are leftovers of a patch that is merged with another patch.
        items = sorted(items, key=lambda item: item.get(DIRECTIVE) == DELETE)
    return sorted(items, key=lambda item: _position(item, order, key))


def _position(item: Any, order: list[Any], key: str) -> int:
    wanted = item.get(key) if key else item
    for position, other in enumerate(order):
        if _json_equal(other.get(key) if key else other, wanted):
            return position
    return -1


def check_order(patch: list[Any], order: list[Any], key: str) -> None:
    """Check that the patch's items are among the wanted order's, and in that order."""
    if not order or not patch:
        return
    items = [item for item in patch if _map(item).get(DIRECTIVE) != DELETE] if key else patch
    i = j = 0
    while i < len(items) and j < len(order):
        if isinstance(items[i], dict) and DIRECTIVE in items[i]:
            i += 1
            continue
        if key:
            for side in (items[i], order[j]):
                if key not in _map(side):
                    raise _keyless(side, key)
            matches = _json_equal(items[i][key], order[j][key])
        else:
            matches = _json_equal(items[i], order[j])
        i += matches
        j += 1
    if i < len(items):
        words = f"The order in patch list:\n{go_format.format_v(patch)}\n doesn't match $setElementOrder list:\n"
        raise MergeError(server_error(f"{words}{go_format.format_v(order)}\n"))


_ABSENT = object()


def _find(items: list[Any], key: str, value: Any) -> int:
    for position, item in enumerate(items):
        if not isinstance(item, dict):
            raise MergeError(server_error(f"value for key {position} is not a map"))
        if _json_equal(item.get(key, _ABSENT), value):
            return position
    return -1


def _map(item: Any) -> Obj:
    if not isinstance(item, dict):
        words = f"expected a map[string]interface {{}}, but received a {go_format.go_type_name(item)}"
        raise MergeError(server_error(words))
    return item


def _keyless(item: Obj, key: str) -> MergeError:
    return MergeError(server_error(f"map: {go_format.format_v(item)} does not contain declared merge key: {key}"))


def _json_equal(a: Any, b: Any) -> bool:
    return json_type(a) is json_type(b) and bool(a == b)


def _contains(item: Any, items: list[Any]) -> bool:
    return any(_json_equal(item, other) for other in items)


def _distinct(items: list[Any]) -> list[Any]:
    out: list[Any] = []
    for item in items:
        if not _contains(item, out):
            out.append(item)
    return out
