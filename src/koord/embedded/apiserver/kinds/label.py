"""This module validates labels, annotations and label selectors by the rules that hold for all kinds."""

from __future__ import annotations

import functools
from typing import Any

from koord.embedded.apiserver.kinds.rule import FINE, Errors, Rule, each, named
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value, required, too_long
from koord.values import names

Obj = dict[str, Any]
MAX_ANNOTATION_BYTES = 256 << 10


@functools.lru_cache(maxsize=16_384)
def key_reasons(key: str) -> tuple[str, ...]:
    return tuple(names.qualified_name(key))


@functools.lru_cache(maxsize=16_384)
def value_reasons(value: str) -> tuple[str, ...]:
    return tuple(names.label_value(value))


label_name = named(key_reasons)
label_value = named(value_reasons)


def labels(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    for key, value in found.items():
        errors += label_name(key, path)
        errors += label_value(value, path)
    return errors


def annotation_map(found: Obj, path: str) -> Errors:
    errors = [invalid_value(path, key, reason) for key in found for reason in key_reasons(key.lower())]
    if sum(len(key.encode()) + len(value.encode()) for key, value in found.items()) > MAX_ANNOTATION_BYTES:
        errors.append(too_long(path, MAX_ANNOTATION_BYTES))
    return errors


def _expression(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    operator, values = found.get("operator", ""), found.get("values")
    if operator in ("In", "NotIn"):
        if not values:
            errors.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(forbidden_field(f"{path}.values", detail))
    else:
        errors.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    errors += label_name(found.get("key", ""), f"{path}.key")
    for i, value in enumerate(values or ()):
        errors += label_value(value, f"{path}.values[{i}]")
    return errors


_expressions: Rule = each(_expression)


def selector(found: Obj | None, path: str) -> Errors:
    """Return the errors of a LabelSelector; an absent one is valid here."""
    if not found:
        return FINE
    return [
        *labels(found.get("matchLabels") or {}, f"{path}.matchLabels"),
        *_expressions(found.get("matchExpressions") or [], f"{path}.matchExpressions"),
    ]
