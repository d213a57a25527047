"""This module builds the resources that a CRD makes the server serve, one for each served version, with the JSONPath
of printer columns as kubectl reads it.

A resource has a strategy that follows its schema, conversion to the storage version, and printer columns.
With conversion strategy None only the apiVersion changes: fields that the schema of the target version does
not name are pruned, and objects stored under an older schema are read with the defaults of the present one.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import ApiFieldError, StatusError
from koord.embedded.apiserver.catalog import PrinterColumn, ScalePaths, ServedResource, VersionConversion
from koord.embedded.apiserver.kinds.strategy import KindStrategy, begin_generation
from koord.embedded.apiserver.printing.table_columns import age_since
from koord.embedded.apiserver.rest.object_metadata import deep_copy
from koord.embedded.apiserver.schema.builtin_decoding import is_number
from koord.embedded.apiserver.schema.builtin_types import OBJECT_META, Subresource, builtin_types
from koord.embedded.apiserver.schema.custom_decoding import apply_defaults, decode_custom, prune
from koord.embedded.apiserver.schema.custom_validation import validate_custom, validate_custom_update
from koord.embedded.apiserver.schema.schema_node import SchemaNode, compile_schema
from koord.values import timestamp

# This module implements the JSONPath of printer columns as kubectl reads it.
#
# It knows fields, indexes, ranges, wildcards and comparison filters. A path is parsed once into steps; applying it to
# an object gives all values that it reaches, in order.

JsonPathStep = Callable[[Any], Iterable[Any]]

_NAME = re.compile(r"(?:[^.\[\]\s'\"\\{}()=<>!?@,:*]|\\.)+")
_QUOTED = re.compile(r"\[\s*(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")\s*\]")
_INDEX = re.compile(r"\[\s*(-?\d+|\*)\s*\]")
_RANGE = re.compile(r"\[\s*(-?\d*)\s*:\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?\]")
_UNION = re.compile(r"\[\s*(-?\d+(?:\s*,\s*-?\d+)+)\s*\]")
_FILTER = re.compile(r"\[\?\(\s*@((?:[^=!<>\])]|\[[^\]]*\])*?)\s*(?:(==|!=|<=|>=|<|>)\s*([^)]*?))?\s*\)\]")


class JsonPathError(ValueError):
    """This error says that the text is not a path that this server supports."""


class JsonPath:
    def __init__(self, steps: tuple[JsonPathStep, ...]) -> None:
        self._steps = steps

    def find(self, value: Any) -> list[Any]:
        found = [value]
        for step in self._steps:
            found = [below for here in found for below in step(here)]
        return found


@functools.lru_cache(maxsize=4096)
def parse_jsonpath(text: str) -> JsonPath:
    """Parse a path such as `.status.conditions[?(@.type=="Ready")].status`. Raises JsonPathError."""
    steps: list[JsonPathStep] = []
    at = 0
    while at < len(text):
        at = _parse_step(text, at, steps)
    return JsonPath(tuple(steps))


def _parse_step(text: str, at: int, steps: list[JsonPathStep]) -> int:
    if text.startswith("..", at):
        found = _NAME.match(text, at + 2)
        if found is None:
            raise JsonPathError(f"nothing to look for after .. in {text!r}")
        steps.append(functools.partial(_recursive_descent, name=_unescaped(found[0])))
        return found.end()
    if text[at] == ".":
        if text.startswith("*", at + 1):
            steps.append(_wildcard)
            return at + 2
        if text.startswith("[", at + 1) or at + 1 == len(text):  # ".[0]", and "." alone is the whole
            return at + 1
        found = _NAME.match(text, at + 1)
        if found is None:
            raise JsonPathError(f"unexpected {text[at + 1]!r} in {text!r}")
        steps.append(functools.partial(_field, name=_unescaped(found[0])))
        return found.end()
    if text[at] != "[":
        raise JsonPathError(f"unexpected {text[at]!r} in {text!r}")
    for pattern, make in _BRACKETS:
        found = pattern.match(text, at)
        if found is not None:
            steps.append(make(found))
            return found.end()
    raise JsonPathError(f"unterminated or unknown bracket in {text!r}")


def _unescaped(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


def _field(value: Any, name: str) -> Iterable[Any]:
    return (value[name],) if isinstance(value, dict) and name in value else ()


def _wildcard(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [value[key] for key in sorted(value)]
    return value if isinstance(value, list) else ()


def _recursive_descent(value: Any, name: str) -> Iterable[Any]:
    found = list(_field(value, name))
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return found + [hit for item in below for hit in _recursive_descent(item, name)]


def _index(found: re.Match[str]) -> JsonPathStep:
    if found[1] == "*":
        return _wildcard
    place = int(found[1])

    def step(value: Any) -> Iterable[Any]:
        inside = isinstance(value, list) and -len(value) <= place < len(value)
        return (value[place],) if inside else ()

    return step


def _index_union(found: re.Match[str]) -> JsonPathStep:
    places = [int(text) for text in found[1].split(",")]

    def step(value: Any) -> Iterable[Any]:
        return [value[p] for p in places if isinstance(value, list) and -len(value) <= p < len(value)]

    return step


def _range(found: re.Match[str]) -> JsonPathStep:
    ends = slice(*(int(text) if text else None for text in found.groups()))
    return lambda value: value[ends] if isinstance(value, list) else ()


def _quoted(found: re.Match[str]) -> JsonPathStep:
    # kubectl reads ['a.b'] as .a.b, so that a dot that is meant needs its backslash here too.
    return parse_jsonpath("." + (found[1] if found[1] is not None else found[2])).find


def _filter(found: re.Match[str]) -> JsonPathStep:
    left = parse_jsonpath(found[1].strip())
    operator, right = found[2], (found[3] or "").strip()
    wanted = _literal(right) if operator else None

    def keeps(item: Any) -> bool:
        values = left.find(item)
        if not values:
            return False
        return True if operator is None else _compare(values[0], operator, wanted)

    return lambda value: [item for item in (value if isinstance(value, list) else ()) if keeps(item)]


def _literal(text: str) -> Any:
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]:
        return _unescaped(text[1:-1])
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise JsonPathError(f"cannot compare with {text!r}") from None


def _compare(value: Any, operator: str, wanted: Any) -> bool:
    if isinstance(value, bool) != isinstance(wanted, bool) or isinstance(value, str) != isinstance(wanted, str):
        return False
    if not isinstance(value, str | bool | int | float):
        return False
    match operator:
        case "==":
            return bool(value == wanted)
        case "!=":
            return bool(value != wanted)
        case "<":
            return bool(value < wanted)
        case "<=":
            return bool(value <= wanted)
        case ">":
            return bool(value > wanted)
    return bool(value >= wanted)


_BRACKETS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], JsonPathStep]], ...] = (
    (_QUOTED, _quoted),
    (_INDEX, _index),
    (_UNION, _index_union),
    (_RANGE, _range),
    (_FILTER, _filter),
)


def custom_strategy(
    node: SchemaNode,
    *,
    status: bool,
    selectable: Sequence[str],
    refuse_create: Callable[[Obj], api_errors.StatusError] | None,
) -> KindStrategy:
    """Return the strategy of custom objects, which takes from their schema all that a built-in kind has in code.

    `selectable`: paths of fields that lists can be filtered by. `refuse_create`: set while the CRD is terminating.
    """
    ignored = ("metadata", "status") if status else ("metadata",)

    def prepare_update(new: Obj, old: Obj) -> None:
        if {k: v for k, v in new.items() if k not in ignored} != {k: v for k, v in old.items() if k not in ignored}:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate_create(obj: Obj) -> list[ApiFieldError]:
        if refuse_create is not None:
            raise refuse_create(obj)
        return validate_custom(obj, node)

    def update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
        return validate_custom_update(new, old, node)

    return KindStrategy(
        prepare_create=begin_generation,
        prepare_update=prepare_update,
        validate_create=validate_create,
        validate_update=update_errors,
        validate_status=update_errors,
        selectable_fields=selectable_fields(selectable),
    )


def selectable_fields(paths: Sequence[str]) -> Mapping[str, Callable[[Obj], str]]:
    return {path.removeprefix("."): _field_reader(path) for path in paths}


def _field_reader(path: str) -> Callable[[Obj], str]:
    way = parse_jsonpath(path)

    def value(obj: Obj) -> str:
        found = way.find(obj)
        if not found or found[0] is None:
            return ""
        if isinstance(found[0], bool):
            return "true" if found[0] else "false"
        return str(found[0])

    return value


def version_conversion(nodes: Mapping[str, SchemaNode], served: str, stored: str) -> VersionConversion:
    """Return the conversion between two versions; `nodes` is by apiVersion, `served` and `stored` are apiVersions."""

    def to_storage(obj: Obj) -> Obj:
        new = _moved(obj, stored)
        apply_defaults(new, nodes[stored])  # so that it is stored as it is served
        return new

    def from_storage(obj: Obj) -> Obj:
        return _moved(obj, served)

    def _moved(obj: Obj, target: str) -> Obj:
        new = deep_copy(obj)
        was = nodes.get(new.get("apiVersion", ""))
        if was is not None:
            apply_defaults(new, was)
        new["apiVersion"] = target
        prune(new, nodes[target])
        return new

    return VersionConversion(to_storage, from_storage)


def is_stored_as_served(obj: Obj, node: SchemaNode, api_version: str) -> bool:
    """Return whether a stored object can be served as it is stored."""
    if obj.get("apiVersion") != api_version:
        return False
    new = deep_copy(obj)
    apply_defaults(new, node)
    return not prune(new, node) and new == obj


CUSTOM_RESOURCE_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_SUBRESOURCE_VERBS = ("get", "patch", "update")


def served_resources(definition: Obj, stored: Iterable[Obj]) -> list[ServedResource]:
    """Build the resources of an established CRD, the storage version first. `stored` are the objects it has."""
    spec = definition["spec"]
    group, versions = spec["group"], spec["versions"]
    nodes = {f"{group}/{v['name']}": compile_schema(v["schema"]["openAPIV3Schema"]) for v in versions}
    storage = next(v for v in versions if v["storage"])
    storage_version = f"{group}/{storage['name']}"
    settled = all(is_stored_as_served(obj, nodes[storage_version], storage_version) for obj in stored)
    found = []
    for version in sorted(versions, key=lambda v: not v["storage"]):
        if not version["served"]:
            continue
        resource = _served_version(definition, version, nodes[f"{group}/{version['name']}"])
        resource.storage_hash = storage_hash(group, storage["name"], resource.kind)
        if not (settled and version is storage):
            resource.conversion = version_conversion(nodes, resource.api_version, storage_version)
        found.append(resource)
    return found


def _served_version(definition: Obj, version: Obj, node: SchemaNode) -> ServedResource:
    spec = definition["spec"]
    names = definition["status"]["acceptedNames"]
    parts = version.get("subresources") or {}
    scale = parts.get("scale")
    subresources = {}
    if parts.get("status") is not None:
        subresources["status"] = Subresource("status", names["kind"], _SUBRESOURCE_VERBS)
    if scale is not None:
        subresources["scale"] = Subresource("scale", "Scale", _SUBRESOURCE_VERBS, "autoscaling", "v1")
    ending = definition["metadata"].get("deletionTimestamp")
    return ServedResource(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular", ""),
        list_kind=names.get("listKind", ""),
        namespaced=spec["scope"] == "Namespaced",
        verbs=CUSTOM_RESOURCE_VERBS,
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        subresources=subresources,
        schema_node=with_object_fields(node),
        strategy=custom_strategy(
            node,
            status="status" in subresources,
            selectable=[field["jsonPath"] for field in version.get("selectableFields", ())],
            refuse_create=functools.partial(_terminating_refusal, names["plural"], spec["group"]) if ending else None,
        ),
        decode=functools.partial(decode_custom, node=node, preserve=bool(spec.get("preserveUnknownFields"))),
        custom=True,
        schema=version["schema"]["openAPIV3Schema"],
        columns=printer_columns(version.get("additionalPrinterColumns") or ()),
        scale=_scale_paths(scale) if scale is not None else ScalePaths(),
        warning=_deprecation_warning(version, spec["group"], names["kind"]),
    )


def with_object_fields(node: SchemaNode) -> SchemaNode:
    """Return the schema with the fields of every object, which a CRD leaves out, for merging."""
    typed = {"apiVersion": SchemaNode(kind="string"), "kind": SchemaNode(kind="string")}
    fields = {**node.fields, **typed, "metadata": builtin_types().definition_node(OBJECT_META)}
    return msgspec.structs.replace(node, fields=fields)


def _terminating_refusal(plural: str, group: str, obj: Obj) -> StatusError:
    why = "create not allowed while custom resource definition is terminating"
    return api_errors.forbidden(plural, group, obj["metadata"].get("name", ""), why)


def _scale_paths(scale: Obj) -> ScalePaths:
    return ScalePaths(scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath") or "")


def _deprecation_warning(version: Obj, group: str, kind: str) -> str:
    if not version.get("deprecated"):
        return ""
    return version.get("deprecationWarning") or f"{group}/{version['name']} {kind} is deprecated"


def storage_hash(group: str, version: str, kind: str) -> str:
    """Return the hash by which clients notice that objects are stored in another version."""
    digest = hashlib.sha256(f"{group}/{version}/{kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


# Printer columns -----------------------------------------------------------------------------------------------------


_AGE_COLUMN = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def printer_columns(stated: Sequence[Obj]) -> tuple[PrinterColumn, ...]:
    """Return the columns after Name; a CRD that defines none gets Age."""
    return tuple(_column(column) for column in stated or (_AGE_COLUMN,))


def _column(stated: Obj) -> PrinterColumn:
    heading = {
        "name": stated["name"],
        "type": stated["type"],
        "format": stated.get("format", ""),
        "description": stated.get("description")
        or f"Custom resource definition column (in JSONPath format): {stated['jsonPath']}",
        "priority": stated.get("priority", 0),
    }
    try:
        path = parse_jsonpath(stated["jsonPath"])
    except JsonPathError:
        path = None
    if path is None or stated["jsonPath"] == ".":
        # The server takes any text that starts with a dot; one that leads nowhere is an empty column.
        return PrinterColumn(heading, lambda _obj, _now: None)
    return PrinterColumn(heading, functools.partial(_cell, path, stated["type"]))


def _cell(path: JsonPath, kind: str, obj: Obj, now: float) -> Any:
    found = path.find(obj)
    if not found:
        return None
    value = found[0]
    match kind:
        case "string":
            return _text_cell(value)
        case "integer":
            return int(value) if is_number(value) else None
        case "number":
            return value if is_number(value) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date" if isinstance(value, str):
            return _age_cell(value, now)
    return None


def _text_cell(value: Any) -> str:
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    # Go's encoder keeps these three out of HTML.
    text = msgspec.json.encode(value, order="sorted").decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _age_cell(value: str, now: float) -> str:
    if value in ("", "null"):
        return "<unknown>"
    try:
        return age_since(timestamp.text(timestamp.parse(value)), now)
    except ValueError:
        return "<invalid>"
