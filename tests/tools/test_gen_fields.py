"""The generator's reading of Go sources and OpenAPI, on small inputs of the same layout."""

from typing import Any

import pytest

from tools.gen_fields import GoSource, definitions, package_of, resources

TYPES = """
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Thing is described
// at length.
type Thing struct {
	metav1.TypeMeta `json:",inline"`
	// why
	Spec ThingSpec `json:"spec,omitempty" protobuf:"bytes,1,opt,name=spec"`
	UID *types.UID `json:"uid,omitempty,omitzero"`
}

type ThingSpec struct {
	Source `json:",inline"`
	Names []Name `json:"names" patchStrategy:"merge"`
	Hidden string `json:"-"`
	ByName map[string]*Part `json:"byName,omitempty"`
	Raw []byte `json:"raw"`
}

type Source struct {
	Path string `json:"path"`
}

type Name string

type Part Source

type Alias = Source
"""
META = """
package v1

type TypeMeta struct {
	Kind string `json:"kind,omitempty"`
}
"""
SOURCE = GoSource(
    {"k8s.io/api/core/v1": {"types.go": TYPES}, "k8s.io/apimachinery/pkg/apis/meta/v1": {"types.go": META}}
)


def test_inlined_structs_are_spliced_in_where_they_stand() -> None:
    assert SOURCE.fields("k8s.io/api/core/v1", "Thing") == [
        {"name": "kind", "go": "string", "omit": "e", "via": "TypeMeta"},
        {"name": "spec", "go": "v1.ThingSpec", "omit": "e"},
        {"name": "uid", "go": "*types.UID", "omit": "ez"},
    ]


def test_types_are_named_as_go_prints_them() -> None:
    assert [(f["name"], f["go"]) for f in SOURCE.fields("k8s.io/api/core/v1", "ThingSpec")] == [
        ("path", "string"),
        ("names", "[]v1.Name"),
        ("byName", "map[string]*v1.Part"),
        ("raw", "[]uint8"),
    ]


@pytest.mark.parametrize("name", ["Part", "Alias"])
def test_a_type_named_after_another_has_its_fields(name: str) -> None:
    assert SOURCE.fields("k8s.io/api/core/v1", name) == [{"name": "path", "go": "string"}]


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "description": "words", "properties": properties}


def test_both_sides_are_joined_in_gos_order() -> None:
    spec = schema(
        names={"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "description": "words"},
        path={"type": "string", "default": ""},
        raw={"type": "string", "format": "byte"},
        byName={
            "type": "object",
            "additionalProperties": {
                "allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.Part"}],
                "default": {},
            },
        },
    )
    table = definitions({"io.k8s.api.core.v1.ThingSpec": spec}, SOURCE)["io.k8s.api.core.v1.ThingSpec"]
    assert table["type"] == "object"
    assert list(table["fields"]) == ["path", "names", "byName", "raw"]
    assert table["fields"]["names"] == {
        "type": "array",
        "items": {"type": "string"},
        "list-type": "set",
        "go": "[]v1.Name",
    }
    assert table["fields"]["path"]["via"] == "Source"
    assert table["fields"]["byName"]["values"] == {"ref": "io.k8s.api.core.v1.Part", "default": {}}


def test_a_field_that_go_does_not_have_stops_the_generator() -> None:
    with pytest.raises(LookupError, match="stranger"):
        definitions({"io.k8s.api.core.v1.Part": schema(stranger={"type": "string"})}, SOURCE)


def test_packages_of_definitions() -> None:
    assert package_of("io.k8s.apimachinery.pkg.apis.meta.v1.Time") == "k8s.io/apimachinery/pkg/apis/meta/v1"


def test_discovery_rows() -> None:
    found = {
        "resource": "things",
        "responseKind": {"kind": "Thing"},
        "scope": "Namespaced",
        "singularResource": "thing",
        "verbs": ["get"],
        "shortNames": ["th"],
        "subresources": [
            {
                "subresource": "scale",
                "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
                "verbs": ["get"],
            }
        ],
    }
    groups = [{"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [found]}]}]
    lists = {"apis/apps/v1": {"resources": [{"name": "things", "storageVersionHash": "abc="}]}}
    assert resources(groups, lists) == [
        {
            "group": "apps",
            "version": "v1",
            "kind": "Thing",
            "plural": "things",
            "singular": "thing",
            "namespaced": True,
            "verbs": ["get"],
            "short_names": ["th"],
            "storage_hash": "abc=",
            "subresources": [
                {"name": "scale", "kind": "Scale", "group": "autoscaling", "version": "v1", "verbs": ["get"]}
            ],
        }
    ]
