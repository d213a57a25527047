"""This module validates labels, annotations and label selectors by the rules that hold for all kinds."""

from __future__ import annotations

import functools
from typing import Any

from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, required, too_long
from koord.embedded.apiserver.kinds.validators import NO_ERRORS, FieldErrors, Validator, each, valid_name
from koord.values import names
from koord.values.selector import NOTHING, Selector, SelectorError

Obj = dict[str, Any]
MAX_ANNOTATION_BYTES = 256 << 10


@functools.lru_cache(maxsize=16_384)
def qualified_name_reasons(key: str) -> tuple[str, ...]:
    return tuple(names.qualified_name(key))


@functools.lru_cache(maxsize=16_384)
def label_value_reasons(value: str) -> tuple[str, ...]:
    return tuple(names.label_value(value))


qualified_name_errors = valid_name(qualified_name_reasons)
label_value_errors = valid_name(label_value_reasons)


def label_errors(found: Obj, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    for key, value in found.items():
        errors += qualified_name_errors(key, path)
        errors += label_value_errors(value, path)
    return errors


def annotation_errors(found: Obj, path: str) -> FieldErrors:
    errors = [invalid_value(path, key, reason) for key in found for reason in qualified_name_reasons(key.lower())]
    if sum(len(key.encode()) + len(value.encode()) for key, value in found.items()) > MAX_ANNOTATION_BYTES:
        errors.append(too_long(path, MAX_ANNOTATION_BYTES))
    return errors


def operator_errors(found: Obj, path: str) -> list[ApiFieldError]:
    """Return the errors of the operator of an expression, and of its values where it wants some or none."""
    operator, values = found.get("operator", ""), found.get("values")
    if operator in ("In", "NotIn"):
        detail = "must be specified when `operator` is 'In' or 'NotIn'"
        return [] if values else [required(f"{path}.values", detail)]
    if operator in ("Exists", "DoesNotExist"):
        detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        return [forbidden_field(f"{path}.values", detail)] if values else []
    return [invalid_value(f"{path}.operator", operator, "not a valid selector operator")]


def _expression_errors(found: Obj, path: str) -> FieldErrors:
    errors = operator_errors(found, path)
    errors += qualified_name_errors(found.get("key", ""), f"{path}.key")
    for i, value in enumerate(found.get("values") or ()):
        errors += label_value_errors(value, f"{path}.values[{i}]")
    return errors


_all_expression_errors: Validator = each(_expression_errors)


def parse_optional_selector(stated: Obj | None) -> Selector | None:
    """Parse a LabelSelector that may be absent, which selects nothing; return None when it is invalid."""
    if stated is None:
        return NOTHING
    try:
        return Selector.from_unstructured(stated)
    except SelectorError:
        return None


def format_selector(selector: Any) -> str:
    """Format a LabelSelector, or a plain map of labels, in the form that commands accept; empty when it is invalid."""
    if isinstance(selector, str):
        return selector
    if not isinstance(selector, dict):
        return ""
    if "matchLabels" not in selector and "matchExpressions" not in selector:  # a replication controller's plain map
        return str(Selector.from_labels(selector))
    found = parse_optional_selector(selector)
    return "" if found is None else str(found)


def label_selector_errors(found: Obj | None, path: str) -> FieldErrors:
    """Return the errors of a LabelSelector; an absent one is valid here."""
    if not found:
        return NO_ERRORS
    return [
        *label_errors(found.get("matchLabels") or {}, f"{path}.matchLabels"),
        *_all_expression_errors(found.get("matchExpressions") or [], f"{path}.matchExpressions"),
    ]
