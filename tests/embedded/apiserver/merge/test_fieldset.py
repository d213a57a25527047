"""These tests check the set operations against plain Python sets of paths, and FieldsV1 in both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.embedded.apiserver.merge import fieldset
from koord.embedded.apiserver.merge.fieldset import FieldPath, FieldSet

STEPS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'k:{"name":"y"}', "v:1", "v:10", "v:2", "i:0"])
PATHS = st.lists(STEPS, min_size=1, max_size=4).map(tuple)
SETS = st.frozensets(PATHS, max_size=8)


def tree(paths: frozenset[FieldPath]) -> FieldSet:
    return fieldset.from_paths(paths)


def members(fields: FieldSet) -> frozenset[FieldPath]:
    return frozenset(fieldset.paths(fields))


def below(path: FieldPath, others: frozenset[FieldPath]) -> bool:
    return any(path[: len(other)] == other for other in others)


@given(a=SETS)
def test_a_tree_holds_the_paths_it_was_made_of(a: frozenset[FieldPath]) -> None:
    assert members(tree(a)) == a
    assert all(fieldset.has_path(tree(a), path) for path in a)
    assert not fieldset.has_path(tree(a), ("f:zz",))


@given(a=SETS, b=SETS)
def test_union_intersection_and_difference_are_those_of_the_paths(
    a: frozenset[FieldPath], b: frozenset[FieldPath]
) -> None:
    assert members(fieldset.union(tree(a), tree(b))) == a | b
    assert members(fieldset.intersection(tree(a), tree(b))) == a & b
    assert members(fieldset.difference(tree(a), tree(b))) == a - b
    assert members(fieldset.without_subtrees(tree(a), tree(b))) == {path for path in a if not below(path, b)}


@given(a=SETS)
def test_leaves_have_nothing_below_them(a: frozenset[FieldPath]) -> None:
    wanted = {path for path in a if not any(other != path and other[: len(path)] == path for other in a)}
    assert members(fieldset.leaves(tree(a))) == wanted


@given(a=SETS, b=SETS)
def test_results_are_canonical(a: frozenset[FieldPath], b: frozenset[FieldPath]) -> None:
    """Check that equal sets are equal dicts in the same order, however they were built."""
    found = fieldset.union(fieldset.difference(tree(a), tree(b)), fieldset.intersection(tree(a), tree(b)))
    assert json.dumps(found) == json.dumps(tree(a))
    assert json.dumps(fieldset.union(tree(b), tree(a))) == json.dumps(tree(a | b))


@given(a=SETS)
def test_fields_v1_round_trip(a: frozenset[FieldPath]) -> None:
    fields = tree(a)
    assert fieldset.parse_fields_v1(json.loads(json.dumps(fields))) == fields
    shuffled = json.loads(json.dumps(fields, sort_keys=True))
    assert json.dumps(fieldset.parse_fields_v1(shuffled)) == json.dumps(fields)


@given(a=SETS, b=SETS)
def test_operands_are_never_changed(a: frozenset[FieldPath], b: frozenset[FieldPath]) -> None:
    left, right = tree(a), tree(b)
    before = json.dumps([left, right])
    for operation in (fieldset.union, fieldset.intersection, fieldset.difference, fieldset.without_subtrees):
        operation(left, right)
    assert json.dumps([left, right]) == before


def test_siblings_sort_by_value_not_by_text() -> None:
    fields = fieldset.from_paths(
        [("v:10",), ("v:2",), ('k:{"p":80}',), ('k:{"p":443}',), ("i:3",), ("f:z",), ('v:"a"',)]
    )
    assert list(fields) == ["f:z", 'k:{"p":80}', 'k:{"p":443}', "v:2", "v:10", 'v:"a"', "i:3"]


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        pytest.param({"f:a": {".": {}}}, {"f:a": {}}, id="a-lone-dot-is-a-leaf"),
        pytest.param({'k:{"b":1, "a":2}': {}}, {'k:{"a":2,"b":1}': {}}, id="keys-are-sorted"),
        pytest.param({"x:future": {"f:a": {}}}, {}, id="unknown-steps-are-dropped"),
        pytest.param({"i:007": {}}, {"i:7": {}}, id="indexes-are-numbers"),
        pytest.param({'v: "a"': {}, 'v:"a"': {"f:b": {}}}, {'v:"a"': {".": {}, "f:b": {}}}, id="spellings-join"),
    ],
)
def test_what_clients_write_is_made_canonical(raw: dict[str, Any], fields: FieldSet) -> None:
    assert fieldset.parse_fields_v1(raw) == fields


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        pytest.param({"nonsense": {}}, "missing colon", id="no-colon"),
        pytest.param({"k:[1]": {}}, "a key must be an object", id="key-is-a-list"),
        pytest.param({"v:{": {}}, "property name", id="value-is-no-json"),
        pytest.param({"f:a": 1}, "must be an object", id="leaf-is-a-number"),
        pytest.param({"i:x": {}}, "invalid literal", id="index-is-text"),
        pytest.param([], "must be an object", id="list"),
    ],
)
def test_what_is_no_field_set_is_refused(raw: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fieldset.parse_fields_v1(raw)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(("f:spec", "f:replicas"), ".spec.replicas", id="fields"),
        pytest.param(("f:c", 'k:{"name":"x"}', "f:image"), '.c[name="x"].image', id="keyed-item"),
        pytest.param(('k:{"containerPort":80,"protocol":"TCP"}',), '[containerPort=80,protocol="TCP"]', id="two-keys"),
        pytest.param(("f:finalizers", 'v:"x.io/a"'), '.finalizers[="x.io/a"]', id="set-item"),
        pytest.param(("i:3",), "[3]", id="index"),
    ],
)
def test_paths_as_people_read_them(path: FieldPath, text: str) -> None:
    assert fieldset.path_text(path) == text


@pytest.mark.parametrize(
    ("made", "step"),
    [
        pytest.param(fieldset.key_step("name", "a<b>&"), 'k:{"name":"a\\u003cb\\u003e\\u0026"}', id="go-escapes-html"),
        pytest.param(fieldset.value_step("ü"), 'v:"ü"', id="letters-stay"),
        pytest.param(fieldset.value_step(1.0), "v:1", id="whole-floats-lose-their-point"),
        pytest.param(fieldset.value_step(True), "v:true", id="true-is-not-one"),
        pytest.param(fieldset.value_step(1), "v:1", id="one-is-not-true"),
        pytest.param(fieldset.keys_step([("b", 1), ("a", "x")]), 'k:{"a":"x","b":1}', id="keys-are-sorted"),
    ],
)
def test_spelling_of_steps(made: str, step: str) -> None:
    assert made == step
