"""This module finds unknown fields and duplicate keys, in the words of strict decoding."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from koord.embedded.apiserver.schema import builtin_fast_path
from koord.embedded.apiserver.schema.builtin_decoding import MAX_UNKNOWN_FIELDS, decode_builtin_by_walk
from koord.embedded.apiserver.schema.custom_decoding import decode_custom
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.values.go_format import quoted


def unknown_field_errors(obj: Any, node: SchemaNode) -> list[str]:
    """Return `unknown field "spec.foo"` for each field that the kind lacks. Nothing when a value has the wrong type."""
    if node.go_type:
        return (
            []
            if builtin_fast_path.decode_fast(obj, node) is not None
            else list(decode_builtin_by_walk(obj, node).unknown)
        )
    return list(decode_custom(obj, node).unknown) if isinstance(obj, dict) else []


class _JsonPairs(list[tuple[str, Any]]):
    """This list is a JSON object with every key as it was written, duplicate ones too."""


def decode_json_strict(raw: bytes) -> tuple[Any, list[str]]:
    """Return the value and `duplicate field "path"` for each duplicate key.

    Raises msgspec.DecodeError on broken JSON.

    Input that is equal byte for byte when written again has no duplicate keys, which is the fast path for what
    programs send. JSON that people write is parsed a second time.
    """
    value = msgspec.json.decode(raw)
    if msgspec.json.format(raw, indent=-1) == msgspec.json.encode(value):
        return value, []
    found: dict[str, None] = {}
    _collect_duplicates(_load_pairs(raw), "", found)
    return value, [f"duplicate field {quoted(path)}" for path in found]


def strict_errors(raw: bytes, node: SchemaNode) -> list[str]:
    """Return everything that strict decoding reports about a JSON body, in the server's order.

    A built-in type is decoded once, so unknown and duplicate fields come in the order of the text and nothing
    is reported from inside an unknown field. A custom object is first decoded as it is, then pruned.
    """
    if node.go_type:
        found: dict[str, None] = {}
        _collect_unknown_and_duplicates(_load_pairs(raw), node, "", found)
        return list(found)[:MAX_UNKNOWN_FIELDS]
    value, repeated = decode_json_strict(raw)
    return repeated + unknown_field_errors(value, node)


def strict_error_message(kind: str, version: str, errors: list[str]) -> str:
    """Return the message of the 400 response of strict field validation."""
    return cannot_be_handled_message(kind, version, f"strict decoding error: {', '.join(errors)}")


def cannot_be_handled_message(kind: str, version: str, problem: str) -> str:
    return f'{kind} in version "{version}" cannot be handled as a {kind}: {problem}'


def warning_header(message: str) -> str:
    """Return the value of a Warning header; fieldValidation=Warn sends one for each message."""
    escaped = message.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'


def _load_pairs(raw: bytes) -> Any:
    return json.loads(raw, object_pairs_hook=_JsonPairs)


def _collect_duplicates(value: Any, path: str, found: dict[str, None]) -> None:
    if isinstance(value, _JsonPairs):
        seen: set[str] = set()
        for key, item in value:
            at = f"{path}.{key}" if path else key
            if key in seen:
                found[at] = None
            seen.add(key)
            _collect_duplicates(item, at, found)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _collect_duplicates(item, f"{path}[{place}]", found)


def _collect_unknown_and_duplicates(value: Any, node: SchemaNode | None, path: str, found: dict[str, None]) -> None:
    if node is None or node.kind == "any":
        return  # types with their own decoder are not looked into
    if isinstance(value, _JsonPairs):
        seen: set[str] = set()
        for key, item in value:
            at = f"{path}.{key}" if path else key
            known = node.fields.get(key) if node.kind == "object" else node.values
            if known is None:
                found[f"unknown field {quoted(at)}"] = None
                continue
            if key in seen:
                found[f"duplicate field {quoted(at)}"] = None
            seen.add(key)
            _collect_unknown_and_duplicates(item, known, at, found)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _collect_unknown_and_duplicates(item, node.items, f"{path}[{place}]", found)
