"""These tests check merge patch: RFC 7386's own examples, and what kube-apiserver does beyond them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.patch.merge_patch import PatchFailed, merge_patch, without_null_fields


@pytest.mark.parametrize(
    ("doc", "patch", "result"),
    [
        pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="replaces"),
        pytest.param({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}, id="adds"),
        pytest.param({"a": "b"}, {"a": None}, {}, id="null-removes"),
        pytest.param({"a": "b"}, {"z": None}, {"a": "b"}, id="null-of-nothing"),
        pytest.param({"a": ["b"]}, {"a": "c"}, {"a": "c"}, id="list-to-scalar"),
        pytest.param({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}, id="lists-are-replaced"),
        pytest.param({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}, id="objects-merge"),
        pytest.param({"a": "foo"}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}, id="nulls-in-new-objects-vanish"),
        pytest.param({}, {"a": [{"b": None}, None]}, {"a": [{}, None]}, id="and-in-objects-of-new-lists"),
        pytest.param(
            {"a": {}}, {"a": [{"b": None}]}, {"a": [{"b": None}]}, id="but-not-when-a-list-replaces-an-object"
        ),
    ],
)
def test_merges(doc: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]) -> None:
    before = copy.deepcopy((doc, patch))
    assert merge_patch(doc, patch) == result
    assert (doc, patch) == before


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        pytest.param(None, "Invalid JSON Patch", id="null"),
        pytest.param(
            [1],
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
            id="list",
        ),
        pytest.param(
            "x",
            "error decoding patch: json: cannot unmarshal string into Go value of type map[string]interface {}",
            id="string",
        ),
    ],
)
def test_refuses_what_is_no_object(patch: Any, message: str) -> None:
    assert merge_patch({}, patch) == PatchFailed(400, message, "BadRequest")


VALUES = st.recursive(
    st.none() | st.integers(0, 2) | st.text("ab", max_size=2),
    lambda inner: (
        st.dictionaries(st.text("abc", min_size=1, max_size=1), inner, max_size=3) | st.lists(inner, max_size=2)
    ),
)
OBJECTS = st.dictionaries(st.text("abc", min_size=1, max_size=1), VALUES, max_size=3)


@given(doc=OBJECTS, patch=OBJECTS)
def test_a_second_time_changes_nothing(doc: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge_patch(doc, patch)
    assert isinstance(once, dict)
    assert without_null_fields(merge_patch(once, patch)) == without_null_fields(once)
