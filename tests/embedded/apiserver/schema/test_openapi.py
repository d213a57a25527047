"""These tests check that OpenAPI documents equal the real server's, except for descriptions."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.embedded.apiserver.schema.builtin_types import BuiltinResource, Subresource, builtin_types
from koord.embedded.apiserver.schema.openapi import (
    OpenApiResource,
    document_hash,
    referenced_definitions,
    v2_document,
    v3_document,
    v3_index,
)

HERE = Path(__file__).parent
PROBES = json.loads((HERE / "openapi_probes.json").read_text())
SCHEMA = json.loads((HERE / "custom_probes.json").read_text())["schema"]
CUSTOM = OpenApiResource(
    group="schema.example.com",
    version="v1",
    kind="Custom",
    plural="customs",
    namespaced=True,
    verbs=("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"),
    list_kind="CustomList",
    schema=SCHEMA,
)
V3 = v3_document(builtin_types(), [CUSTOM])


def openapi_resource(resource: BuiltinResource) -> OpenApiResource:
    return OpenApiResource(
        group=resource.group,
        version=resource.version,
        kind=resource.kind,
        plural=resource.plural,
        namespaced=resource.namespaced,
        verbs=resource.verbs,
        list_kind=f"{resource.kind}List",
        subresources=resource.subresources,
    )


V2 = v2_document(builtin_types(), [*map(openapi_resource, builtin_types().resources()), CUSTOM])


@pytest.mark.parametrize("kind", ["Custom", "CustomList"])
def test_custom_schema_as_the_server_publishes_it(kind: str) -> None:
    assert undescribed(V3["components"]["schemas"][f"com.example.schema.v1.{kind}"]) == PROBES["v3"][kind]
    assert undescribed(V2["definitions"][f"com.example.schema.v1.{kind}"]) == PROBES["v2"][kind]


def undescribed(value: Any) -> Any:
    """Leave out the descriptions, which the recorded answers do not have."""
    if isinstance(value, dict):
        return {k: undescribed(v) for k, v in value.items() if k != "description" or not isinstance(v, str)}
    return [undescribed(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", ["Custom", "CustomList"])
@pytest.mark.parametrize(("field", "words"), [("apiVersion", "APIVersion defines"), ("kind", "Kind is a string value")])
def test_the_type_of_a_custom_kind_is_described(kind: str, field: str, words: str) -> None:
    for schemas in (V3["components"]["schemas"], V2["definitions"]):
        assert schemas[f"com.example.schema.v1.{kind}"]["properties"][field]["description"].startswith(words)


def test_metadata_is_described() -> None:
    for schemas in (V3["components"]["schemas"], V2["definitions"]):
        meta = schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
        assert meta["description"] == "Standard object's metadata."
        assert meta["properties"]["creationTimestamp"]["description"].startswith("CreationTimestamp is a timestamp")


def test_a_root_that_preserves_unknown_fields_is_bare_for_old_clients() -> None:
    schema = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"spec": {"type": "string"}},
    }
    free = msgspec.structs.replace(CUSTOM, schema=schema)
    gvk = [{"group": "schema.example.com", "kind": "Custom", "version": "v1"}]
    found = v2_document(builtin_types(), [free])["definitions"]["com.example.schema.v1.Custom"]
    assert found == {"type": "object", "x-kubernetes-group-version-kind": gvk}
    published = v3_document(builtin_types(), [free])["components"]["schemas"]["com.example.schema.v1.Custom"]
    assert published["x-kubernetes-preserve-unknown-fields"] is True
    assert set(published["properties"]) == {"apiVersion", "kind", "metadata", "spec"}


def test_custom_paths_as_the_server_publishes_them() -> None:
    found: dict[str, Any] = {}
    for path, methods in V3["paths"].items():
        found[path] = {
            method: {
                "operationId": said["operationId"],
                "action": said["x-kubernetes-action"],
                "gvk": said["x-kubernetes-group-version-kind"],
                "query": sorted(p["name"] for p in said["parameters"]),
                "bodies": sorted(said.get("requestBody", {}).get("content", {})),
            }
            for method, said in methods.items()
        }
    assert found == PROBES["paths"]


def groups() -> dict[str, list[OpenApiResource]]:
    found: dict[str, list[OpenApiResource]] = {}
    for resource in builtin_types().resources():
        path = f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"
        found.setdefault(path, []).append(openapi_resource(resource))
    return found


@pytest.mark.parametrize("path", groups())
def test_every_reference_leads_somewhere(path: str) -> None:
    document = v3_document(builtin_types(), groups()[path])
    assert set(referenced_definitions(document)) <= set(document["components"]["schemas"])


def test_version_two_is_closed_as_well() -> None:
    assert set(referenced_definitions(V2)) <= set(V2["definitions"])


def test_kubectl_finds_field_validation_on_patch() -> None:
    pods = v3_document(builtin_types(), groups()["api/v1"])["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]
    assert "fieldValidation" in [p["name"] for p in pods["patch"]["parameters"]]
    assert pods["patch"]["x-kubernetes-group-version-kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert "application/strategic-merge-patch+json" in pods["patch"]["requestBody"]["content"]


def test_merge_keys_are_published() -> None:
    spec = V2["definitions"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert spec["x-kubernetes-patch-merge-key"] == "name"
    assert spec["x-kubernetes-list-map-keys"] == ["name"]


def test_streams_are_connections() -> None:
    pods = v3_document(builtin_types(), groups()["api/v1"])["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/exec"]
    assert pods["post"]["x-kubernetes-action"] == "connect"
    assert "requestBody" not in pods["post"]


def test_status_of_a_custom_kind_has_a_path() -> None:
    with_status = OpenApiResource(
        group="a.b",
        version="v1",
        kind="K",
        plural="ks",
        namespaced=False,
        verbs=("get",),
        list_kind="KList",
        subresources=(Subresource("status", "K", ("get", "patch", "update")),),
        schema={"type": "object"},
    )
    paths = v3_document(builtin_types(), [with_status])["paths"]
    assert set(paths) == {"/apis/a.b/v1/ks/{name}", "/apis/a.b/v1/ks/{name}/status"}


def test_the_index_names_documents_by_their_bytes() -> None:
    first, second = v3_index({"api/v1": b"{}"}), v3_index({"api/v1": b"{ }"})
    assert first["paths"]["api/v1"]["serverRelativeURL"] == f"/openapi/v3/api/v1?hash={document_hash(b'{}')}"
    assert len(document_hash(b"{}")) == 128
    assert first != second
