"""These tests check strategic merge patch against kube-apiserver 1.35, and its invariants."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.patch.merge_patch import PatchFailed
from koord.api.patch.strategic_merge import strategic_merge
from koord.embedded.apiserver.schema.builtin_types import builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode

Obj = dict[str, Any]


def node(group: str, version: str, kind: str) -> SchemaNode:
    found = builtin_types().node_for(group, version, kind)
    assert found is not None
    return found


POD = node("", "v1", "Pod")
DEPLOYMENT = node("apps", "v1", "Deployment")

LIVE: Obj = {
    "metadata": {"name": "p", "labels": {"a": "b"}, "finalizers": ["x/a", "x/b"]},
    "spec": {
        "containers": [
            {"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}], "args": ["1"]},
            {"name": "d", "image": "j"},
        ],
        "tolerations": [{"key": "t"}],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}],
        "nodeSelector": {"x": "1"},
    },
}


def patched(patch: Obj) -> Obj:
    before = copy.deepcopy((LIVE, patch))
    result = strategic_merge(LIVE, patch, POD)
    assert (LIVE, patch) == before, "neither the document nor the patch may change"
    assert isinstance(result, dict), result
    return result


def names(items: list[Obj]) -> list[str]:
    return [item["name"] for item in items]


@pytest.mark.parametrize(
    ("patch", "containers"),
    [
        pytest.param([{"name": "d", "image": "k"}], ["c:i", "d:k"], id="merges-by-key"),
        pytest.param([{"name": "e", "image": "k"}], ["e:k", "c:i", "d:j"], id="new-items-come-first"),
        pytest.param([{"name": "d"}, {"name": "c"}], ["d:j", "c:i"], id="the-patch-orders"),
        pytest.param(
            [{"name": "c", "image": "y"}, {"name": "c", "image": "z"}], ["c:z", "d:j"], id="doubles-merge-in-turn"
        ),
        pytest.param([{"name": "c", "$patch": "delete"}], ["d:j"], id="delete"),
        pytest.param([{"name": "zz", "$patch": "delete"}], ["c:i", "d:j"], id="delete-of-nothing"),
        pytest.param([{"$patch": "replace"}, {"name": "e", "image": "k"}], ["e:k"], id="replace"),
        pytest.param([{"name": "c", "$patch": "replace"}], [], id="replace-drops-its-own-item"),
        pytest.param([], ["c:i", "d:j"], id="empty-list"),
    ],
)
def test_lists_of_maps(patch: list[Obj], containers: list[str]) -> None:
    found = patched({"spec": {"containers": patch}})["spec"]["containers"]
    assert [f"{c['name']}:{c.get('image')}" for c in found] == containers


@pytest.mark.parametrize(
    ("patch", "finalizers"),
    [
        pytest.param({"finalizers": ["x/c", "x/a"]}, ["x/c", "x/a", "x/b"], id="union-in-the-patch-order"),
        pytest.param({"$deleteFromPrimitiveList/finalizers": ["x/a"]}, ["x/b"], id="delete-from-primitives"),
        pytest.param({"$setElementOrder/finalizers": ["x/b", "x/a"]}, ["x/b", "x/a"], id="order-alone"),
        pytest.param(
            {"finalizers": ["x/c"], "$setElementOrder/finalizers": ["x/c", "x/a"]},
            ["x/c", "x/a", "x/b"],
            id="order-with-items",
        ),
        pytest.param({"finalizers": None}, None, id="null-removes"),
    ],
)
def test_lists_of_primitives(patch: Obj, finalizers: list[str] | None) -> None:
    assert patched({"metadata": patch})["metadata"].get("finalizers") == finalizers


@pytest.mark.parametrize(
    ("patch", "labels"),
    [
        pytest.param({"q": "r"}, {"a": "b", "q": "r"}, id="merge"),
        pytest.param({"a": None, "z": None}, {}, id="null-removes"),
        pytest.param({"$patch": "replace", "q": "r"}, {"q": "r"}, id="replace"),
        pytest.param({"$patch": "delete", "q": "r"}, {}, id="delete"),
    ],
)
def test_maps(patch: Obj, labels: Obj) -> None:
    assert patched({"metadata": {"labels": patch}})["metadata"]["labels"] == labels


def test_lists_without_a_strategy_are_replaced() -> None:
    assert patched({"spec": {"tolerations": [{"key": "u"}]}})["spec"]["tolerations"] == [{"key": "u"}]
    found = patched({"spec": {"containers": [{"name": "c", "args": ["2", "3"]}]}})["spec"]["containers"][0]
    assert found["args"] == ["2", "3"]


def test_set_element_order_keeps_live_items_beside_their_neighbours() -> None:
    patch = {
        "$setElementOrder/volumes": [{"name": "new"}, {"name": "w"}],
        "volumes": [{"name": "new", "emptyDir": {}}],
    }
    assert names(patched({"spec": patch})["spec"]["volumes"]) == ["new", "v", "w"]


def test_retain_keys_clears_the_others() -> None:
    live = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategic_merge(live, patch, DEPLOYMENT) == {"spec": {"strategy": {"type": "Recreate"}}}


def test_retain_keys_inside_a_merged_item() -> None:
    patch = {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}
    assert patched({"spec": patch})["spec"]["volumes"][0] == {"name": "v", "hostPath": {"path": "/x"}}


def test_nulls_and_directives_vanish_from_what_is_new() -> None:
    patch = {"spec": {"hostAliases": [{"ip": "1", "hostnames": None}], "affinity": {"$patch": "delete"}}}
    found = patched(patch)["spec"]
    assert found["hostAliases"] == [{"ip": "1"}]
    assert "affinity" not in found


def test_null_patch_does_nothing() -> None:
    assert strategic_merge(LIVE, None, POD) == LIVE


BAD_RETAIN = "invalid patch format of retainKeys"


@pytest.mark.parametrize(
    ("patch", "code", "message"),
    [
        pytest.param([1], 400, "json: cannot unmarshal array into Go value of type map[string]interface {}", id="list"),
        pytest.param(
            {"spec": {"volumes": [{"emptyDir": {}}]}},
            500,
            "map: map[emptyDir:map[]] does not contain declared merge key: name",
            id="no-merge-key",
        ),
        pytest.param(
            {"spec": {"volumes": [{"$patch": "delete"}]}},
            500,
            "map: map[$patch:delete] does not contain declared merge key: name",
            id="delete-without-key",
        ),
        pytest.param(
            {"spec": {"volumes": [{"$patch": "merge", "name": "v"}]}},
            500,
            "merging lists cannot yet be specified in the patch",
            id="merge-directive-in-list",
        ),
        pytest.param(
            {"spec": {"volumes": [{"$patch": "foo", "name": "v"}]}},
            500,
            "unknown patch type: foo in map: map[$patch:foo name:v]",
            id="unknown-directive-in-list",
        ),
        pytest.param(
            {"spec": {"$patch": "merge"}},
            500,
            "unknown patch type: merge in map: map[$patch:merge]",
            id="merge-directive-in-map",
        ),
        pytest.param(
            {"spec": {"volumes": ["x"]}},
            500,
            "list element types are not identical: [[map[emptyDir:map[] name:v] map[emptyDir:map[] name:w]] [x]]",
            id="mixed-items",
        ),
        pytest.param(
            {"metadata": {"$deleteFromPrimitiveList": ["x"]}},
            400,
            "invalid patch format of primitive list",
            id="delete-without-field",
        ),
        pytest.param(
            {"metadata": {"$setElementOrder": ["x"]}},
            400,
            "invalid patch format of setElementOrder list",
            id="order-without-field",
        ),
        pytest.param(
            {"metadata": {"$setElementOrder/finalizers": "x"}},
            500,
            "expected a []interface {}, but received a string",
            id="order-is-no-list",
        ),
        pytest.param(
            {"metadata": {"$setElementOrder/bogus": ["x"]}},
            500,
            'unable to find api field in struct ObjectMeta for the json field "bogus"',
            id="order-of-unknown-field",
        ),
        pytest.param(
            {"metadata": {"$setElementOrder/labels": ["x"]}},
            500,
            "expected a []interface {}, but received a map[string]interface {}",
            id="order-of-a-map",
        ),
        pytest.param(
            {"metadata": {"$setElementOrder/annotations": ["x"]}},
            500,
            "expected slice or array type, but got: struct",
            id="order-of-a-missing-map",
        ),
        pytest.param(
            {"metadata": {"$setElementOrder/finalizers": ["x/a"], "finalizers": ["x/z"]}},
            500,
            "The order in patch list:\n[x/z]\n doesn't match $setElementOrder list:\n[x/a]\n",
            id="order-does-not-match",
        ),
        pytest.param({"spec": {"$retainKeys": "x"}}, 400, BAD_RETAIN, id="retain-is-no-list"),
        pytest.param({"spec": {"$retainKeys": ["a"], "hostname": "x"}}, 400, BAD_RETAIN, id="retain-misses-a-key"),
    ],
)
def test_refusals(patch: Any, code: int, message: str) -> None:
    assert strategic_merge(LIVE, patch, POD) == PatchFailed(code, message, "BadRequest" if code == 400 else "")


STRINGS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=3)
NULLABLE = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2", None]), max_size=3)
ENV = st.lists(st.sampled_from("XYZ"), unique=True).map(lambda found: [{"name": n, "value": n} for n in found])
CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("cde")}, optional={"image": st.sampled_from("ij"), "env": ENV}),
    unique_by=lambda container: str(container["name"]),
    max_size=3,
)
FINALIZERS = st.lists(st.sampled_from(["x/a", "x/b", "x/c"]), unique=True)


def pods(strings: st.SearchStrategy[Obj]) -> st.SearchStrategy[Obj]:
    metadata = st.fixed_dictionaries({}, optional={"labels": strings, "finalizers": FINALIZERS})
    spec = st.fixed_dictionaries(
        {"containers": CONTAINERS}, optional={"nodeSelector": strings, "hostname": st.just("h")}
    )
    return st.fixed_dictionaries({"metadata": metadata, "spec": spec})


@given(doc=pods(STRINGS), patch=pods(NULLABLE))
def test_a_second_time_changes_nothing(doc: Obj, patch: Obj) -> None:
    before = copy.deepcopy((doc, patch))
    once = strategic_merge(doc, patch, POD)
    assert isinstance(once, dict)
    assert strategic_merge(once, patch, POD) == once
    assert (doc, patch) == before


@given(doc=pods(STRINGS), patch=pods(NULLABLE))
def test_nothing_is_lost_that_was_not_nulled(doc: Obj, patch: Obj) -> None:
    found = strategic_merge(doc, patch, POD)
    assert isinstance(found, dict)
    assert set(names(found["spec"]["containers"])) == set(
        names(doc["spec"]["containers"] + patch["spec"]["containers"])
    )
    wanted = {**doc["metadata"].get("labels", {}), **patch["metadata"].get("labels", {})}
    assert found["metadata"].get("labels", {}) == {k: v for k, v in wanted.items() if v is not None}
    finalizers = doc["metadata"].get("finalizers", []) + patch["metadata"].get("finalizers", [])
    assert set(found["metadata"].get("finalizers", [])) == set(finalizers)


@given(doc=pods(STRINGS))
def test_null_removes_any_field(doc: Obj) -> None:
    for part in ("metadata", "spec"):
        for key in doc[part]:
            found = strategic_merge(doc, {part: {key: None}}, POD)
            assert isinstance(found, dict)
            assert found[part] == {k: v for k, v in doc[part].items() if k != key}
