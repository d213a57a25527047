"""This module checks that an applied configuration fits the structure of its kind, in kube-apiserver's words.

This is coarser than validation: it only ensures that every field and item of the configuration has a field path.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.merge import fieldset
from koord.embedded.apiserver.merge.typed_value import UNTYPED, item_node, item_step
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.values import go_format

_STRICT_STRING_FORMATS = ("", "byte")  # every other format of a string accepts any scalar


def config_error(config: dict[str, Any], node: SchemaNode) -> str | None:
    """Return the text of all errors, None when there are none."""
    found: list[str] = []
    _check(config, node, "", found)
    if len(found) <= 1:
        return found[0] if found else None
    return "\n".join(["errors:", *(f"  {one}" for one in found)])


def _check(value: Any, node: SchemaNode, path: str, found: list[str]) -> None:
    kind = node.kind
    if value is None or kind in ("any", "quantity", "int-or-string"):
        return
    if kind in ("object", "map"):
        if isinstance(value, dict):
            _check_map(value, node, path, found)
        else:
            _add_error(found, path, f"expected map, got {_go_value(value)}")
    elif kind == "list":
        if isinstance(value, list):
            _check_list(value, node, path, found)
        else:
            _add_error(found, path, f"expected list, got {_go_value(value)}")
    else:
        _check_scalar(value, node, path, found)


def _check_scalar(value: Any, node: SchemaNode, path: str, found: list[str]) -> None:
    kind = node.kind
    if kind == "string" and node.format not in _STRICT_STRING_FORMATS:
        if isinstance(value, dict | list):
            _add_error(found, path, f"expected any scalar, got {_go_value(value)}")
    elif kind == "string":
        if not isinstance(value, str):
            _add_error(
                found,
                path,
                f"expected string, got &value.valueUnstructured{{Value:{go_format.format_go_syntax(value)}}}",
            )
    elif kind == "boolean":
        if not isinstance(value, bool):
            _add_error(found, path, f"expected boolean, got {_go_value(value)}")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        _add_error(found, path, f"expected numeric (int or float), got {go_format.go_type_name(value)}")


def _check_map(value: dict[str, Any], node: SchemaNode, path: str, found: list[str]) -> None:
    for key, item in value.items():
        if node.kind == "map":
            inner = node.values or UNTYPED
        elif key in node.fields:
            inner = node.fields[key]
        elif node.preserve_unknown:
            inner = UNTYPED
        else:
            _add_error(found, f"{path}.{key}", "field not declared in schema")
            return
        _check(item, inner, f"{path}.{key}", found)


def _check_list(value: list[Any], node: SchemaNode, path: str, found: list[str]) -> None:
    inner = item_node(node)
    if node.list_type == "atomic":
        for position, item in enumerate(value):
            _check(item, inner, f"{path}[{position}]", found)
        return
    steps: set[str] = set()
    for position, item in enumerate(value):
        try:
            step = item_step(node, item)
        except ValueError as wrong:
            _add_error(found, path, f"element {position}: {wrong}")
            return
        if step in steps:
            _add_error(found, path, f"duplicate entries for key {fieldset.step_text(step)}")
        steps.add(step)
        _check(item, inner, path + fieldset.step_text(step), found)


def _add_error(found: list[str], path: str, words: str) -> None:
    found.append(f"{path}: {words}" if path else words)


def _go_value(value: Any) -> str:
    return f"&{{{go_format.format_v(value)}}}"
