"""Whether the defaults of a CRD's schema are themselves valid and free of fields that would be pruned."""

from __future__ import annotations

import copy

from koord.embedded.apiserver.refusal import FieldError, invalid_value
from koord.embedded.apiserver.schema import embedded
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.prune import META, prune
from koord.embedded.apiserver.schema.structural import has_default
from koord.embedded.apiserver.schema.validation import validate


def default_errors(node: Node, path: str, *, root: bool = True) -> list[FieldError]:
    """Complaints about every default below a compiled schema. Defaults of type and metadata are forbidden elsewhere."""
    errors = _one(node, f"{path}.default") if has_default(node) else []
    if node.items is not None:
        errors += default_errors(node.items, f"{path}.items", root=False)
    for key, field in node.fields.items():
        if key in META and (root or node.embedded):
            continue
        errors += default_errors(field, f"{path}.properties[{key}]", root=False)
    return errors


def _one(node: Node, path: str) -> list[FieldError]:
    value = copy.deepcopy(node.default)
    if prune(value, node, root=node.embedded):
        return [invalid_value(path, embedded.ordered(node.default), "must not have unknown fields")]
    try:
        embedded.coerce(value, node, path)
    except embedded.Coerced as stop:
        return [stop.error]
    return validate(node.default, node, path)
