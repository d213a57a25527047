"""Models and the built-in table against what a real API server publishes about itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from msgspec import field

from koord.api.kubernetes.admission import AdmissionReview
from koord.api.kubernetes.builtin_kinds import BUILTIN_KINDS
from koord.api.kubernetes.pod import ContainerPort, PodTemplateSpec
from koord.api.kubernetes.pod_policy import Eviction
from koord.api.kubernetes.resource import Resource
from koord.api.model import IntOrString, Model, QuantityText, Submodel
from tests.api.kubernetes.wire_shape import complaints, discovery, frozen, structs

CORE = "io.k8s.api.core.v1."
META = "io.k8s.apimachinery.pkg.apis.meta.v1."


def _id(resource: Resource[Any]) -> str:
    return f"{resource.kind}-{resource.group or 'core'}"


@pytest.mark.parametrize("resource", BUILTIN_KINDS, ids=_id)
def test_every_field_is_on_the_wire_with_that_type(resource: Resource[Any]) -> None:
    definition = frozen()["kinds"][f"{resource.group}/{resource.version}/{resource.kind}"]
    assert complaints(resource.model, definition, frozen()["definitions"]) == []


def test_bodies_of_requests_match() -> None:
    definitions = frozen()["definitions"]
    assert complaints(PodTemplateSpec, CORE + "PodTemplateSpec", definitions) == []
    assert complaints(Eviction, "io.k8s.api.policy.v1.Eviction", definitions) == []


def test_admission_review_matches_its_published_type() -> None:
    """No server publishes admission.k8s.io in OpenAPI, so its shape is stated here as the API documents it."""
    gvk = {"group": "string", "version": "string", "kind": "string"}
    gvr = {"group": "string", "version": "string", "resource": "string"}
    stated: dict[str, dict[str, str]] = {
        **frozen()["definitions"],
        "Review": {"apiVersion": "string", "kind": "string", "request": "@Request", "response": "@Response"},
        "GVK": gvk,
        "GVR": gvr,
        "Request": {
            "uid": "string",
            "kind": "@GVK",
            "resource": "@GVR",
            "subResource": "string",
            "requestKind": "@GVK",
            "requestResource": "@GVR",
            "requestSubResource": "string",
            "name": "string",
            "namespace": "string",
            "operation": "string",
            "userInfo": "@io.k8s.api.authentication.v1.UserInfo",
            "object": "any",
            "oldObject": "any",
            "dryRun": "boolean",
            "options": "any",
        },
        "Response": {
            "uid": "string",
            "allowed": "boolean",
            "status": "@" + META + "Status",
            "patch": "string",
            "patchType": "string",
            "auditAnnotations": "{string",
            "warnings": "[string",
        },
    }
    assert complaints(AdmissionReview, "Review", stated) == []


@pytest.mark.parametrize("resource", BUILTIN_KINDS, ids=_id)
def test_table_agrees_with_discovery(resource: Resource[Any]) -> None:
    rows = [r for r in discovery() if (r["group"], r["plural"]) == (resource.group, resource.plural)]
    assert rows == [
        {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
            "plural": resource.plural,
            "singular": resource.singular,
            "namespaced": resource.namespaced,
            "shortNames": list(resource.short_names),
            "status": resource.status_subresource,
        }
    ]


@pytest.mark.parametrize("resource", BUILTIN_KINDS, ids=_id)
def test_models_are_frozen_and_parts_are_hidden_from_the_collector(resource: Resource[Any]) -> None:
    for struct in structs(resource.model):
        config = struct.__struct_config__  # type: ignore[attr-defined]
        assert config.frozen, struct
        assert issubclass(struct, Model), struct
        if issubclass(struct, Submodel):
            assert not config.gc, struct


class _Renamed(Submodel, frozen=True, kw_only=True):
    host_ip: str = ""  # camel case gives hostIp


class _Retyped(Submodel, frozen=True, kw_only=True):
    host_port: str = ""


class _Scalars(Submodel, frozen=True, kw_only=True):
    quantity: QuantityText = 0
    either: IntOrString = 0
    time: datetime | None = None
    many: tuple[ContainerPort, ...] = ()
    mapped: dict[str, str] = {}
    plain: dict[str, Any] = {}
    odd_name: bool = field(default=False, name="ODD")


@pytest.mark.parametrize(
    ("model", "found"),
    [
        pytest.param(_Renamed, ["_Renamed.hostIp: not on the wire"], id="wrong-name"),
        pytest.param(_Retyped, ["_Retyped.hostPort: model says string, server says integer"], id="wrong-type"),
        pytest.param(ContainerPort, [], id="agrees"),
    ],
)
def test_the_comparison_finds_what_it_looks_for(model: type, found: list[str]) -> None:
    assert complaints(model, CORE + "ContainerPort", frozen()["definitions"]) == found


SCALAR_FIELDS = {
    "quantity": "quantity",
    "either": "int-or-string",
    "time": "time",
    "many": "[@port",
    "mapped": "{string",
    "plain": "any",
    "ODD": "boolean",
}


@pytest.mark.parametrize("wrong", [None, *SCALAR_FIELDS])
def test_the_comparison_tells_every_shape_from_a_number(wrong: str | None) -> None:
    port = frozen()["definitions"][CORE + "ContainerPort"]
    shape = {name: "number" if name == wrong else kind for name, kind in SCALAR_FIELDS.items()}
    found = complaints(_Scalars, "x", {"x": shape, "port": port})
    assert [c.partition(":")[0] for c in found] == ([] if wrong is None else [f"_Scalars.{wrong}"])
