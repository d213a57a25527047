"""POST sets system metadata and refuses bad objects in kube-apiserver's words. Bodies were compared with
release 1.35.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.embedded.apiserver.rest.object_metadata import deep_copy
from tests.embedded.apiserver.rest_harness import NS, PARTIAL, TABLE, Api, config_map, fresh, pod

UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture
async def api() -> Api:
    return await fresh()


async def test_created_object_carries_what_the_server_owns(api: Api) -> None:
    status, body = await api.post(
        f"{NS}/configmaps", config_map("a", uid="mine", creationTimestamp="2000-01-01T00:00:00Z")
    )
    assert status == 201
    meta = body["metadata"]
    assert UID.fullmatch(meta["uid"])
    assert meta["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert (meta["namespace"], meta["resourceVersion"]) == ("default", "3")
    assert list(body)[:3] == ["kind", "apiVersion", "metadata"]


async def test_request_body_is_left_as_it_was(api: Api) -> None:
    body = pod("a", labels={"x": "y"})
    before = copy.deepcopy(body)
    await api.post(f"{NS}/pods", body)
    assert body == before


async def test_equal_seeds_give_equal_uids() -> None:
    first, second = await fresh(), await fresh()
    made = [(await api.post(f"{NS}/configmaps", config_map("a")))[1]["metadata"]["uid"] for api in (first, second)]
    assert made[0] == made[1]


async def test_kind_and_version_may_be_left_out_of_built_in_kinds(api: Api) -> None:
    status, body = await api.post(f"{NS}/configmaps", {"metadata": {"name": "a"}})
    assert (status, body["kind"], body["apiVersion"]) == (201, "ConfigMap", "v1")


async def test_generated_names_extend_the_prefix(api: Api) -> None:
    status, body = await api.post(f"{NS}/configmaps", {"metadata": {"generateName": "gen-"}})
    assert status == 201
    assert re.fullmatch("gen-[bcdfghjklmnpqrstvwxz2456789]{5}", body["metadata"]["name"])


async def test_generated_name_is_tried_again_when_taken(api: Api) -> None:
    dice = api.chance.getstate()
    _, first = await api.post(f"{NS}/configmaps", {"metadata": {"generateName": "gen-"}})
    api.chance.setstate(dice)  # the same dice would give the same name
    status, second = await api.post(f"{NS}/configmaps", {"metadata": {"generateName": "gen-"}})
    assert status == 201
    assert first["metadata"]["name"] != second["metadata"]["name"]


async def test_dry_run_answers_without_storing(api: Api) -> None:
    status, body = await api.post(f"{NS}/configmaps?dryRun=All", config_map("dry"))
    assert status == 201
    assert "resourceVersion" not in body["metadata"]
    assert (await api.get(f"{NS}/configmaps/dry"))[0] == 404


async def test_unknown_fields_are_dropped_and_warned_about(api: Api) -> None:
    body = {**config_map("a"), "foo": 1}
    status, made = await api.post(f"{NS}/configmaps", body)
    assert (status, "foo" in made) == (201, False)
    assert api.last is not None
    assert api.last.headers["Warning"] == '299 - "unknown field \\"foo\\""'


async def test_repeated_keys_are_found_in_bytes(api: Api) -> None:
    raw = b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"dup"},"data":{"a":"b","a":"c"}}'
    status, body = await api.post(f"{NS}/configmaps?fieldValidation=Strict", raw)
    assert status == 400
    assert body["message"].endswith('strict decoding error: duplicate field "data.a"')


async def test_yaml_bodies_keep_dates_as_text(api: Api) -> None:
    raw = b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: y}\ndata: {day: '2026-01-01', plain: v}\n"
    status, body = await api.post(f"{NS}/configmaps", raw, content_type="application/yaml")
    assert (status, body["data"]) == (201, {"day": "2026-01-01", "plain": "v"})


REFUSED: list[Any] = [
    pytest.param(config_map("taken"), 409, 'configmaps "taken" already exists', id="name-taken"),
    pytest.param(
        {"metadata": {}},
        422,
        'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required',
        id="no-name",
    ),
    pytest.param(
        config_map("a", namespace="other"),
        400,
        "the namespace of the provided object does not match the namespace sent on the request",
        id="other-namespace",
    ),
    pytest.param(
        config_map("a", resourceVersion="5"),
        500,
        "resourceVersion should not be set on objects to be created",
        id="with-a-version",
    ),
    pytest.param(
        {"kind": "Pod", "apiVersion": "v1"},
        400,
        'Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): '
        "unknown conversion",
        id="another-kind",
    ),
    pytest.param(
        {"kind": "Foo", "apiVersion": "v1"},
        400,
        'Foo in version "v1" cannot be handled as a ConfigMap: no kind "Foo" is registered for version "v1" in scheme '
        '"pkg/runtime/scheme.go:111"',
        id="no-such-kind",
    ),
    pytest.param(
        {"metadata": {"name": "a"}, "data": {"a": 5}},
        400,
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct '
        "field ConfigMap.data of type string",
        id="wrong-type",
    ),
    pytest.param(
        b"{bad",
        400,
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse "
        "error: invalid character 'b' looking for beginning of object key string ({bad)",
        id="not-json",
    ),
    pytest.param(
        b"",
        400,
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse "
        "error: unexpected end of JSON input (<empty>)",
        id="empty",
    ),
    pytest.param(
        config_map("big", annotations={"a": "x" * 263_000}),
        422,
        'ConfigMap "big" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes',
        id="annotations-too-long",
    ),
]


@pytest.mark.parametrize(("body", "status", "message"), REFUSED)
async def test_refusals(api: Api, body: Any, status: int, message: str) -> None:
    await api.post(f"{NS}/configmaps", config_map("taken"))
    got, answer = await api.post(f"{NS}/configmaps", body)
    assert (got, answer["message"]) == (status, message)
    assert (answer["kind"], answer["status"], answer["code"]) == ("Status", "Failure", status)


async def test_unknown_media_type(api: Api) -> None:
    status, body = await api.post(f"{NS}/configmaps", b"{}", content_type="text/plain")
    assert (status, body["reason"]) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        pytest.param("dryRun=Foo", "dryRun", id="dry-run"),
        pytest.param("fieldValidation=Bad", "fieldValidation", id="field-validation"),
        pytest.param(f"fieldManager={'x' * 129}", "fieldManager", id="manager-too-long"),
    ],
)
async def test_bad_options(api: Api, query: str, field: str) -> None:
    status, body = await api.post(f"{NS}/configmaps?{query}", config_map("a"))
    assert status == 422
    assert [cause["field"] for cause in body["details"]["causes"]] == [field]
    assert body["message"].startswith('CreateOptions.meta.k8s.io "" is invalid: ')


async def test_namespaces_are_born_with_their_finalizer_phase_and_label(api: Api) -> None:
    _, body = await api.post("/api/v1/namespaces", {"metadata": {"name": "n"}})
    assert body["spec"] == {"finalizers": ["kubernetes"]}
    assert body["status"] == {"phase": "Active"}
    assert body["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}


async def test_status_of_a_new_object_is_dropped_except_for_nodes(api: Api) -> None:
    _, made = await api.post(f"{NS}/pods", {**pod("p"), "status": {"phase": "Running"}})
    assert made["status"] == {}
    _, node = await api.post("/api/v1/nodes", {"metadata": {"name": "n"}, "status": {"phase": "Running"}})
    assert node["status"]["phase"] == "Running"


async def test_managed_fields_are_kept_for_those_who_ask(api: Api) -> None:
    _, tracked = await api.post(f"{NS}/configmaps", config_map("a"), agent="kubectl/v1")
    _, untracked = await api.post(f"{NS}/configmaps", config_map("b"), track_managed_fields=False)
    (entry,) = tracked["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["fieldsV1"]) == (
        "kubectl",
        "Update",
        {"f:data": {".": {}, "f:k": {}}},
    )
    assert "managedFields" not in untracked["metadata"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


def _containers(value: Any) -> list[int]:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ([id(value)] if isinstance(value, dict | list) else []) + [i for v in below for i in _containers(v)]


@given(st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=5))
def test_a_clone_is_equal_and_shares_no_container(value: dict[str, Any]) -> None:
    copied = deep_copy(value)
    assert copied == value
    assert not set(_containers(copied)) & set(_containers(value))


REVIEWS = [
    ("authorization.k8s.io/v1/selfsubjectaccessreviews", {"resourceAttributes": {"verb": "get", "resource": "pods"}}),
    ("authorization.k8s.io/v1/selfsubjectrulesreviews", {"namespace": "default"}),
    ("authentication.k8s.io/v1/tokenreviews", {"token": "x"}),
]


@pytest.mark.parametrize(("path", "spec"), REVIEWS, ids=["access", "rules", "token"])
async def test_a_review_is_no_table(path: str, spec: dict[str, Any]) -> None:
    api = await fresh()
    status, said = await api.post(f"/apis/{path}", {"spec": spec}, accept=TABLE)
    assert (status, said["reason"], said["message"]) == (
        406,
        "NotAcceptable",
        "only the following media types are accepted: "
        "application/json, application/yaml, application/vnd.kubernetes.protobuf",
    )
    status, said = await api.post(f"/apis/{path}", {"spec": spec}, accept=f"{TABLE},application/json")
    assert (status, said["kind"].endswith("Review")) == (201, True)
    status, said = await api.post(f"/apis/{path}", {"spec": spec}, accept=PARTIAL)
    assert (status, said["kind"]) == (201, "PartialObjectMetadata")


@pytest.mark.parametrize(
    ("timeout", "why"),
    [
        ("invalid", 'time: invalid duration "invalid"'),
        ("5", 'time: missing unit in duration "5"'),
        ("5s", ""),
        ("-1s", ""),
    ],
)
@pytest.mark.parametrize("path", [f"{NS}/configmaps", "/version"])
async def test_a_timeout_is_a_duration(path: str, timeout: str, why: str) -> None:
    api = await fresh()
    status, said = await api.get(f"{path}?timeout={timeout}")
    assert status == (400 if why else 200)
    if why:
        assert said["message"] == f"invalid timeout specified in the request URL - {why}"
