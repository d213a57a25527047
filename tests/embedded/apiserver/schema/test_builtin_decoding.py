"""These tests check the decoding of built-in kinds against the real server's errors and stored objects."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.embedded.apiserver.schema import builtin_fast_path
from koord.embedded.apiserver.schema.builtin_decoding import decode_builtin, decode_builtin_by_walk
from koord.embedded.apiserver.schema.builtin_types import builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.embedded.apiserver.schema.strict_decoding import (
    cannot_be_handled_message,
    decode_json_strict,
    strict_error_message,
    strict_errors,
    unknown_field_errors,
    warning_header,
)

HERE = Path(__file__).parent


def probes(name: str) -> list[Any]:
    cases = json.loads((HERE / name).read_text())
    return [pytest.param(case, id=case["id"]) for case in cases]


def node_of(kind: list[str]) -> SchemaNode:
    node = builtin_types().node_for(*kind)
    assert node is not None
    return node


@pytest.mark.parametrize("case", probes("decoding_refusals.json"))
def test_refusal_has_the_servers_words(case: dict[str, Any]) -> None:
    found = decode_builtin(case["body"], node_of(case["kind"]))
    _, version, kind = case["kind"]
    if found.error:
        assert cannot_be_handled_message(kind, version, found.error) == case["message"]
    else:
        assert strict_error_message(kind, version, list(found.unknown)) == case["message"]


@pytest.mark.parametrize("case", probes("decoding_round_trips.json"))
def test_round_trip_gives_what_the_server_stored(case: dict[str, Any]) -> None:
    found = decode_builtin(case["body"], node_of(case["kind"]))
    assert not found.error
    stored = found.value
    assert json.dumps(stored) == json.dumps(case["stored"])


@pytest.mark.parametrize("case", probes("decoding_round_trips.json"))
def test_both_ways_through_agree(case: dict[str, Any]) -> None:
    node = node_of(case["kind"])
    quick = builtin_fast_path.decode_fast(case["stored"], node)
    assert quick is not None, "what the server stores needs no second look"
    assert json.dumps(quick) == json.dumps(decode_builtin_by_walk(case["stored"], node).value)


POD = node_of(["", "v1", "Pod"])

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


def shaped(node: SchemaNode, depth: int = 0) -> st.SearchStrategy[Any]:
    """Return values that mostly fit a node, with nulls, empty values and unknown fields among them."""
    if depth > 5 or node.kind == "any":
        return documents
    match node.kind:
        case "object":
            names = list(node.fields)
            return st.lists(st.sampled_from([*names, "stranger"]), max_size=4, unique=True).flatmap(
                lambda keys: st.fixed_dictionaries(
                    {k: shaped(node.fields[k], depth + 1) | scalars if k in node.fields else scalars for k in keys}
                )
            )
        case "list":
            assert node.items is not None
            return st.lists(shaped(node.items, depth + 1), max_size=2)
        case "map":
            assert node.values is not None
            return st.dictionaries(st.text(max_size=3), shaped(node.values, depth + 1), max_size=2)
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(-3, 3)
        case "quantity":
            return st.sampled_from(["1", "1000m", "1024Mi", "0", 5, "0.5"])
        case "int-or-string":
            return st.sampled_from([0, 80, "http", ""])
        case "string" if node.format == "date-time":
            return st.sampled_from(["2020-01-01T00:00:00Z", "2020-01-01T00:00:00.000000Z", "2020-01-31T00:00:00+01:00"])
    return st.sampled_from(["", "text", "YQ=="])


@settings(max_examples=150, deadline=None)
@given(shaped(POD))
def test_decoding_twice_changes_nothing(value: Any) -> None:
    first = decode_builtin_by_walk(value, POD)
    if not first.error:
        again = decode_builtin_by_walk(first.value, POD)
        assert again.value == first.value
        assert not again.unknown


@settings(max_examples=150, deadline=None)
@given(shaped(POD))
def test_the_quick_way_is_the_slow_way(value: Any) -> None:
    quick = builtin_fast_path.decode_fast(value, POD)
    if quick is not None:
        slow = decode_builtin_by_walk(value, POD)
        assert not slow.error
        assert not slow.unknown
        assert json.dumps(quick) == json.dumps(slow.value)


@settings(max_examples=100, deadline=None)
@given(documents)
def test_any_json_gets_an_answer(value: Any) -> None:
    found = decode_builtin(value, POD)
    assert found.error or isinstance(found.value, dict)


def test_decoding_leaves_its_argument_alone() -> None:
    body = {"metadata": {"managedFields": [{"fieldsV1": {"f:a": {}}}]}, "spec": {"containers": [], "foo": 1}}
    before = json.dumps(body)
    found = decode_builtin(body, POD)
    found.value["metadata"]["managedFields"][0]["fieldsV1"]["f:b"] = {}
    assert json.dumps(body) == before


def test_every_kind_but_crds_has_a_quick_way() -> None:
    without = [
        r.kind
        for r in builtin_types().resources()
        if not builtin_fast_path.decode_fast({}, node_of([r.group, r.version, r.kind]))
    ]
    assert without == ["CustomResourceDefinition"]


REPEATED = (
    b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","name":"q","labels":{"a":"1","a":"2"}},"spec":'
    b'{"containers":[{"name":"c","image":"i","image":"j","foo":{"x":1,"x":2},"foo":2}],"bar":1}}'
)


def test_repeated_and_unknown_fields_come_in_the_order_of_the_text() -> None:
    assert ", ".join(strict_errors(REPEATED, POD)) == (
        'duplicate field "metadata.name", duplicate field "metadata.labels.a", '
        'duplicate field "spec.containers[0].image", unknown field "spec.containers[0].foo", unknown field "spec.bar"'
    )


def test_the_last_of_repeated_keys_counts() -> None:
    value, repeated = decode_json_strict(REPEATED)
    assert value["metadata"]["name"] == "q"
    assert 'duplicate field "metadata.name"' in repeated


@pytest.mark.parametrize(
    "raw", [b'{"a": [1, {"b": "\\u00e9"}], "c": 1e3}', b'{"a":1}', b"[]", b' {"a" : "x\\/y"} '], ids=repr
)
def test_nothing_repeated(raw: bytes) -> None:
    value, repeated = decode_json_strict(raw)
    assert value == json.loads(raw)
    assert repeated == []


def test_unknown_fields_of_a_good_pod() -> None:
    assert unknown_field_errors({"spec": {"containers": [{"name": "c"}]}}, POD) == []
    assert unknown_field_errors({"spec": {"containers": [{"nam": "c"}]}}, POD) == [
        'unknown field "spec.containers[0].nam"'
    ]


def test_warnings_quote_the_message() -> None:
    assert warning_header('unknown field "spec.foo"') == '299 - "unknown field \\"spec.foo\\""'
