"""These functions validate a custom object against its schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.embedded.apiserver.refusal import FieldError, duplicate, invalid_value, not_supported, required
from koord.embedded.apiserver.schema import embedded, formats, goregex
from koord.embedded.apiserver.schema.fitting import fits, has_identities
from koord.embedded.apiserver.schema.gonumber import go_float, integral
from koord.embedded.apiserver.schema.node import Node
from koord.values.quotation import quoted

_TYPES = {"object": "object", "map": "object", "list": "array", "int-or-string": "integer,string"}
_NOWHERE = "<nil>"  # how the server prints the field of a complaint that has none
_ABSENT: Any = object()


def validate(obj: Any, node: Node, field: str = "") -> list[FieldError]:
    """Return the errors of a whole object on create.

    `field` is the path of the value when it is part of something else.
    """
    if not field and fits(obj, node):
        return list_errors(obj, node, field) if has_identities(node) else []
    return validate_slowly(obj, node, field)


def validate_slowly(obj: Any, node: Node, field: str = "") -> list[FieldError]:
    return [
        *_Judge(field).judge(obj, node, "", _ABSENT)[0],
        *embedded.validate(obj, node, field),
        *list_errors(obj, node, field),
    ]


def validate_update(obj: Any, old: Any, node: Node, field: str = "") -> list[FieldError]:
    """Return the errors of an update.

    A value that was there before and did not change is not validated again (ratcheting).
    """
    if not field and fits(obj, node) and not has_identities(node):
        return []
    found = _Judge(field).judge(obj, node, "", old)[0]
    for judge in (embedded.validate, list_errors):
        known = set(judge(old, node, field))
        found += [e for e in judge(obj, node, field) if e not in known]
    return found


class _Judge:
    """A _SchemaValidator collects errors and counts the checks made.

    The count picks the closest branch of anyOf or oneOf.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def _at(self, path: str) -> str:
        return ".".join(p for p in (self._prefix, path.removeprefix(".")) if p) or _NOWHERE

    def judge(self, value: Any, node: Node, path: str, old: Any) -> tuple[list[FieldError], int]:
        if old is not _ABSENT and same(value, old):
            return [], 1
        errors: list[FieldError] = []
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
                errors += self._format_errors(value, node, path)
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
    def _format(node: Node) -> str:
        return node.format if node.format and formats.known(node.format) else ""

    def _type(self, value: Any, node: Node, path: str) -> list[FieldError]:
        expected = "" if node.kind == "any" else _TYPES.get(node.kind, node.kind)
        if value is None:
            return [] if node.nullable or not expected else [self._wrong_type(path, expected, "null")]
        actual = json_type(value)
        allowed = expected.split(",")
        fits = actual in allowed or (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (("integer" in allowed and integral(value)) or "number" in allowed)
        )
        form = self._format(node)
        if form and not isinstance(value, str | list) and not fits:
            native = {"integer": "int64", "number": "float64"}.get(actual, "")
            return [self._wrong_type(path, form, native)]
        if form and isinstance(value, str | list) and not {"number", "integer"} & set(allowed):
            return []  # the server lets a list through here as well
        return [] if fits or not expected else [self._wrong_type(path, expected, actual)]

    def _wrong_type(self, path: str, expected: str, shown: str) -> FieldError:
        text = quoted(shown)
        message = f"Invalid value: {text}: {path} in body must be of type {expected}: {text}"
        return FieldError(self._at(path), "FieldValueTypeInvalid", message)

    def _invalid(self, path: str, value: Any, problem: str) -> FieldError:
        return invalid_value(self._at(path), value, f"{path} in body {problem}")

    def _composite(self, path: str, problem: str) -> FieldError:
        # The server names the field inside the message only.
        return FieldError(self._prefix or _NOWHERE, "FieldValueInvalid", f'Invalid value: "": "{path}" {problem}')

    def _string(self, value: str, node: Node, path: str) -> list[FieldError]:
        """Return only the first error of a string, because the server stops there."""
        rules = node.rules
        if "maxLength" in rules and len(value) > rules["maxLength"]:
            limit = int(rules["maxLength"])
            text = f"Too long: may not be more than {limit} byte{'' if limit == 1 else 's'}"
            return [FieldError(self._at(path), "FieldValueTooLong", text)]
        if "minLength" in rules and len(value) < rules["minLength"]:
            return [self._invalid(path, value, f"should be at least {rules['minLength']} chars long")]
        if "pattern" in rules and not goregex.compiled(rules["pattern"]).search(value):
            return [self._invalid(path, value, f"should match '{rules['pattern']}'")]
        return []

    def _format_errors(self, value: str, node: Node, path: str) -> list[FieldError]:
        return [] if formats.fits(node.format, value) else [self._wrong_type(path, node.format, value)]

    def _number(self, value: float, node: Node, path: str) -> list[FieldError]:
        errors: list[FieldError] = []
        rules = node.rules
        whole = isinstance(value, int) and -(1 << 63) <= value < 1 << 63

        # Limits are compared as integers when the value is one, so a limit of 1.5 counts as 1 there.
        def limit(name: str) -> Any:
            return int(rules[name]) if whole else float(rules[name])

        if "multipleOf" in rules:
            factor = limit("multipleOf")
            if factor <= 0:
                text = f"factor MultipleOf declared for {path} must be positive: {go_float(factor)}"
                errors.append(invalid_value(self._at(path), factor, text))
            elif (value % factor != 0) if whole else not integral(value / factor):
                errors.append(self._invalid(path, value, f"should be a multiple of {go_float(factor)}"))
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
                errors.append(self._invalid(path, value, f"should be {words} {go_float(bound)}"))
        return errors

    def _list(self, value: list[Any], node: Node, path: str, old: Any) -> tuple[list[FieldError], int]:
        errors: list[FieldError] = []
        count = 0
        if node.items is not None:
            before = _correlated(value, old, node)
            for at, item in enumerate(value):
                found, matches = self.judge(item, node.items, f"{path}[{at}]", before[at] if before else _ABSENT)
                errors += found
                count += matches
        size, rules = len(value), node.rules
        if "minItems" in rules and size < rules["minItems"]:
            errors.append(self._invalid(path, size, f"should have at least {rules['minItems']} items"))
        if "maxItems" in rules and size > rules["maxItems"]:
            errors.append(self._too_many(path, size, rules["maxItems"]))
        if rules.get("uniqueItems") and any(same(a, b) for i, a in enumerate(value) for b in value[:i]):
            errors.append(self._invalid(path, "", "shouldn't contain duplicates"))
        return errors, count

    def _too_many(self, path: str, size: int, limit: int) -> FieldError:
        text = f"Too many: {size}: must have at most {limit} item{'' if limit == 1 else 's'}"
        return FieldError(self._at(path), "FieldValueTooMany", text)

    def _enum(self, value: Any, node: Node, path: str) -> list[FieldError]:
        allowed = node.rules.get("enum")
        if not allowed or (value is not None and any(same(value, one) for one in allowed)):
            return []
        shown = [one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in allowed]
        return [not_supported(self._at(path), embedded.ordered(value), shown)]

    def _object(self, value: dict[str, Any], node: Node, path: str, old: Any) -> tuple[list[FieldError], int]:
        errors: list[FieldError] = []
        count = 0
        size, rules = len(value), node.rules
        if "minProperties" in rules and size < rules["minProperties"]:
            errors.append(self._invalid(path, size, f"should have at least {rules['minProperties']} properties"))
        if "maxProperties" in rules and size > rules["maxProperties"]:
            errors.append(self._too_many(path, size, rules["maxProperties"]))
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
            found, matches = self.judge(value[key], field, at, before.get(key, _ABSENT))
            errors += found
            count += matches
        for key in node.required:
            if key not in value:
                errors.append(required(self._at(f"{path}.{key}")))
        return errors, count

    def _combinators(self, value: Any, node: Node, path: str, old: Any) -> tuple[list[FieldError], int]:
        errors: list[FieldError] = []
        count = 0
        rules = node.rules
        if "anyOf" in rules:
            results = [self.judge(value, option, path, old) for option in rules["anyOf"]]
            good = [r for r in results if not r[0]]
            if not good:
                errors.append(self._composite(path, "must validate at least one schema (anyOf)"))
            best = good[0] if good else max(results, key=lambda r: r[1])
            errors += best[0]
            count += best[1]
        if "oneOf" in rules:
            results = [self.judge(value, option, path, old) for option in rules["oneOf"]]
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
            results = [self.judge(value, option, path, old) for option in rules["allOf"]]
            for found_errors, matches in results:
                errors += found_errors
                count += matches
            bad = sum(1 for r in results if r[0])
            if bad:
                none = ". None validated" if bad == len(results) else ""
                errors.append(self._composite(path, f"must validate all the schemas (allOf){none}"))
        if "not" in rules and not self.judge(value, rules["not"], path, old)[0]:
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


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: True is not 1 here, but 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return bool(one == other)


def _correlated(value: list[Any], old: Any, node: Node) -> list[Any]:
    """Return the old item with the same key for each item.

    Items of other lists have no identity and are not correlated.
    """
    if node.list_type != "map" or not isinstance(old, list):
        return []
    known = {_key(item, node): item for item in old if isinstance(item, dict)}
    return [known.get(_key(item, node), _ABSENT) if isinstance(item, dict) else _ABSENT for item in value]


def _key(item: dict[str, Any], node: Node) -> str:
    return msgspec.json.encode([item.get(k) for k in node.list_keys], order="sorted").decode()


def list_errors(value: Any, node: Node | None, path: str) -> list[FieldError]:
    """Return an error for each repeated set member and list map key, at its second appearance only."""
    if node is None:
        return []
    errors: list[FieldError] = []
    if isinstance(value, list):
        errors += _repeats(value, node, path)
        for at, item in enumerate(value):
            errors += list_errors(item, node.items, f"{path}[{at}]")
    elif isinstance(value, dict):
        for key in sorted(value):
            field = node.fields.get(key)
            if field is not None:
                errors += list_errors(value[key], field, f"{path}.{key}" if path else key)
            elif node.values is not None:
                errors += list_errors(value[key], node.values, f"{path}[{key}]")
    return errors


def _repeats(value: list[Any], node: Node, path: str) -> list[FieldError]:
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
    errors: list[FieldError] = []
    seen: dict[str, int] = {}
    for at, key in enumerate(keys):
        text = msgspec.json.encode(key, order="sorted").decode()
        seen[text] = seen.get(text, 0) + 1
        if seen[text] == 2:
            errors.append(duplicate(f"{path}[{at}]", embedded.ordered(key)))
    return errors
