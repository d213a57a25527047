"""Rules in CEL of a CRD are checked when it is written and evaluated when its objects are."""

from __future__ import annotations

from typing import Any

import pytest

from koord.embedded.apiserver.schema.crd_validation import crd_schema_errors
from koord.embedded.apiserver.schema.custom_validation import validate_custom, validate_custom_update
from koord.embedded.apiserver.schema.schema_node import SchemaNode, compile_schema

Obj = dict[str, Any]


def with_rules(*rules: str | Obj, **properties: Obj) -> Obj:
    rows = [{"rule": rule} if isinstance(rule, str) else rule for rule in rules]
    return {"type": "object", "x-kubernetes-validations": rows, "properties": properties}


def under_spec(schema: Obj) -> Obj:
    return {"type": "object", "properties": {"spec": schema}}


NUMBER = {"type": "integer"}
NUMBERS = {"type": "array", "items": NUMBER}


def refusals(schema: Obj) -> list[str]:
    return [str(error) for error in crd_schema_errors(under_spec(schema), "s")]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (with_rules("self.z == 1", x=NUMBER), "undefined field 'z'"),
        (with_rules("self.xs.all(x, x.y > 1)", xs={"type": "array", "items": with_rules()}), "undefined field 'y'"),
        (with_rules("self = 42"), "Syntax error"),
        (with_rules("other > 1"), "undeclared reference to 'other'"),
        (with_rules("authorizer.path('/x').check('get').allowed()", x=NUMBER), "undeclared reference to 'authorizer'"),
        (with_rules(" "), "Required value: rule is not specified"),
        (with_rules({"rule": "true", "messageExpression": "self.z"}), "undefined field 'z'"),
    ],
)
def test_what_cannot_be_enforced_is_refused(schema: Obj, why: str) -> None:
    assert any(why in text for text in refusals(schema)), refusals(schema)


def test_a_rule_that_would_take_too_long_is_refused_unless_lists_are_bounded() -> None:
    inner = {**NUMBERS, "x-kubernetes-validations": [{"rule": "self.all(x, x > 1)"}]}
    assert "exceeds budget by factor of more than 100x" in refusals(with_rules(a={"type": "array", "items": inner}))[0]
    bounded = {"type": "array", "maxItems": 10, "items": {**inner, "maxItems": 100}}
    assert refusals(with_rules(a=bounded)) == []


def test_old_values_need_a_place_where_they_can_be_found() -> None:
    item = with_rules("self.n >= oldSelf.n", n=NUMBER, key={"type": "string"}) | {"required": ["key"]}
    atomic = {"type": "array", "maxItems": 9, "items": item}
    assert "uncorrelatable" in refusals(with_rules(a=atomic))[0]
    keyed = {**atomic, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"]}
    assert refusals(with_rules(a=keyed)) == []


def node(schema: Obj) -> SchemaNode:
    assert refusals(schema) == []
    return compile_schema(under_spec(schema))


def errors(schema: Obj, spec: Any, old: Any = None) -> list[str]:
    made = node(schema)
    if old is None:
        return [str(error) for error in validate_custom({"spec": spec}, made)]
    return [str(error) for error in validate_custom_update({"spec": spec}, {"spec": old}, made)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("self.x > 1", 'spec: Invalid value: "object": failed rule: self.x > 1'),
        ({"rule": "self.x > 1", "message": "too few"}, 'spec: Invalid value: "object": too few'),
        (
            {"rule": "self.x > 1", "message": "m", "messageExpression": "'x is ' + string(self.x)"},
            'spec: Invalid value: "object": x is 1',
        ),
        ({"rule": "self.x > 1", "fieldPath": ".x"}, 'spec.x: Invalid value: "object": failed rule: self.x > 1'),
        ({"rule": "self.x > 1", "reason": "FieldValueForbidden"}, "spec: Forbidden: failed rule: self.x > 1"),
        ("self.y > 1", 'spec: Invalid value: "object": no such key: y evaluating rule: self.y > 1'),
    ],
)
def test_words_of_a_violation(rule: str | Obj, expected: str) -> None:
    schema = with_rules(rule, x=NUMBER, y=NUMBER)
    assert errors(schema, {"x": 1}) == [expected]
    assert errors(schema, {"x": 2, "y": 2}) == []


def test_values_have_the_types_of_their_schema() -> None:
    schema = with_rules(
        "self.ratio < 1.5",
        "self.at > timestamp('2026-01-01T00:00:00Z')",
        "self.every >= duration('1m')",
        ratio={"type": "number"},
        at={"type": "string", "format": "date-time"},
        every={"type": "string", "format": "duration"},
    )
    good = {"ratio": 1, "at": "2026-06-01T00:00:00Z", "every": "2m"}
    assert errors(schema, good) == []
    assert len(errors(schema, {"ratio": 2, "at": "2025-06-01T00:00:00Z", "every": "2s"})) == 3


def test_transition_rules_see_the_old_value() -> None:
    schema = with_rules(n={**NUMBER, "x-kubernetes-validations": [{"rule": "self > oldSelf"}]})
    assert errors(schema, {"n": 10}) == []
    assert errors(schema, {"n": 9}, {"n": 10}) == ["spec.n: Invalid value: 9: failed rule: self > oldSelf"]
    assert errors(schema, {"n": 10}, {"n": 10}) == ["spec.n: Invalid value: 10: failed rule: self > oldSelf"]
    assert errors(schema, {"n": 10}, {}) == []


def test_an_old_value_may_be_optional() -> None:
    rule = {"rule": "!oldSelf.hasValue() || self > oldSelf.value()", "optionalOldSelf": True}
    schema = with_rules(n={**NUMBER, "x-kubernetes-validations": [rule]})
    assert errors(schema, {"n": 1}) == []
    assert len(errors(schema, {"n": 1}, {"n": 1})) == 1
    assert errors(schema, {"n": 2}, {"n": 1}) == []
    at_first = {"rule": "self > oldSelf.orValue(1)", "optionalOldSelf": True}
    schema = with_rules(n={**NUMBER, "x-kubernetes-validations": [at_first]})
    assert (len(errors(schema, {"n": 1})), len(errors(schema, {"n": 2}))) == (1, 0)


def test_entries_of_maps_are_named_by_their_keys() -> None:
    entry = {**NUMBER, "x-kubernetes-validations": [{"rule": "self > 1"}]}
    schema = with_rules(m={"type": "object", "maxProperties": 9, "additionalProperties": entry})
    assert errors(schema, {"m": {"a": 1}}) == ["spec.m[a]: Invalid value: 1: failed rule: self > 1"]


def test_what_did_not_change_is_not_judged_again() -> None:
    item = {"type": "object", "properties": {"key": {"type": "string"}, "n": NUMBER}, "required": ["key"]}
    judged = {**item, "x-kubernetes-validations": [{"rule": "self.n > 1"}]}
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"], "maxItems": 9}
    schema = with_rules(
        keyed={"type": "array", "items": judged, **keyed}, plain={"type": "array", "items": judged, "maxItems": 9}
    )
    bad, good = {"key": "a", "n": 0}, {"key": "b", "n": 2}
    assert errors(schema, {"keyed": [good, bad]}, {"keyed": [bad]}) == []
    assert len(errors(schema, {"plain": [good, bad]}, {"plain": [bad]})) == 1
    assert len(errors(schema, {"keyed": [{"key": "a", "n": 1}]}, {"keyed": [bad]})) == 1


def test_no_rule_runs_for_long() -> None:
    schema = with_rules("self.a.all(x, self.a.all(y, x == y))", a={**NUMBERS, "maxItems": 725})
    assert errors(schema, {"a": [1, 1]}) == []
    assert "call cost exceeds limit" in errors(schema, {"a": [1] * 725})[0]
