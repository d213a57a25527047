"""These tests check pruning, defaulting and validation of custom objects against the real server's."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.embedded.apiserver.api_errors import ApiFieldError
from koord.embedded.apiserver.schema.custom_decoding import (
    apply_defaults,
    decode_custom,
    decode_custom_by_walk,
    fits_fast_path,
    normalize_numbers,
    prune,
)
from koord.embedded.apiserver.schema.custom_validation import (
    validate_custom,
    validate_custom_by_walk,
    validate_custom_update,
)
from koord.embedded.apiserver.schema.schema_node import compile_schema
from koord.embedded.apiserver.schema.strict_decoding import cannot_be_handled_message, strict_errors

HERE = Path(__file__).parent
CUSTOM = json.loads((HERE / "custom_probes.json").read_text())
VALUES = json.loads((HERE / "value_probes.json").read_text())
NODE = compile_schema(CUSTOM["schema"])
VALUE_NODE = compile_schema(
    {"type": "object", "properties": {"spec": {"type": "object", "properties": VALUES["properties"]}}}
)


def causes(errors: list[ApiFieldError]) -> list[list[str]]:
    return [[e.field, e.reason, e.message] for e in errors]


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for c in CUSTOM["cases"]])
def test_custom_object_as_the_server_took_it(case: dict[str, Any]) -> None:
    found = decode_custom(case["body"], NODE)
    if "message" in case:
        assert cannot_be_handled_message("Custom", "v1", found.error) == case["message"]
        return
    assert list(found.unknown) == case["warnings"]
    # The server judges embedded type and kind in an order that changes from run to run.
    assert sorted(causes(validate_custom(found.value, NODE))) == sorted(case.get("causes", []))
    if "stored" in case:
        assert found.value == case["stored"]


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=f"{c['field']}-{json.dumps(c['value'])}") for c in VALUES["cases"]]
)
def test_value_is_judged_in_the_servers_words(case: dict[str, Any]) -> None:
    body = {"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x"}, "spec": {case["field"]: case["value"]}}
    found = decode_custom(body, VALUE_NODE)
    assert causes(validate_custom(found.value, VALUE_NODE)) == case["causes"]
    if not case["causes"]:
        assert found.value["spec"] == case["result"]


SCHEMAS = {**VALUES["properties"], **CUSTOM["schema"]["properties"]["spec"]["properties"]}
ALONE = {
    name: compile_schema({"type": "object", "properties": {"spec": {"type": "object", "properties": {name: schema}}}})
    for name, schema in SCHEMAS.items()
}


def agrees(value: dict[str, Any], name: str) -> None:
    """Assert that the full walks leave what the fast path accepts untouched and without errors."""
    if fits_fast_path(value, ALONE[name]):
        slow = decode_custom_by_walk(value, ALONE[name])
        assert not slow.error
        assert not slow.unknown
        assert json.dumps(slow.value) == json.dumps(value)
        # Repeats in sets and keyed lists are judged apart.
        assert [e for e in validate_custom_by_walk(value, ALONE[name]) if e.reason != "FieldValueDuplicate"] == []


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=f"{c['field']}-{json.dumps(c['value'])}") for c in VALUES["cases"]]
)
def test_the_quick_answer_is_the_full_answer(case: dict[str, Any]) -> None:
    agrees({"spec": {case["field"]: case["value"]}}, case["field"])


def test_the_quick_answer_is_often_given() -> None:
    good = [c for c in VALUES["cases"] if not c["causes"] and c["result"] == {c["field"]: c["value"]}]
    quick = [c for c in good if fits_fast_path({"spec": {c["field"]: c["value"]}}, ALONE[c["field"]])]
    assert len(quick) > len(good) * 2 / 3


RATCHET = CUSTOM["ratchet"]


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for c in RATCHET["updates"]])
def test_an_update_answers_only_for_what_it_changes(case: dict[str, Any]) -> None:
    node = compile_schema(RATCHET["schema"])
    assert causes(validate_custom_update({"spec": case["spec"]}, {"spec": RATCHET["old"]}, node)) == case["causes"]


def test_repeats_come_before_strangers_in_custom_objects() -> None:
    raw = (
        b'{"apiVersion":"schema.example.com/v1","kind":"Custom","metadata":{"name":"x","name":"y"},"spec":'
        b'{"a":"1","a":"2","m":{"k":{},"k":{"x":"1","x":"2"}},"zz":{"q":1,"q":2}}}'
    )
    assert ", ".join(strict_errors(raw, NODE)) == (
        'duplicate field "metadata.name", duplicate field "spec.a", duplicate field "spec.m.k", '
        'duplicate field "spec.m.k.x", duplicate field "spec.zz.q", unknown field "spec.zz"'
    )


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
keys = st.sampled_from([*CUSTOM["schema"]["properties"]["spec"]["properties"], "x", "k", "metadata", "kind", "spec"])
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=20
)
objects = st.fixed_dictionaries({"spec": documents}, optional={"metadata": documents, "kind": documents})


@settings(max_examples=200, deadline=None)
@given(objects)
def test_pruning_twice_finds_nothing_more(value: dict[str, Any]) -> None:
    prune(value, NODE)
    once = copy.deepcopy(value)
    assert prune(value, NODE) == []
    assert value == once


@settings(max_examples=200, deadline=None)
@given(objects)
def test_defaulting_twice_changes_nothing(value: dict[str, Any]) -> None:
    apply_defaults(value, NODE)
    once = copy.deepcopy(value)
    apply_defaults(value, NODE)
    assert value == once


@settings(max_examples=200, deadline=None)
@given(objects)
def test_decoding_custom_objects_twice_changes_nothing(value: dict[str, Any]) -> None:
    before = json.dumps(value)
    first = decode_custom(value, NODE)
    assert json.dumps(value) == before
    if not first.error:
        again = decode_custom(first.value, NODE)
        assert not again.error
        assert again.value == first.value
        assert again.unknown == ()


@settings(max_examples=300, deadline=None)
@given(documents, documents)
def test_any_json_can_be_judged(value: Any, old: Any) -> None:
    for node in (NODE, VALUE_NODE):
        validate_custom(value, node)
        validate_custom_update(value, old, node)


@settings(max_examples=100, deadline=None)
@given(objects)
def test_an_unchanged_object_may_always_be_written(value: dict[str, Any]) -> None:
    assert validate_custom_update(value, copy.deepcopy(value), VALUE_NODE) == []


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SCHEMAS)), documents)
def test_the_quick_answer_is_the_full_answer_for_anything(name: str, value: Any) -> None:
    agrees({"spec": {name: value}}, name)


def test_floats_settle_only_where_go_writes_no_fraction() -> None:
    assert normalize_numbers({"a": [1.0, 2.5, 1e21, True]}) == {"a": [1, 2.5, 1e21, True]}
    assert isinstance(normalize_numbers(1.0), int)
