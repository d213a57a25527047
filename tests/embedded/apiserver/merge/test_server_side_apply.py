"""These tests check server-side apply against kube-apiserver 1.35, and its invariants on random objects."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from koord.api.patch.merge_patch import PatchFailed
from koord.embedded.apiserver.merge import fieldset
from koord.embedded.apiserver.merge.managed_fields import ownable, track_update
from koord.embedded.apiserver.merge.server_side_apply import ApplyConflicts, ApplyResult, apply_config
from koord.embedded.apiserver.schema.builtin_types import OBJECT_META, builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode

Obj = dict[str, Any]
T0, T1, T2 = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"


def node(group: str, version: str, kind: str) -> SchemaNode:
    found = builtin_types().node_for(group, version, kind)
    assert found is not None
    return found


CONFIG_MAP = node("", "v1", "ConfigMap")
DEPLOYMENT = node("apps", "v1", "Deployment")


def config_map(data: Any, **metadata: Any) -> Obj:
    made: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s", **metadata}}
    return made if data is None else {**made, "data": data}


def applied(live: Obj | None, config: Obj, manager: str, *, force: bool = False, now: str = T1) -> Any:
    before = copy.deepcopy((live, config))
    found = apply_config(
        live, config, manager=manager, force=force, node=CONFIG_MAP, now=now, api_version="v1", kind="ConfigMap"
    )
    assert (live, config) == before
    return found


def done(live: Obj | None, config: Obj, manager: str, *, force: bool = False, now: str = T1) -> Obj:
    found = applied(live, config, manager, force=force, now=now)
    assert isinstance(found, ApplyResult), found
    return found.obj


def patched(live: Obj, data: Obj, manager: str, now: str = T1) -> Obj:
    new = {**live, "metadata": {**live["metadata"], "uid": "u"}, "data": {**live.get("data", {}), **data}}
    entries = track_update(live, new, manager=manager, node=CONFIG_MAP, api_version="v1", now=now)
    new["metadata"]["managedFields"] = entries
    return new


def owners(obj: Obj) -> dict[str, Obj]:
    return {f"{e['manager']}/{e['operation']}": e["fieldsV1"] for e in obj["metadata"].get("managedFields", [])}


def times(obj: Obj) -> dict[str, str | None]:
    return {e["manager"]: e.get("time") for e in obj["metadata"]["managedFields"]}


ONE = done(None, config_map({"a": "1", "b": "2"}), "m1", now=T0)


def test_the_first_apply_creates_and_owns_without_the_containers() -> None:
    assert ONE["data"] == {"a": "1", "b": "2"}
    assert ONE["metadata"]["managedFields"] == [
        {
            "manager": "m1",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": T0,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}, "f:b": {}}},
        }
    ]


def test_the_same_again_changes_not_even_the_time() -> None:
    assert done(ONE, config_map({"a": "1", "b": "2"}), "m1", now=T2) == ONE


def test_equal_values_are_shared_and_a_new_sharer_has_no_time() -> None:
    both = done(ONE, config_map({"a": "1"}), "m2")
    assert owners(both) == {"m2/Apply": {"f:data": {"f:a": {}}}, "m1/Apply": {"f:data": {"f:a": {}, "f:b": {}}}}
    assert times(both) == {"m2": None, "m1": T0}


def test_one_conflict() -> None:
    found = applied(ONE, config_map({"a": "2"}), "m2")
    assert isinstance(found, ApplyConflicts)
    assert found.to_patch_failed() == PatchFailed(
        409,
        'Apply failed with 1 conflict: conflict with "m1": .data.a',
        "Conflict",
        {"causes": [{"reason": "FieldManagerConflict", "message": 'conflict with "m1"', "field": ".data.a"}]},
    )


def test_conflicts_with_several_owners() -> None:
    live = patched(done(ONE, config_map({"a": "9"}), "m2", force=True), {"b": "9", "c": "1"}, "upd")
    found = applied(live, config_map({"a": "7", "b": "2", "c": "3"}), "m1")
    assert isinstance(found, ApplyConflicts)
    assert found.message == (
        'Apply failed with 3 conflicts: conflicts with "m2":\n- .data.a\n'
        'conflicts with "upd" using v1:\n- .data.b\n- .data.c'
    )


def test_force_takes_over() -> None:
    found = done(ONE, config_map({"a": "2"}), "m2", force=True)
    assert found["data"] == {"a": "2", "b": "2"}
    assert owners(found) == {"m1/Apply": {"f:data": {"f:b": {}}}, "m2/Apply": {"f:data": {"f:a": {}}}}


@pytest.mark.parametrize(
    ("config", "data", "owned"),
    [
        pytest.param({"a": "1"}, {"a": "1"}, {"f:data": {"f:a": {}}}, id="what-is-left-out-goes"),
        pytest.param({}, None, {"f:data": {}}, id="all-entries-go-and-the-map-with-them"),
        pytest.param(None, None, None, id="nothing-is-left"),
    ],
)
def test_fields_dropped_by_their_only_owner_are_removed(
    config: Obj | None, data: Obj | None, owned: Obj | None
) -> None:
    found = done(ONE, config_map(config), "m1")
    assert (found.get("data") or None) == data
    assert owners(found).get("m1/Apply") == owned


def test_fields_dropped_by_one_of_two_owners_stay() -> None:
    both = done(ONE, config_map({"a": "1"}), "m2")
    found = done(both, config_map({"b": "2"}), "m1")
    assert found["data"] == {"a": "1", "b": "2"}
    found = done(found, config_map(None), "m2")
    assert found["data"] == {"b": "2"}


def test_fields_that_an_updater_changed_are_not_the_appliers_to_remove() -> None:
    live = patched(ONE, {"a": "9"}, "upd")
    assert done(live, config_map({"b": "2"}), "m1")["data"] == {"a": "9", "b": "2"}


def test_an_object_without_owners_gets_one_for_its_past() -> None:
    live = config_map({"a": "1", "b": "2"}, uid="u")
    found = applied(live, config_map({"a": "3"}), "m1")
    assert isinstance(found, ApplyConflicts)
    assert found.message == 'Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .data.a'
    forced = done(live, config_map({"a": "3"}), "m1", force=True)
    assert owners(forced) == {
        "m1/Apply": {"f:data": {"f:a": {}}},
        "before-first-apply/Update": {"f:data": {".": {}, "f:b": {}}},
    }


def test_kubectl_takes_over_what_client_side_apply_left() -> None:
    annotation = "kubectl.kubernetes.io/last-applied-configuration"
    last = json.dumps(config_map({"a": "1", "b": "1"}))
    live = config_map({"a": "1", "b": "2"}, annotations={annotation: last}, uid="u")
    live["metadata"]["managedFields"] = track_update(
        None, live, manager="kubectl-client-side-apply", node=CONFIG_MAP, api_version="v1", now=T0
    )
    assert isinstance(applied(live, config_map({"a": "3"}), "other"), ApplyConflicts)
    found = done(live, config_map({"a": "3"}), "kubectl")
    assert found["data"] == {"a": "3", "b": "2"}
    assert json.loads(found["metadata"]["annotations"][annotation]) == config_map({"a": "3"})
    clash = applied(live, config_map({"a": "3", "b": "3"}), "kubectl")
    assert isinstance(clash, ApplyConflicts)
    assert [c.field for c in clash.found] == [".data.b"], "b is no longer as client-side apply left it"


def deployment(containers: Any, **spec: Any) -> Obj:
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}
    body = {"selector": {"matchLabels": {"a": "b"}}, "template": pod, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "s"}, "spec": body}


def apply_deployment(live: Obj | None, config: Obj, manager: str = "m1", **more: Any) -> Any:
    more = {"force": False, **more}
    return apply_config(
        live, config, manager=manager, node=DEPLOYMENT, now=T0, api_version="apps/v1", kind="Deployment", **more
    )


def test_keyed_items_are_owned_by_key_with_defaults_filled_in() -> None:
    found = apply_deployment(None, deployment([{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]))
    port: Obj = {".": {}, "f:containerPort": {}}
    container = {".": {}, "f:image": {}, "f:name": {}, "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': port}}
    pod = {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:containers": {'k:{"name":"c"}': container}}}
    assert owners(found.obj) == {"m1/Apply": {"f:spec": {"f:selector": {}, "f:template": pod}}}


def test_live_items_keep_their_place_beside_shared_ones() -> None:
    live = apply_deployment(None, deployment([{"name": n, "image": "i"} for n in "abc"])).obj
    found = apply_deployment(live, deployment([{"name": n, "image": "i"} for n in "cxa"]), "m2")
    assert [c["name"] for c in found.obj["spec"]["template"]["spec"]["containers"]] == ["b", "c", "x", "a"]


def test_a_status_owner_is_named_with_its_subresource() -> None:
    live = apply_deployment(None, deployment([{"name": "c", "image": "i"}])).obj
    new = {**live, "status": {"replicas": 2}}
    managed = track_update(
        live,
        new,
        manager="st",
        node=DEPLOYMENT,
        api_version="apps/v1",
        now=T0,
        subresource="status",
        ownable=ownable("apps", "Deployment", "status"),
    )
    new["metadata"] = {**new["metadata"], "managedFields": managed}
    config = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "s"}, "status": {"replicas": 5}}
    found = apply_deployment(new, config, "st2", subresource="status", ownable=ownable("apps", "Deployment", "status"))
    assert found.message == (
        'Apply failed with 1 conflict: conflict with "st" with subresource "status" using apps/v1: .status.replicas'
    )
    ignored = apply_deployment(new, config, "st2", ownable=ownable("apps", "Deployment"))
    assert "st2/Apply" not in owners(ignored.obj), "the main door cannot own the status"


TYPED = "failed to create typed patch object (/s; apps/v1, Kind=Deployment): "
CONTAINER = '.spec.template.spec.containers[name="c"]'


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param(
            deployment([{"name": "c", "bogus": 1}]),
            f"{CONTAINER}.bogus: field not declared in schema",
            id="unknown-field",
        ),
        pytest.param(
            deployment([{"name": "c", "image": 5}]),
            f"{CONTAINER}.image: expected string, got &value.valueUnstructured{{Value:5}}",
            id="number-for-string",
        ),
        pytest.param(
            deployment([], replicas="x"),
            ".spec.replicas: expected numeric (int or float), got string",
            id="string-for-number",
        ),
        pytest.param(deployment([], paused="x"), ".spec.paused: expected boolean, got &{x}", id="string-for-boolean"),
        pytest.param(
            deployment([{"name": "c", "command": [1]}]),
            f"{CONTAINER}.command[0]: expected string, got &value.valueUnstructured{{Value:1}}",
            id="inside-an-atomic-list",
        ),
        pytest.param(
            deployment([{"name": "c", "command": "x"}]),
            f"{CONTAINER}.command: expected list, got &{{x}}",
            id="string-for-list",
        ),
        pytest.param(deployment({}), ".spec.template.spec.containers: expected list, got &{map[]}", id="map-for-list"),
        pytest.param(
            deployment(["x"]),
            ".spec.template.spec.containers: element 0: associative list with keys may not have non-map elements",
            id="string-for-keyed-item",
        ),
        pytest.param(
            deployment([None]),
            ".spec.template.spec.containers: element 0: associative list with keys may not have a null element",
            id="null-for-keyed-item",
        ),
        pytest.param(
            deployment([{"name": "c", "ports": [{"containerPort": 80}] * 2}]),
            f'{CONTAINER}.ports: duplicate entries for key [containerPort=80,protocol="TCP"]',
            id="double-key",
        ),
    ],
)
def test_a_configuration_of_the_wrong_shape(config: Obj, message: str) -> None:
    assert apply_deployment(None, config) == PatchFailed(500, TYPED + message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({**config_map({}), "apiVersion": "v2"}, "invalid object type: /v2, Kind=ConfigMap", id="version"),
        pytest.param({**config_map({}), "kind": "Foo"}, "invalid object type: /v1, Kind=Foo", id="kind"),
        pytest.param({"data": {}}, "invalid object type: /, Kind=", id="neither"),
        pytest.param(config_map({}, managedFields=[]), "metadata.managedFields must be nil", id="managed-fields"),
    ],
)
def test_a_configuration_for_something_else(config: Obj, message: str) -> None:
    assert applied(ONE, config, "m1") == PatchFailed(400, message, "BadRequest")


TEXT = SchemaNode(kind="string")
PART = SchemaNode(kind="object", fields={"name": TEXT, "note": TEXT, "tags": SchemaNode(kind="map", values=TEXT)})
WIDGET = SchemaNode(
    kind="object",
    fields={
        "apiVersion": TEXT,
        "kind": TEXT,
        "metadata": builtin_types().definition_node(OBJECT_META),
        "spec": SchemaNode(
            kind="object",
            fields={
                "size": SchemaNode(kind="integer"),
                "set": SchemaNode(kind="list", items=TEXT, list_type="set"),
                "plain": SchemaNode(kind="list", items=TEXT),
                "parts": SchemaNode(kind="list", items=PART, list_type="map", list_keys=("name",)),
                "whole": SchemaNode(kind="map", values=TEXT, atomic=True),
                "open": SchemaNode(kind="any"),
            },
        ),
    },
)
WORDS = st.sampled_from("12")
MAPS = st.dictionaries(st.sampled_from("abc"), WORDS, max_size=3)
LISTS = st.lists(st.sampled_from("abc"), unique=True, max_size=3)
SPECS = st.fixed_dictionaries(
    {"size": st.integers(0, 2)},
    optional={
        "set": LISTS,
        "plain": LISTS,
        "parts": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from("pqr")}, optional={"note": WORDS, "tags": MAPS}),
            unique_by=lambda part: str(part["name"]),
            max_size=3,
        ),
        "whole": MAPS,
        "open": st.recursive(
            WORDS | st.booleans() | st.integers(0, 1),
            lambda inner: st.dictionaries(st.sampled_from("xy"), inner, max_size=2) | st.lists(inner, max_size=2),
        ),
    },
)
MANAGERS = st.sampled_from(["m", "n", "o"])


def widget(spec: Obj) -> Obj:
    return {"apiVersion": "t/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec}


def apply_widget(live: Obj | None, spec: Obj, manager: str, *, force: bool, now: str = T0) -> Any:
    return apply_config(
        live, widget(spec), manager=manager, force=force, node=WIDGET, now=now, api_version="t/v1", kind="Widget"
    )


def settled(value: Any) -> Any:
    """Return the value without empty containers: an emptied container may stay as null or disappear."""
    if isinstance(value, dict):
        kept = {k: settled(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not None and v != {} and v != []}
    return [settled(v) for v in value] if isinstance(value, list) else value


def nulls(value: Any) -> bool:
    """Return whether a container that lost all its content is left as null, which validation then rejects."""
    if isinstance(value, dict):
        return any(map(nulls, value.values()))
    return any(map(nulls, value)) if isinstance(value, list) else value is None


def history(steps: list[tuple[str, Obj]]) -> Obj | None:
    live: Obj | None = None
    for manager, spec in steps:
        found = apply_widget(live, spec, manager, force=True)
        assert isinstance(found, ApplyResult)
        assume(not nulls(found.obj))
        live = found.obj
    return live


HISTORIES = st.lists(st.tuples(MANAGERS, SPECS), max_size=4)


@given(steps=HISTORIES, manager=MANAGERS, spec=SPECS)
def test_applying_twice_is_applying_once(steps: list[tuple[str, Obj]], manager: str, spec: Obj) -> None:
    once = apply_widget(history(steps), spec, manager, force=True)
    assert isinstance(once, ApplyResult)
    assume(not nulls(once.obj))
    twice = apply_widget(once.obj, spec, manager, force=False, now=T2)
    assert isinstance(twice, ApplyResult), "what one owns cannot conflict"
    assert settled(twice.obj.get("spec") or {}) == settled(once.obj.get("spec") or {})
    assert owners(twice.obj) == owners(once.obj)


@given(steps=HISTORIES, manager=MANAGERS, spec=SPECS)
def test_the_configuration_is_in_the_result(steps: list[tuple[str, Obj]], manager: str, spec: Obj) -> None:
    found = apply_widget(history(steps), spec, manager, force=True)
    again = apply_widget(None, spec, manager, force=True)
    assert (
        fieldset.difference(
            owners(again.obj).get(f"{manager}/Apply", {}), owners(found.obj).get(f"{manager}/Apply", {})
        )
        == {}
    )
    live = settled(found.obj.get("spec") or {})
    for key, value in settled(spec).items():
        if key in ("size", "plain", "whole"):
            assert live[key] == value
        elif key == "set":
            assert set(value) <= set(live[key])
        elif key == "parts":
            assert {part["name"] for part in value} <= {part["name"] for part in live[key]}


@given(steps=HISTORIES, manager=MANAGERS, spec=SPECS)
def test_without_force_it_either_conflicts_or_does_the_same(
    steps: list[tuple[str, Obj]], manager: str, spec: Obj
) -> None:
    live = history(steps)
    before = copy.deepcopy(live)
    asked = apply_widget(live, spec, manager, force=False)
    forced = apply_widget(live, spec, manager, force=True)
    assert live == before
    if isinstance(asked, ApplyConflicts):
        held = owners(live or {"metadata": {}})
        for conflict in asked.found:
            assert conflict.owner[0] != manager
            assert fieldset.has_path(held[f"{conflict.owner[0]}/Apply"], conflict.path)
    else:
        assert asked == forced


@given(steps=HISTORIES)
def test_when_every_applier_lets_go_nothing_is_left(steps: list[tuple[str, Obj]]) -> None:
    live = history(steps)
    for manager in ("m", "n", "o"):
        config = {"apiVersion": "t/v1", "kind": "Widget", "metadata": {"name": "w"}}
        found = apply_config(
            live, config, manager=manager, force=False, node=WIDGET, now=T0, api_version="t/v1", kind="Widget"
        )
        assert isinstance(found, ApplyResult)
        live = found.obj
    assert live is not None
    assert settled(live.get("spec") or {}) == {}
    assert "managedFields" not in live["metadata"]


def test_an_empty_set_has_no_owner_so_the_next_apply_finds_a_past() -> None:
    live = apply_config(
        None, widget({"set": []}), manager="m", force=False, node=WIDGET, now=T0, api_version="t/v1", kind="Widget"
    )
    assert isinstance(live, ApplyResult)
    assert owners(live.obj) == {}
    live.obj["metadata"]["uid"] = "u"
    again = apply_widget(live.obj, {"size": 1}, "n", force=False)
    assert owners(again.obj) == {
        "n/Apply": {"f:spec": {"f:size": {}}},
        "before-first-apply/Update": {"f:spec": {".": {}, "f:set": {}}},
    }


def test_a_container_emptied_while_another_owns_it_becomes_null() -> None:
    live = apply_widget(apply_widget(None, {"size": 1}, "m", force=False).obj, {}, "n", force=False).obj
    assert apply_widget(live, {}, "m", force=False).obj["spec"] is None
