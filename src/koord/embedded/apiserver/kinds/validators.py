"""This module holds small combinators for field validation, and the rules of labels, annotations and label selectors.

A validator takes a value and its path and returns the errors, none when the value is valid. The validators of an object
form a table from field to validator, in the order in which kube-apiserver reports errors. A validator is called for a
field that is present; `even_if_absent` also calls it for a missing one, with the zero value of Go.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.values import names
from koord.values.selector import NOTHING, Selector, SelectorError

FieldErrors = Sequence[api_errors.ApiFieldError]
Validator = Callable[[Any, str], FieldErrors]
NO_ERRORS: FieldErrors = ()
IMMUTABLE = "field is immutable"


class _EvenIfAbsent:
    """This validator also runs when the field is absent, with the zero value that Go would see."""

    __slots__ = ("rule", "zero")

    def __init__(self, rule: Validator, zero: Any) -> None:
        self.rule = rule
        self.zero = zero

    def __call__(self, value: Any, path: str) -> FieldErrors:
        return self.rule(self.zero if value is None else value, path)


def even_if_absent(rule: Validator, zero: Any = "") -> Validator:
    return _EvenIfAbsent(rule, zero)


def fields(table: Mapping[str, Validator]) -> Validator:
    """Return a validator that checks each field with its own validator. It costs one lookup for each field present."""
    order = tuple(table)
    missing = tuple((key, rule) for key, rule in table.items() if isinstance(rule, _EvenIfAbsent))
    plain = {
        key: rule.rule if isinstance(rule, _EvenIfAbsent) and rule.zero is not None else rule
        for key, rule in table.items()
    }
    find = plain.get

    def check(obj: Obj, path: str) -> FieldErrors:
        found: dict[str, FieldErrors] | None = None
        for key in obj:
            rule = find(key)
            if rule is not None:
                value = obj[key]
                errors = rule(value, f"{path}.{key}") if value is not None else NO_ERRORS
                if errors:
                    found = found or {}
                    found[key] = errors
        for key, rule in missing:
            if obj.get(key) is None:
                errors = rule(None, f"{path}.{key}")
                if errors:
                    found = found or {}
                    found[key] = errors
        if found is None:
            return NO_ERRORS
        return [error for key in order for error in found.get(key, NO_ERRORS)]

    return check


def each(rule: Validator) -> Validator:
    def check(values: list[Any], path: str) -> FieldErrors:
        return [error for i, value in enumerate(values) for error in rule(value, f"{path}[{i}]")]

    return check


def all_of(*rules: Validator) -> Validator:
    def check(value: Any, path: str) -> FieldErrors:
        return [error for rule in rules for error in rule(value, path)]

    return check


def first_of(*rules: Validator) -> Validator:
    """Return a validator that reports the errors of the first of `rules` that has any."""

    def check(value: Any, path: str) -> FieldErrors:
        for rule in rules:
            errors = rule(value, path)
            if errors:
                return errors
        return NO_ERRORS

    return check


def non_empty(detail: str = "") -> Validator:
    """Return a validator that requires a non-empty value."""

    def check(value: Any, path: str) -> FieldErrors:
        return NO_ERRORS if value else [api_errors.required(path, detail)]

    return check


def one_of(*allowed: str) -> Validator:
    known = frozenset(allowed)

    def check(value: Any, path: str) -> FieldErrors:
        return NO_ERRORS if value in known else [api_errors.not_supported(path, value, allowed)]

    return check


def valid_name(reasons: Callable[[str], Iterable[str]]) -> Validator:
    """Return a validator for a text that follows one of the rules of `koord.values.names`."""

    def check(value: str, path: str) -> FieldErrors:
        return [api_errors.invalid_value(path, value, reason) for reason in reasons(value)]

    return check


def at_least(low: int, detail: str = "") -> Validator:
    text = detail or f"must be greater than or equal to {low}"

    def check(value: int, path: str) -> FieldErrors:
        return NO_ERRORS if value >= low else [api_errors.invalid_value(path, value, text)]

    return check


def between(low: int, high: int, detail: str = "") -> Validator:
    text = detail or f"must be between {low} and {high}, inclusive"

    def check(value: int, path: str) -> FieldErrors:
        return NO_ERRORS if low <= value <= high else [api_errors.invalid_value(path, value, text)]

    return check


_LEADING_ZEROS = re.compile(r"(?<![0-9a-fA-F:])0+(?=[0-9]+(\.|$))")  # Kubernetes reads 010 as ten
NOT_NEGATIVE = at_least(0)
PORT_NUMBER = between(1, 65535)


def ip_address_errors(value: str, path: str) -> FieldErrors:
    """Return an error unless the value is an IP address in a form that Go parses."""
    if is_ip_address(value):
        return NO_ERRORS
    return [api_errors.invalid_value(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]


def is_ip_address(value: str) -> bool:
    try:
        ipaddress.ip_address(_LEADING_ZEROS.sub("", value))
    except ValueError:
        return False
    return "%" not in value


def immutable_field_errors(
    new: Obj, old: Obj, path: str, keys: Iterable[str], detail: str = IMMUTABLE
) -> list[api_errors.ApiFieldError]:
    """Return an error for each of `keys` whose value differs between two objects."""
    return [
        api_errors.invalid_value(f"{path}.{key}" if path else key, new.get(key), detail)
        for key in keys
        if new.get(key) != old.get(key)
    ]


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
    errors: list[api_errors.ApiFieldError] = []
    for key, value in found.items():
        errors += qualified_name_errors(key, path)
        errors += label_value_errors(value, path)
    return errors


def annotation_errors(found: Obj, path: str) -> FieldErrors:
    errors = [
        api_errors.invalid_value(path, key, reason) for key in found for reason in qualified_name_reasons(key.lower())
    ]
    if sum(len(key.encode()) + len(value.encode()) for key, value in found.items()) > MAX_ANNOTATION_BYTES:
        errors.append(api_errors.too_long(path, MAX_ANNOTATION_BYTES))
    return errors


def operator_errors(found: Obj, path: str) -> list[api_errors.ApiFieldError]:
    """Return the errors of the operator of an expression, and of its values where it wants some or none."""
    operator, values = found.get("operator", ""), found.get("values")
    if operator in ("In", "NotIn"):
        detail = "must be specified when `operator` is 'In' or 'NotIn'"
        return [] if values else [api_errors.required(f"{path}.values", detail)]
    if operator in ("Exists", "DoesNotExist"):
        detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        return [api_errors.forbidden_field(f"{path}.values", detail)] if values else []
    return [api_errors.invalid_value(f"{path}.operator", operator, "not a valid selector operator")]


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
