"""These tests check JSON patch; every row was observed on kube-apiserver 1.35."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.patch.merge_patch import PatchFailed
from koord.embedded.apiserver.merge.json_patch import MAX_OPERATIONS, json_patch

DOC: dict[str, Any] = {"data": {"a": "1", "b": "2"}, "list": [{"n": 1}, {"n": 2}], "null": None}
REJECTED = "the server rejected our request due to an error in our request"


@pytest.mark.parametrize(
    ("operations", "changed"),
    [
        pytest.param(
            [{"op": "replace", "path": "/data/zz", "value": "x"}],
            {"data": {**DOC["data"], "zz": "x"}},
            id="replace-sets-a-missing-key",
        ),
        pytest.param([{"op": "test", "path": "/data/zz", "value": None}], {}, id="missing-equals-null"),
        pytest.param([{"op": "test", "path": "/data/zz"}], {}, id="test-without-value-is-null"),
        pytest.param(
            [{"op": "copy", "from": "/data/q", "path": "/data/w"}],
            {"data": {**DOC["data"], "w": None}},
            id="copy-of-missing-adds-null",
        ),
        pytest.param(
            [{"op": "add", "path": "/data/x"}], {"data": {**DOC["data"], "x": None}}, id="add-without-value-adds-null"
        ),
        pytest.param(
            [{"op": "replace", "path": "/list/-1/n", "value": 5}],
            {"list": [{"n": 1}, {"n": 5}]},
            id="negative-index-counts-from-the-end",
        ),
        pytest.param(
            [{"op": "add", "path": "/list/-", "value": 3}], {"list": [{"n": 1}, {"n": 2}, 3]}, id="dash-appends"
        ),
        pytest.param(
            [{"op": "add", "path": "/list/-1", "value": 3}],
            {"list": [{"n": 1}, {"n": 2}, 3]},
            id="minus-one-appends-too",
        ),
        pytest.param(
            [{"op": "add", "path": "/list/01", "value": 3}],
            {"list": [{"n": 1}, 3, {"n": 2}]},
            id="leading-zero-is-a-number",
        ),
        pytest.param([{"op": "remove", "path": "/list/0"}], {"list": [{"n": 2}]}, id="remove-an-item"),
        pytest.param([{"op": "move", "from": "/data/a", "path": "/data/c"}], {"data": {"b": "2", "c": "1"}}, id="move"),
        pytest.param(
            [{"op": "add", "path": "/data/x~1y~0", "value": "v"}], {"data": {**DOC["data"], "x/y~": "v"}}, id="escapes"
        ),
        pytest.param(
            [{"op": "add", "path": "ignored/data/c", "value": "v"}],
            {"data": {**DOC["data"], "c": "v"}},
            id="text-before-the-first-slash-is-ignored",
        ),
        pytest.param(
            [{"op": "copy", "from": "/list/0", "path": "/list/-"}, {"op": "add", "path": "/list/2/m", "value": 9}],
            {"list": [{"n": 1}, {"n": 2}, {"n": 1, "m": 9}]},
            id="a-copy-is-a-copy",
        ),
        pytest.param(None, {}, id="null-patch-does-nothing"),
    ],
)
def test_applies(operations: Any, changed: dict[str, Any]) -> None:
    before = copy.deepcopy(DOC)
    assert json_patch(DOC, operations) == {**DOC, **changed}
    assert before == DOC, "the document is shared and must not change"


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "remove", "path": "/data/zz"}, id="remove-missing"),
        pytest.param({"op": "remove", "path": "/dat/zz"}, id="remove-below-missing"),
        pytest.param({"op": "remove", "path": ""}, id="remove-all"),
        pytest.param({"op": "test", "path": "/data/a", "value": "9"}, id="test-differs"),
        pytest.param({"op": "test", "path": "/data/a"}, id="test-against-nothing"),
        pytest.param({"op": "test", "path": "/list/0/n", "value": 1.0}, id="one-is-not-one-point-zero"),
        pytest.param({"op": "test", "path": "/list/0/n", "value": True}, id="one-is-not-true"),
        pytest.param({"op": "test", "path": "/list/7", "value": {}}, id="test-beyond-the-end"),
        pytest.param({"op": "replace", "path": "/dat/zz", "value": "x"}, id="replace-below-missing"),
        pytest.param({"op": "replace", "path": "/list/5", "value": {}}, id="replace-beyond-the-end"),
        pytest.param({"op": "replace", "path": "", "value": "x"}, id="replace-all-with-a-scalar"),
        pytest.param({"op": "add", "path": "/dat/zz", "value": "x"}, id="add-below-missing"),
        pytest.param({"op": "add", "path": "/data/a/b", "value": "x"}, id="add-below-a-scalar"),
        pytest.param({"op": "add", "path": "/null/b", "value": "x"}, id="add-below-null"),
        pytest.param({"op": "add", "path": "data", "value": "x"}, id="path-without-slash"),
        pytest.param({"op": "add", "path": "", "value": {}}, id="add-all"),
        pytest.param({"op": "add", "value": "x"}, id="no-path"),
        pytest.param({"op": "add", "path": "/list/3", "value": 1}, id="add-beyond-the-end"),
        pytest.param({"op": "add", "path": "/list/-9", "value": 1}, id="add-before-the-start"),
        pytest.param({"op": "add", "path": "/list/x", "value": 1}, id="index-is-no-number"),
        pytest.param({"op": "move", "from": "/data/q", "path": "/data/w"}, id="move-missing"),
        pytest.param({"op": "move", "from": "/data/a", "path": "/dat/w"}, id="move-to-missing"),
        pytest.param({"op": "copy", "path": "/data/w"}, id="copy-from-nowhere"),
        pytest.param({"op": "frob", "path": "/data/a"}, id="unknown-operation"),
        pytest.param({"path": "/data/a"}, id="no-operation"),
    ],
)
def test_is_rejected_without_a_reason(operation: dict[str, Any]) -> None:
    assert json_patch(DOC, [operation]) == PatchFailed(422, REJECTED, "Invalid", {})


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        pytest.param({"op": "add"}, "object into Go value of type []handlers.jsonPatchOp", id="object"),
        pytest.param(["x"], "string into Go value of type handlers.jsonPatchOp", id="list-of-strings"),
        pytest.param(
            [{"op": "add", "path": 3}], "number into Go struct field jsonPatchOp.path of type string", id="path"
        ),
    ],
)
def test_does_not_decode(patch: Any, message: str) -> None:
    wanted = PatchFailed(400, f"error decoding patch: json: cannot unmarshal {message}", "BadRequest")
    assert json_patch(DOC, patch) == wanted


def test_too_many_operations() -> None:
    patch = [{"op": "test", "path": "/data/a", "value": "1"}] * (MAX_OPERATIONS + 1)
    message = "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001"
    assert json_patch(DOC, patch) == PatchFailed(413, message, "RequestEntityTooLarge")


def test_copies_are_limited_in_bytes() -> None:
    big = {"big": "x" * 200_000}
    copies = [{"op": "copy", "from": "/big", "path": f"/k{i}"} for i in range(15)]
    assert isinstance(json_patch(big, copies), dict)
    assert json_patch(big, [*copies, {"op": "copy", "from": "/big", "path": "/k"}]) == PatchFailed(
        422, REJECTED, "Invalid", {}
    )


KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.sampled_from(["1", "2"]), lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3)
)
POINTERS = st.lists(st.sampled_from(["a", "b", "c", "0", "1", "-"]), min_size=1, max_size=3).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)
OPERATIONS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": POINTERS,
        "from": POINTERS,
        "value": VALUES,
    }
)


@given(doc=st.dictionaries(KEYS, VALUES), operations=st.lists(OPERATIONS, max_size=4))
def test_agrees_with_the_rfc_wherever_the_rfc_allows_it(doc: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(doc)
    ours = json_patch(doc, operations)
    assert doc == before
    try:
        strict = jsonpatch.apply_patch(doc, operations)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError):
        return  # we may be looser there
    moves_into_itself = any(o["op"] == "move" and o["path"].startswith(o["from"] + "/") for o in operations)
    if not moves_into_itself:  # forbidden by the RFC, not by the library that checks it here
        assert ours == strict
