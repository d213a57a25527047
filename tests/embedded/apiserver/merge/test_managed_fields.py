"""These tests check field ownership after creates, updates and patches against kube-apiserver 1.35."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.embedded.apiserver.merge import fieldset
from koord.embedded.apiserver.merge.compare import equal_values
from koord.embedded.apiserver.merge.managed_fields import manager_name, ownable, track_update
from koord.embedded.apiserver.merge.server_side_apply import ApplyResult, apply_config
from koord.embedded.apiserver.merge.typed_value import UNTYPED, zero_object
from koord.embedded.apiserver.schema.builtin_types import OBJECT_META, builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode

Obj = dict[str, Any]
T0, T1, T2 = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"


def node(group: str, version: str, kind: str) -> SchemaNode:
    found = builtin_types().node_for(group, version, kind)
    assert found is not None
    return found


CONFIG_MAP = node("", "v1", "ConfigMap")
POD = node("", "v1", "Pod")
DEPLOYMENT = node("apps", "v1", "Deployment")


def entry(manager: str, fields: Obj, time: str | None = T0, operation: str = "Update", **more: str) -> Obj:
    made: Obj = {"manager": manager, "operation": operation, "apiVersion": "v1"}
    if time:
        made["time"] = time
    return {**made, "fieldsType": "FieldsV1", "fieldsV1": fields, **more}


def config_map(data: Obj | None, managed: list[Obj] | None = None, **metadata: Any) -> Obj:
    made: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "uid": "u", **metadata}}
    if managed is not None:
        made["metadata"]["managedFields"] = managed
    if data is not None:
        made["data"] = data
    return made


def tracked(old: Obj | None, new: Obj, manager: str, now: str | None = T1, **more: Any) -> list[Obj]:
    before = copy.deepcopy((old, new))
    found = track_update(old, new, manager=manager, node=CONFIG_MAP, api_version="v1", now=now, **more)
    assert (old, new) == before
    return found


OWNED = [entry("a", {"f:data": {".": {}, "f:x": {}, "f:y": {}}})]


def test_a_create_owns_what_is_not_the_kinds_frame() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "b"}, "finalizers": ["x.io/a"]},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": "i",
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "env": [{"name": "A", "value": "1"}],
                    "resources": {},
                }
            ],
            "dnsPolicy": "ClusterFirst",
            "securityContext": {},
        },
        "status": {"phase": "Pending"},
    }
    [made] = track_update(None, pod, manager="m", node=POD, api_version="v1", now=T0, ownable=ownable("", "Pod"))
    port: Obj = {".": {}, "f:containerPort": {}, "f:protocol": {}}
    container: Obj = {
        ".": {},
        "f:env": {".": {}, 'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
        "f:image": {},
        "f:name": {},
        "f:ports": {".": {}, 'k:{"containerPort":80,"protocol":"TCP"}': port},
        "f:resources": {},
    }
    assert made == entry(
        "m",
        {
            "f:metadata": {"f:finalizers": {".": {}, 'v:"x.io/a"': {}}, "f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:containers": {'k:{"name":"c"}': container}, "f:dnsPolicy": {}, "f:securityContext": {}},
        },
    )
    assert list(made["fieldsV1"]["f:spec"]["f:containers"]['k:{"name":"c"}']) == sorted(container)


def test_a_created_custom_resource_is_owned_from_spec_down() -> None:
    spec = SchemaNode(kind="object", fields={"size": SchemaNode(kind="integer")})
    widget = SchemaNode(kind="object", fields={"metadata": builtin_types().definition_node(OBJECT_META), "spec": spec})
    obj = {"apiVersion": "t/v1", "kind": "W", "metadata": {"name": "w"}, "spec": {"size": 1}}
    [made] = track_update(None, obj, manager="m", node=widget, api_version="t/v1", now=T0)
    assert made["fieldsV1"] == {"f:spec": {".": {}, "f:size": {}}}


def test_the_frame_of_a_kind_is_what_go_makes_of_it() -> None:
    frame = zero_object(DEPLOYMENT)
    assert frame["spec"]["selector"] is None
    assert frame["spec"]["template"]["spec"] == {"containers": None}
    assert frame["spec"]["strategy"] == {}
    assert "replicas" not in frame["spec"]
    assert "creationTimestamp" not in frame["metadata"]


@pytest.mark.parametrize(
    ("data", "manager", "now_owned"),
    [
        pytest.param(
            {"x": "2", "y": "1"},
            "b",
            [entry("a", {"f:data": {".": {}, "f:y": {}}}), entry("b", {"f:data": {"f:x": {}}}, T1)],
            id="a-changed-field-changes-hands",
        ),
        pytest.param(
            {"x": "1", "y": "1", "z": "1"},
            "b",
            [*OWNED, entry("b", {"f:data": {"f:z": {}}}, T1)],
            id="a-new-field-is-owned-by-its-writer",
        ),
        pytest.param(
            {"x": "1"}, "b", [entry("a", {"f:data": {".": {}, "f:x": {}}})], id="a-removed-field-has-no-owner"
        ),
        pytest.param({"x": "1", "y": "1"}, "b", OWNED, id="nothing-changed"),
        pytest.param(
            {"x": "2", "y": "1"},
            "a",
            [entry("a", {"f:data": {".": {}, "f:x": {}, "f:y": {}}}, T1)],
            id="the-owner-gets-a-new-time",
        ),
        pytest.param({}, "b", [entry("a", {"f:data": {}})], id="an-emptied-map-stays-owned"),
        pytest.param(None, "b", [], id="nothing-left-means-no-entry"),
    ],
)
def test_updates(data: Obj | None, manager: str, now_owned: list[Obj]) -> None:
    assert tracked(config_map({"x": "1", "y": "1"}, OWNED), config_map(data, OWNED), manager) == now_owned


def test_bookkeeping_in_metadata_is_never_owned() -> None:
    old = config_map({"x": "1"}, OWNED, generation=1, resourceVersion="1")
    new = config_map({"x": "1"}, OWNED, generation=2, resourceVersion="2", selfLink="s", labels={"a": "b"})
    found = tracked(old, new, "b")
    assert found[1]["fieldsV1"] == {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        pytest.param(None, [*OWNED, entry("b", {"f:data": {"f:z": {}}}, T1)], id="null-keeps-them"),
        pytest.param([], [], id="empty-resets"),
        pytest.param([{}], [], id="one-empty-entry-resets"),
        pytest.param(
            [{"manager": "bad"}], [*OWNED, entry("b", {"f:data": {"f:z": {}}}, T1)], id="unreadable-keeps-them"
        ),
        pytest.param(
            [entry("q", {"f:data": {"f:x": {".": {}}}}, "2026-01-01T01:00:00.7+01:00")],
            [entry("q", {"f:data": {"f:x": {}}}, T0), entry("b", {"f:data": {"f:z": {}}}, T1)],
            id="edited-are-made-canonical",
        ),
    ],
)
def test_requests_that_send_managed_fields(sent: list[Obj] | None, found: list[Obj]) -> None:
    old = config_map({"x": "1"}, OWNED)
    new = config_map({"x": "1", "z": "1"})
    new["metadata"]["managedFields"] = sent
    assert tracked(old, new, "b") == found


def test_a_subresource_cannot_edit_managed_fields() -> None:
    old = config_map({"x": "1"}, OWNED)
    found = tracked(old, config_map({"x": "1", "z": "1"}, []), "b", subresource="status")
    assert found == [*OWNED, entry("b", {"f:data": {"f:z": {}}}, T1, subresource="status")]


def test_an_object_without_managers_stays_without() -> None:
    assert tracked(config_map({"x": "1"}), config_map({"x": "2"}), "b") == []


def test_an_empty_name_is_unknown() -> None:
    old = config_map({"x": "1"}, OWNED)
    assert tracked(old, config_map({"x": "2"}, OWNED), "")[-1]["manager"] == "unknown"


def test_scale_writes_no_time() -> None:
    found = tracked(config_map({"x": "1"}, OWNED), config_map({"x": "2"}, OWNED), "s", now=None, subresource="scale")
    assert found[0] == {
        "manager": "s",
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:x": {}}},
        "subresource": "scale",
    }


def test_entries_sort_by_operation_time_and_name() -> None:
    managed = [
        entry("z", {"f:data": {"f:x": {}}}, T2, "Apply"),
        entry("b", {"f:data": {"f:y": {}}}, T0),
        entry("a", {"f:data": {"f:z": {}}}, T2),
    ]
    data = {"x": "1", "y": "1", "z": "1"}
    found = tracked(config_map(data, managed), config_map({**data, "q": "1"}, managed), "n", now=T1)
    assert [one["manager"] for one in found] == ["z", "b", "n", "a"]


def test_more_than_ten_updaters_share_an_entry() -> None:
    live = config_map({"k0": "1"})
    live["metadata"].pop("uid")
    live["metadata"]["managedFields"] = tracked(None, live, "m0", now="2026-01-01T00:00:00Z")
    live["metadata"]["uid"] = "u"
    for i in range(1, 13):
        new = config_map({**live["data"], f"k{i}": "1"}, live["metadata"]["managedFields"])
        new["metadata"]["managedFields"] = tracked(live, new, f"m{i}", now=f"2026-01-01T00:00:{i:02}Z")
        live = new
    managed = live["metadata"]["managedFields"]
    assert [one["manager"] for one in managed] == ["ancient-changes", *(f"m{i}" for i in range(4, 13))]
    assert managed[0]["fieldsV1"] == {"f:data": {".": {}, "f:k0": {}, "f:k1": {}, "f:k2": {}, "f:k3": {}}}
    assert managed[0]["time"] == "2026-01-01T00:00:03Z"


@pytest.mark.parametrize(
    ("door", "owned"),
    [
        pytest.param(("", "Pod", ""), ["f:metadata", "f:spec"], id="pod"),
        pytest.param(("", "Pod", "status"), ["f:metadata", "f:status"], id="pod-status"),
        pytest.param(("resource.k8s.io", "ResourceClaim", "status"), ["f:status"], id="claim-status"),
        pytest.param(
            ("networking.k8s.io", "ServiceCIDR", ""), ["f:metadata", "f:spec", "f:status"], id="resets-nothing"
        ),
        pytest.param(("", "Pod", "resize"), ["f:metadata", "f:spec", "f:status"], id="pod-resize-is-not-limited"),
        pytest.param(("example.com", "Widget", "status"), ["f:metadata", "f:status"], id="custom-status"),
    ],
)
def test_a_door_lets_own_only_what_it_can_change(door: tuple[str, str, str], owned: list[str]) -> None:
    fields: Obj = {"f:metadata": {"f:labels": {}}, "f:spec": {"f:a": {}}, "f:status": {"f:b": {}}}
    assert list(ownable(*door)(fields)) == owned


def test_a_custom_kind_without_status_subresource_owns_its_status() -> None:
    fields: Obj = {"f:status": {"f:b": {}}}
    assert ownable("example.com", "Widget", has_status=False)(fields) == fields


@pytest.mark.parametrize(
    ("field_manager", "agent", "name"),
    [
        pytest.param("given", "kubectl/1.2", "given", id="query-wins"),
        pytest.param("", "kubectl/v1.35.0 (linux/amd64)", "kubectl", id="agent-up-to-the-slash"),
        pytest.param("", "my\x00 agent\n", "my agent", id="unprintable-is-dropped"),
        pytest.param("", "ü" * 100, "ü" * 64, id="at-most-128-bytes"),
        pytest.param("", "", "", id="nobody"),
    ],
)
def test_manager_name(field_manager: str, agent: str, name: str) -> None:
    assert manager_name(field_manager, agent) == name


def test_a_field_that_became_atomic_is_owned_as_a_whole() -> None:
    def kind(*, atomic: bool) -> SchemaNode:
        parts = SchemaNode(kind="map", values=SchemaNode(kind="string"), atomic=atomic)
        spec = SchemaNode(kind="object", fields={"parts": parts, "size": SchemaNode(kind="integer")})
        return SchemaNode(
            kind="object", fields={"metadata": builtin_types().definition_node(OBJECT_META), "spec": spec}
        )

    old = {"metadata": {"name": "w"}, "spec": {"parts": {"a": "1"}}}
    managed = track_update(None, old, manager="m", node=kind(atomic=False), api_version="t/v1", now=T0)
    assert managed[0]["fieldsV1"] == {"f:spec": {".": {}, "f:parts": {".": {}, "f:a": {}}}}
    old["metadata"] = {"name": "w", "uid": "u", "managedFields": managed}
    new = {**old, "spec": {"parts": {"a": "1"}, "size": 1}}
    found = track_update(old, new, manager="n", node=kind(atomic=True), api_version="t/v1", now=T1)
    assert found[0]["fieldsV1"] == {"f:spec": {".": {}, "f:parts": {}}}


TEXT = SchemaNode(kind="string")
SIZED = SchemaNode(kind="object", fields={"size": SchemaNode(kind="integer"), "note": SchemaNode(kind="string")})
COUNTED = SchemaNode(kind="object", fields={"count": SchemaNode(kind="integer"), "note": SchemaNode(kind="string")})
META = builtin_types().definition_node(OBJECT_META)
KINDS = {
    "t/v1": SchemaNode(kind="object", fields={"apiVersion": TEXT, "kind": TEXT, "metadata": META, "spec": SIZED}),
    "t/v2": SchemaNode(kind="object", fields={"apiVersion": TEXT, "kind": TEXT, "metadata": META, "spec": COUNTED}),
}


def converted(obj: Obj, version: str) -> tuple[Obj, SchemaNode] | None:
    """Convert between v1, where the field is `size`, and v2, where it is `count`; no other version is served."""
    if version not in KINDS:
        return None
    names = {"size": "count"} if version == "t/v2" else {"count": "size"}
    spec = {names.get(k, k): v for k, v in (obj.get("spec") or {}).items()}
    return {**obj, "apiVersion": version, "spec": spec}, KINDS[version]


def test_owners_at_another_version_lose_the_field_under_its_name_there() -> None:
    managed = [
        {**entry("one", {"f:spec": {"f:note": {}, "f:size": {}}}), "apiVersion": "t/v1"},
        {**entry("gone", {"f:spec": {"f:note": {}}}), "apiVersion": "t/v0"},
    ]
    old = {"apiVersion": "t/v2", "metadata": {"uid": "u", "managedFields": managed}, "spec": {"count": 1, "note": "x"}}
    new = {**old, "spec": {"count": 2, "note": "x"}}
    found = track_update(old, new, manager="two", node=KINDS["t/v2"], api_version="t/v2", now=T1, convert=converted)
    assert [(e["manager"], e["apiVersion"], e["fieldsV1"]) for e in found] == [
        ("one", "t/v1", {"f:spec": {"f:note": {}}}),
        ("two", "t/v2", {"f:spec": {"f:count": {}}}),
    ]


def test_an_applier_that_changes_version_removes_what_it_had_under_the_old_name() -> None:
    first = apply_config(
        None,
        {"apiVersion": "t/v1", "kind": "W", "metadata": {"name": "w"}, "spec": {"size": 1, "note": "x"}},
        manager="m",
        force=False,
        node=KINDS["t/v1"],
        now=T0,
        api_version="t/v1",
        kind="W",
        convert=converted,
    )
    assert isinstance(first, ApplyResult)
    live = converted(first.obj, "t/v2")
    assert live is not None
    second = apply_config(
        live[0],
        {"apiVersion": "t/v2", "kind": "W", "metadata": {"name": "w"}, "spec": {"note": "x"}},
        manager="m",
        force=False,
        node=KINDS["t/v2"],
        now=T1,
        api_version="t/v2",
        kind="W",
        convert=converted,
    )
    assert isinstance(second, ApplyResult)
    assert second.obj["spec"] == {"note": "x"}
    [owned] = second.obj["metadata"]["managedFields"]
    assert (owned["apiVersion"], owned["fieldsV1"]) == ("t/v2", {"f:spec": {"f:note": {}}})


def test_equality_tells_one_from_true_where_the_type_is_unknown() -> None:
    assert equal_values(config_map({"x": "1"}), config_map({"x": "1"}), CONFIG_MAP)
    assert not equal_values(config_map({"x": "1"}), config_map({"x": "2"}), CONFIG_MAP)
    assert not equal_values({"a": [1]}, {"a": [True]}, UNTYPED)
    assert equal_values({"a": [1]}, {"a": [1.0]}, UNTYPED)


DATA = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=3)


@given(steps=st.lists(st.tuples(st.sampled_from("mno"), DATA, DATA), min_size=1, max_size=6))
def test_every_field_written_has_its_last_writer_as_only_owner(steps: list[tuple[str, Obj, Obj]]) -> None:
    live: Obj | None = None
    writer: dict[tuple[str, str], str] = {}
    for manager, labels, data in steps:
        new = config_map({"keep": "1", **data}, labels={"keep": "1", **labels})
        new["metadata"].pop("uid")
        now = {("labels", k): v for k, v in labels.items()} | {("data", k): v for k, v in data.items()}
        was: dict[tuple[str, str], str] = {}
        if live is not None:
            was = {("labels", k): v for k, v in live["metadata"]["labels"].items()}
            was |= {("data", k): v for k, v in live["data"].items()}
        writer = {k: manager if was.get(k) != v else writer[k] for k, v in now.items()}
        new["metadata"]["managedFields"] = tracked(live, new, manager)
        live = new
    assert live is not None
    managed = live["metadata"]["managedFields"]
    for (part, key), manager in writer.items():
        path = ("f:data", f"f:{key}") if part == "data" else ("f:metadata", "f:labels", f"f:{key}")
        assert [one["manager"] for one in managed if fieldset.has_path(one["fieldsV1"], path)] == [manager]
