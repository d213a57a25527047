"""The patch between two objects, applied by another library, gives the second."""

from __future__ import annotations

from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.manager.webhook_server.handlers import json_patch

LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.text("a~/0", max_size=3)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a~/é", max_size=3), inner, max_size=4)
)
OBJECTS = st.dictionaries(st.text("ab~/", max_size=3), VALUES, max_size=4)


@given(old=OBJECTS, new=OBJECTS)
def test_applied_it_leads_to_the_new_object(old: dict[str, Any], new: dict[str, Any]) -> None:
    after = jsonpatch.apply_patch(old, json_patch(old, new))
    assert after == new
    assert repr(sorted(after, key=str)) == repr(sorted(new, key=str))


@given(OBJECTS)
def test_equal_objects_need_nothing(value: dict[str, Any]) -> None:
    assert json_patch(value, value) == []


@pytest.mark.parametrize(
    ("old", "new", "operations"),
    [
        pytest.param(
            {"a": {"b/c": 1}}, {"a": {"b/c": 2}}, [{"op": "replace", "path": "/a/b~1c", "value": 2}], id="slash-in-key"
        ),
        pytest.param({"a": True}, {"a": 1}, [{"op": "replace", "path": "/a", "value": 1}], id="true-is-not-one"),
        pytest.param({"a": [1, 2]}, {"a": [1]}, [{"op": "replace", "path": "/a", "value": [1]}], id="shorter-list"),
        pytest.param(
            {"a": [{"x": 1}, {"y": 2}]},
            {"a": [{"x": 1}, {"y": 3}]},
            [{"op": "replace", "path": "/a/1/y", "value": 3}],
            id="element-of-a-list",
        ),
    ],
)
def test_shape(old: Any, new: Any, operations: Any) -> None:
    assert json_patch(old, new) == operations
