"""This module validates a custom object's values against its schema, in kube-apiserver's words and order.

Structure (unknown fields, defaults) is handled before, and metadata at the root is validated elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    invalid_value,
    not_supported,
    required,
    too_many,
)
from koord.embedded.apiserver.schema import custom_decoding, string_formats
from koord.embedded.apiserver.schema.custom_decoding import fits_fast_path, has_unique_lists
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.embedded.apiserver.schema.validation_rules import ABSENT, RuleEvaluation
from koord.values import go_regexp
from koord.values.go_format import format_float, quoted

_MAX_SAFE_INTEGER = (1 << 53) - 1


def is_integral(number: float) -> bool:
    """Return whether a number is accepted as an integer; floats within rounding distance of one are."""
    if isinstance(number, int):
        return -(1 << 63) <= number < 1 << 63
    if not math.isfinite(number) or abs(number) > _MAX_SAFE_INTEGER:
        return False
    near = math.trunc(number)
    return near == number or (near != 0 and abs(number - near) / (abs(number) + abs(near)) < 1e-9)


_JSON_TYPES = {"object": "object", "map": "object", "list": "array", "int-or-string": "integer,string"}
_NO_FIELD = "<nil>"  # how the server prints the field of a complaint that has none
_ABSENT: Any = ABSENT


def validate_custom(obj: Any, node: SchemaNode, field: str = "") -> list[ApiFieldError]:
    """Return the errors of a whole object on create. `field` is its path when it is part of something else."""
    if not field and fits_fast_path(obj, node):
        errors = duplicate_item_errors(obj, node, field) if has_unique_lists(node) else []
    else:
        errors = validate_custom_by_walk(obj, node, field)
    return errors if errors else _rule_evaluation().errors(obj, node, field)


def validate_custom_by_walk(obj: Any, node: SchemaNode, field: str = "") -> list[ApiFieldError]:
    return [
        *_SchemaValidator(field).validate(obj, node, "", _ABSENT)[0],
        *custom_decoding.embedded_resource_errors(obj, node, field),
        *duplicate_item_errors(obj, node, field),
    ]


def validate_custom_update(obj: Any, old: Any, node: SchemaNode, field: str = "") -> list[ApiFieldError]:
    """Return the errors of an update. A value that did not change is not validated again (ratcheting)."""
    if not field and fits_fast_path(obj, node) and not has_unique_lists(node):
        return _rule_evaluation().errors(obj, node, field, old)
    found = _SchemaValidator(field).validate(obj, node, "", old)[0]
    for judge in (custom_decoding.embedded_resource_errors, duplicate_item_errors):
        known = set(judge(old, node, field))
        found += [e for e in judge(obj, node, field) if e not in known]
    return found if found else _rule_evaluation().errors(obj, node, field, old)


def _rule_evaluation() -> RuleEvaluation:
    return RuleEvaluation(_correlate_items, json_equal)


class _SchemaValidator:
    """A _SchemaValidator collects errors and counts checks; the count picks the closest branch of anyOf or oneOf."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def _at(self, path: str) -> str:
        return ".".join(p for p in (self._prefix, path.removeprefix(".")) if p) or _NO_FIELD

    def validate(self, value: Any, node: SchemaNode, path: str, old: Any) -> tuple[list[ApiFieldError], int]:
        if old is not _ABSENT and json_equal(value, old):
            return [], 1
        errors: list[ApiFieldError] = []
        count = 1
        typed = node.kind != "any" or self._format(node)
        if typed:
            found = self._type(value, node, path)
            errors += found
            count += 1 + (not found)
        if value is None:
            return errors + self._enum(value, node, path), count
        found, matches = self._combinators(value, node, path, old)
        errors += found
        count += matches + 2  # the combinators as a whole, and below the rule of enumeration
        count += 1
        if isinstance(value, str):
            errors += self._string(value, node, path)
            count += 1
            if self._format(node):
                if not string_formats.has_format(node.format, value):
                    errors.append(self._wrong_type(path, node.format, value))
                count += 1
        elif isinstance(value, int | float) and not isinstance(value, bool):
            errors += self._number(value, node, path)
            count += 2
        elif isinstance(value, list):
            found, matches = self._list(value, node, path, old)
            errors += found
            count += matches + 2
        errors += self._enum(value, node, path)
        if isinstance(value, dict):
            found, matches = self._object(value, node, path, old)
            errors += found
            count += matches + 1
        return errors, count

    @staticmethod
    def _format(node: SchemaNode) -> str:
        return node.format if node.format and string_formats.is_known_format(node.format) else ""

    def _type(self, value: Any, node: SchemaNode, path: str) -> list[ApiFieldError]:
        expected = "" if node.kind == "any" else _JSON_TYPES.get(node.kind, node.kind)
        if value is None:
            return [] if node.nullable or not expected else [self._wrong_type(path, expected, "null")]
        actual = json_type(value)
        allowed = expected.split(",")
        fits = actual in allowed or (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (("integer" in allowed and is_integral(value)) or "number" in allowed)
        )
        form = self._format(node)
        if form and not isinstance(value, str | list) and not fits:
            native = {"integer": "int64", "number": "float64"}.get(actual, "")
            return [self._wrong_type(path, form, native)]
        if form and isinstance(value, str | list) and not {"number", "integer"} & set(allowed):
            return []  # the server lets a list through here as well
        return [] if fits or not expected else [self._wrong_type(path, expected, actual)]

    def _wrong_type(self, path: str, expected: str, shown: str) -> ApiFieldError:
        text = quoted(shown)
        message = f"Invalid value: {text}: {path} in body must be of type {expected}: {text}"
        return ApiFieldError(self._at(path), "FieldValueTypeInvalid", message)

    def _invalid(self, path: str, value: Any, problem: str) -> ApiFieldError:
        return invalid_value(self._at(path), value, f"{path} in body {problem}")

    def _composite(self, path: str, problem: str) -> ApiFieldError:
        # The server names the field inside the message only.
        return ApiFieldError(self._prefix or _NO_FIELD, "FieldValueInvalid", f'Invalid value: "": "{path}" {problem}')

    def _string(self, value: str, node: SchemaNode, path: str) -> list[ApiFieldError]:
        """Return only the first error of a string, because the server stops there."""
        rules = node.rules
        if "maxLength" in rules and len(value) > rules["maxLength"]:
            limit = int(rules["maxLength"])
            text = f"Too long: may not be more than {limit} byte{'' if limit == 1 else 's'}"
            return [ApiFieldError(self._at(path), "FieldValueTooLong", text)]
        if "minLength" in rules and len(value) < rules["minLength"]:
            return [self._invalid(path, value, f"should be at least {rules['minLength']} chars long")]
        if "pattern" in rules and not go_regexp.compile_regexp(rules["pattern"]).search(value):
            return [self._invalid(path, value, f"should match '{rules['pattern']}'")]
        return []

    def _number(self, value: float, node: SchemaNode, path: str) -> list[ApiFieldError]:
        errors: list[ApiFieldError] = []
        rules = node.rules
        whole = isinstance(value, int) and -(1 << 63) <= value < 1 << 63

        # Limits are compared as integers when the value is one, so a limit of 1.5 counts as 1 there.
        def limit(name: str) -> Any:
            return int(rules[name]) if whole else float(rules[name])

        if "multipleOf" in rules:
            factor = limit("multipleOf")
            if factor <= 0:
                text = f"factor MultipleOf declared for {path} must be positive: {format_float(factor)}"
                errors.append(invalid_value(self._at(path), factor, text))
            elif (value % factor != 0) if whole else not is_integral(value / factor):
                errors.append(self._invalid(path, value, f"should be a multiple of {format_float(factor)}"))
        sides: tuple[tuple[str, str, str, Callable[[Any, Any], bool]], ...] = (
            ("minimum", "exclusiveMinimum", "greater than", lambda number, bound: bool(number < bound)),
            ("maximum", "exclusiveMaximum", "less than", lambda number, bound: bool(number > bound)),
        )
        for name, exclusive, words, beyond in sides:
            if name not in rules:
                continue
            bound = limit(name)
            strict = bool(rules.get(exclusive))
            if beyond(value, bound) or (strict and value == bound):
                words = words if strict else f"{words} or equal to"
                errors.append(self._invalid(path, value, f"should be {words} {format_float(bound)}"))
        return errors

    def _list(self, value: list[Any], node: SchemaNode, path: str, old: Any) -> tuple[list[ApiFieldError], int]:
        errors: list[ApiFieldError] = []
        count = 0
        if node.items is not None:
            before = _correlate_items(value, old, node)
            for at, item in enumerate(value):
                found, matches = self.validate(item, node.items, f"{path}[{at}]", before[at] if before else _ABSENT)
                errors += found
                count += matches
        size, rules = len(value), node.rules
        if "minItems" in rules and size < rules["minItems"]:
            errors.append(self._invalid(path, size, f"should have at least {rules['minItems']} items"))
        if "maxItems" in rules and size > rules["maxItems"]:
            errors.append(too_many(self._at(path), size, rules["maxItems"]))
        if rules.get("uniqueItems") and any(json_equal(a, b) for i, a in enumerate(value) for b in value[:i]):
            errors.append(self._invalid(path, "", "shouldn't contain duplicates"))
        return errors, count

    def _enum(self, value: Any, node: SchemaNode, path: str) -> list[ApiFieldError]:
        allowed = node.rules.get("enum")
        if not allowed or (value is not None and any(json_equal(value, one) for one in allowed)):
            return []
        shown = [one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in allowed]
        return [not_supported(self._at(path), custom_decoding.with_sorted_keys(value), shown)]

    def _object(self, value: dict[str, Any], node: SchemaNode, path: str, old: Any) -> tuple[list[ApiFieldError], int]:
        errors: list[ApiFieldError] = []
        count = 0
        size, rules = len(value), node.rules
        if "minProperties" in rules and size < rules["minProperties"]:
            errors.append(self._invalid(path, size, f"should have at least {rules['minProperties']} properties"))
        if "maxProperties" in rules and size > rules["maxProperties"]:
            errors.append(too_many(self._at(path), size, rules["maxProperties"]))
        before = old if isinstance(old, dict) else {}
        closed = rules.get("additionalProperties") is False
        for key in sorted(value):
            field = node.fields.get(key)
            if field is None and closed:
                text = f"{path}.{key} in body is a forbidden property"
                errors.append(invalid_value(self._at(path), key, text))
            field = field or (None if closed else node.values)
            if field is None:
                continue
            at = f"{path}.{key}" if path else key
            found, matches = self.validate(value[key], field, at, before.get(key, _ABSENT))
            errors += found
            count += matches
        for key in node.required:
            if key not in value:
                errors.append(required(self._at(f"{path}.{key}")))
        return errors, count

    def _combinators(self, value: Any, node: SchemaNode, path: str, old: Any) -> tuple[list[ApiFieldError], int]:
        errors: list[ApiFieldError] = []
        count = 0
        rules = node.rules
        if "anyOf" in rules:
            results = [self.validate(value, option, path, old) for option in rules["anyOf"]]
            good = [r for r in results if not r[0]]
            if not good:
                errors.append(self._composite(path, "must validate at least one schema (anyOf)"))
            best = good[0] if good else max(results, key=lambda r: r[1])
            errors += best[0]
            count += best[1]
        if "oneOf" in rules:
            results = [self.validate(value, option, path, old) for option in rules["oneOf"]]
            good = [r for r in results if not r[0]]
            if len(good) == 1:
                count += good[0][1]
            else:
                found = f"Found {len(good)} valid alternatives" if good else "Found none valid"
                errors.append(self._composite(path, f"must validate one and only one schema (oneOf). {found}"))
                if not good:
                    best = max(results, key=lambda r: r[1])
                    errors += best[0]
                    count += best[1]
        if "allOf" in rules:
            results = [self.validate(value, option, path, old) for option in rules["allOf"]]
            for found_errors, matches in results:
                errors += found_errors
                count += matches
            bad = sum(1 for r in results if r[0])
            if bad:
                none = ". None validated" if bad == len(results) else ""
                errors.append(self._composite(path, f"must validate all the schemas (allOf){none}"))
        if "not" in rules and not self.validate(value, rules["not"], path, old)[0]:
            errors.append(self._composite(path, "must not validate the schema (not)"))
        return errors, count


def json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        # What does not fit in 64 bits was read as a float.
        return "integer" if -(1 << 63) <= value < 1 << 63 else "number"
    for kind, name in ((float, "number"), (str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null"


def json_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: True is not 1 here, but 1 is 1.0."""
    return bool(one == other) and same_booleans(one, other)


def same_booleans(one: Any, other: Any) -> bool:
    """Return whether two values that are equal to Python are equal as JSON too: Python takes True for 1."""
    if isinstance(one, dict):
        return all(same_booleans(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return all(same_booleans(a, b) for a, b in zip(one, other))
    return isinstance(one, bool) == isinstance(other, bool)


def _correlate_items(value: list[Any], old: Any, node: SchemaNode) -> list[Any]:
    """Return the old item with the same key for each item; items of other lists are not correlated."""
    if node.list_type != "map" or not isinstance(old, list):
        return []
    known = {_item_key(item, node): item for item in old if isinstance(item, dict)}
    return [known.get(_item_key(item, node), _ABSENT) if isinstance(item, dict) else _ABSENT for item in value]


def _item_key(item: dict[str, Any], node: SchemaNode) -> str:
    return msgspec.json.encode([item.get(k) for k in node.list_keys], order="sorted").decode()


def duplicate_item_errors(value: Any, node: SchemaNode | None, path: str) -> list[ApiFieldError]:
    """Return an error for each repeated set member and list map key, at its second appearance only."""
    if node is None:
        return []
    errors: list[ApiFieldError] = []
    if isinstance(value, list):
        errors += _duplicate_errors(value, node, path)
        for at, item in enumerate(value):
            errors += duplicate_item_errors(item, node.items, f"{path}[{at}]")
    elif isinstance(value, dict):
        for key in sorted(value):
            field = node.fields.get(key)
            if field is not None:
                errors += duplicate_item_errors(value[key], field, f"{path}.{key}" if path else key)
            elif node.values is not None:
                errors += duplicate_item_errors(value[key], node.values, f"{path}[{key}]")
    return errors


def _duplicate_errors(value: list[Any], node: SchemaNode, path: str) -> list[ApiFieldError]:
    if node.list_type == "map":
        for at, item in enumerate(value):
            if item is not None and not isinstance(item, dict):
                problem = "must be an object for an array of list-type map"
                return [invalid_value(f"{path}[{at}]", item, problem)]
        keys: list[Any] = [{k: item[k] for k in node.list_keys if k in item} if item else {} for item in value]
    elif node.list_type == "set":
        keys = value
    else:
        return []
    errors: list[ApiFieldError] = []
    seen: dict[str, int] = {}
    for at, key in enumerate(keys):
        text = msgspec.json.encode(key, order="sorted").decode()
        seen[text] = seen.get(text, 0) + 1
        if seen[text] == 2:
            errors.append(duplicate(f"{path}[{at}]", custom_decoding.with_sorted_keys(key)))
    return errors
