"""This module applies strategic merge patches of built-in kinds: objects merge by field, lists as their schema says
(items are matched by key or value, deleted, added and ordered), directives override.

Errors carry kube-apiserver's words and codes; most of them leave it as a 500 because it never classified
them.

A merge schema says which lists of a kind merge by key, in full or for pods and reservations alone. The embedded
server's schema nodes are merge schemas that know every field. `PartialMergeSchema` is for callers without a schema: it
names the lists that merge; other objects merge by field, other lists are replaced. The embedded server's field table
is the reference: a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from koord.api.patch.merge_patch import Obj, PatchFailed, bad_patch, server_error, unprocessable, without_null_fields
from koord.values import go_format
from koord.values.go_format import quoted

OPEN_SCHEMA = "open"  # a place where fields beyond the named ones may stand


class MergeSchema(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, MergeSchema]: ...
    @property
    def items(self) -> MergeSchema | None: ...
    @property
    def patch_strategy(self) -> frozenset[str]: ...
    @property
    def patch_key(self) -> str: ...
    @property
    def go_type(self) -> str: ...


class PartialMergeSchema(msgspec.Struct, frozen=True, kw_only=True):
    """PartialMergeSchema knows only the merging lists below it. Objects merge by field, other lists are replaced."""

    fields: dict[str, PartialMergeSchema] = {}
    items: PartialMergeSchema | None = None
    patch_strategy: frozenset[str] = frozenset()
    patch_key: str = ""
    go_type: str = ""
    kind: str = OPEN_SCHEMA


UNKNOWN_FIELD_SCHEMA: MergeSchema = PartialMergeSchema()


_MERGE = frozenset({"merge"})


def _keyed(key: str, **inside: PartialMergeSchema) -> PartialMergeSchema:
    """Return the schema of a list whose items are matched by one of their fields."""
    return PartialMergeSchema(patch_strategy=_MERGE, patch_key=key, items=PartialMergeSchema(fields=inside))


def _object(**fields: PartialMergeSchema) -> PartialMergeSchema:
    return PartialMergeSchema(fields=fields)


def _containers() -> PartialMergeSchema:
    return _keyed(
        "name",
        ports=_keyed("containerPort"),
        env=_keyed("name"),
        volumeMounts=_keyed("mountPath"),
        volumeDevices=_keyed("devicePath"),
    )


def _statuses() -> PartialMergeSchema:
    inside = _object(volumeMounts=_keyed("mountPath"), allocatedResourcesStatus=_keyed("name"))
    return PartialMergeSchema(items=inside)


_METADATA = _object(ownerReferences=_keyed("uid"), finalizers=PartialMergeSchema(patch_strategy=_MERGE))
_SPEC = _object(
    volumes=_keyed("name", ephemeral=_object(volumeClaimTemplate=_object(metadata=_METADATA))),
    initContainers=_containers(),
    containers=_containers(),
    ephemeralContainers=_containers(),
    imagePullSecrets=_keyed("name"),
    hostAliases=_keyed("ip"),
    topologySpreadConstraints=_keyed("topologyKey"),
    schedulingGates=_keyed("name"),
    resourceClaims=_keyed("name"),
)
_STATUS = _object(
    conditions=_keyed("type"),
    hostIPs=_keyed("ip"),
    podIPs=_keyed("ip"),
    initContainerStatuses=_statuses(),
    containerStatuses=_statuses(),
    ephemeralContainerStatuses=_statuses(),
    resourceClaimStatuses=_keyed("name"),
)

POD_MERGE_SCHEMA: MergeSchema = _object(metadata=_METADATA, spec=_SPEC, status=_STATUS)
RESERVATION_MERGE_SCHEMA: MergeSchema = _object(
    metadata=_METADATA, spec=_object(template=_object(metadata=_METADATA, spec=_SPEC))
)  # a custom kind; upstream merges it by its Go type, whose only merging lists are those of the pod template


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
