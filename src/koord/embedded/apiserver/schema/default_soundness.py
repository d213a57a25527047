"""This module validates the schema of a CRD as the API server does when the CRD is written.

Two passes run in the server's order: the structure that makes a schema structural, with its defaults, then
the keywords and extensions. Rules in CEL (x-kubernetes-validations) are rejected: this server has no CEL,
and a rule that is accepted and never run would be worse than none.
"""

from __future__ import annotations

import copy

from koord.embedded.apiserver.refusal import FieldError, invalid_value
from koord.embedded.apiserver.schema import embedded
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.prune import META, prune
from koord.embedded.apiserver.schema.structural import has_default
from koord.embedded.apiserver.schema.validation import validate


def default_errors(node: Node, path: str, *, root: bool = True) -> list[FieldError]:
    """Return the errors of every default below a compiled schema.

    Defaults of type and metadata are rejected elsewhere.
    """
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
