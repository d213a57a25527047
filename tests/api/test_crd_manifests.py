"""The manifests in config/crds are what the models say today; `make gen` writes them again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.schema import crd_manifests
from tests.api.koordinator.custom_resource_samples import INVALID_OBJECTS, VALID_OBJECTS

FOLDER = Path(__file__).parents[2] / "config" / "crds"


def test_files_match_the_models() -> None:
    on_disk = [yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))]
    by_name = {manifest["metadata"]["name"]: manifest for manifest in on_disk}
    assert by_name == {manifest["metadata"]["name"]: manifest for manifest in crd_manifests()}


Schema = dict[str, Any]

MANIFESTS = {m["spec"]["names"]["kind"]: m for m in crd_manifests()}

AGE = "Age:date:.metadata.creationTimestamp"
# kind -> group, plural, short, scope, status subresource, columns
INDEX = [
    ("NodeMetric", "slo.koordinator.sh", "nodemetrics", None, "Cluster", True, []),
    ("NodeSLO", "slo.koordinator.sh", "nodeslos", None, "Cluster", True, []),
    ("Device", "scheduling.koordinator.sh", "devices", None, "Cluster", False, []),
    (
        "Reservation",
        "scheduling.koordinator.sh",
        "reservations",
        None,
        "Cluster",
        True,
        [
            "Phase:string:.status.phase",
            AGE,
            "Node:string:.status.nodeName",
            "TTL:string:.spec.ttl",
            "Expires:string:.spec.expires",
        ],
    ),
    (
        "PodMigrationJob",
        "scheduling.koordinator.sh",
        "podmigrationjobs",
        "pmj",
        "Cluster",
        True,
        [
            "Phase:string:.status.phase",
            "Status:string:.status.status",
            AGE,
            "Node:string:.status.nodeName",
            "Reservation:string:.spec.reservationOptions.reservationRef.name",
            "PodNamespace:string:.spec.podRef.namespace",
            "Pod:string:.spec.podRef.name",
            "NewPod:string:.status.podRef.name",
            "TTL:string:.spec.ttl",
        ],
    ),
    ("ClusterNetworkTopology", "scheduling.koordinator.sh", "clusternetworktopologies", None, "Cluster", True, []),
    ("ScheduleExplanation", "scheduling.koordinator.sh", "scheduleexplanations", "sched-exp", "Namespaced", True, []),
    ("ElasticQuota", "scheduling.sigs.k8s.io", "elasticquotas", None, "Namespaced", False, []),
    ("PodGroup", "scheduling.sigs.k8s.io", "podgroups", None, "Namespaced", False, []),
    ("ElasticQuotaProfile", "quota.koordinator.sh", "elasticquotaprofiles", "eqp", "Namespaced", False, []),
    ("ClusterColocationProfile", "config.koordinator.sh", "clustercolocationprofiles", None, "Cluster", True, []),
    (
        "Recommendation",
        "analysis.koordinator.sh",
        "recommendations",
        "recom",
        "Namespaced",
        True,
        [
            AGE,
            "Type:string:.spec.target.type",
            "Kind:string:.spec.target.workload.kind",
            "Name:string:.spec.target.workload.name",
            "LastUpdateTime:date:.status.updateTime",
        ],
    ),
    (
        "NodeResourceTopology",
        "topology.node.k8s.io",
        "noderesourcetopologies",
        "node-res-topo",
        "Cluster",
        False,
        [],
    ),
]


@pytest.mark.parametrize(
    ("kind", "group", "plural", "short", "scope", "status", "columns"), [pytest.param(*row, id=row[0]) for row in INDEX]
)
def test_address_and_columns(
    kind: str, group: str, plural: str, short: str | None, scope: str, status: bool, columns: list[str]
) -> None:
    manifest = MANIFESTS[kind]
    spec = manifest["spec"]
    assert manifest["metadata"]["name"] == f"{plural}.{group}"
    assert (spec["group"], spec["scope"]) == (group, scope)
    assert spec["names"] == {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        **({"shortNames": [short]} if short else {}),
    }
    for version in spec["versions"]:
        shown = version.get("additionalPrinterColumns", [])
        assert [f"{c['name']}:{c['type']}:{c['jsonPath']}" for c in shown] == columns
        assert ("subresources" in version) is status


def test_there_is_one_manifest_per_kind() -> None:
    assert [m["spec"]["names"]["kind"] for m in crd_manifests()] == [row[0] for row in INDEX]


def test_node_resource_topology_serves_two_versions_and_stores_the_newer() -> None:
    versions = MANIFESTS["NodeResourceTopology"]["spec"]["versions"]
    assert [(v["name"], v["served"], v["storage"]) for v in versions] == [
        ("v1alpha1", True, False),
        ("v1alpha2", True, True),
    ]


def test_protected_groups_name_their_approval() -> None:
    approvals = {
        k: m["metadata"].get("annotations", {}).get("api-approved.kubernetes.io") for k, m in MANIFESTS.items()
    }
    assert {k: v for k, v in approvals.items() if v} == {
        "ElasticQuota": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/52",
        "PodGroup": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/52",
        "NodeResourceTopology": "https://github.com/kubernetes/enhancements/pull/1870",
    }


def schema_of(api_version: str, kind: str) -> Schema:
    version = api_version.rpartition("/")[2]
    served = MANIFESTS[kind]["spec"]["versions"]
    found: Schema = next(v for v in served if v["name"] == version)["schema"]["openAPIV3Schema"]
    return found


def values(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from values(inner, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from values(schema[keyword], f"{path}[]")


@pytest.mark.parametrize("kind", list(MANIFESTS))
def test_schemas_are_structural(kind: str) -> None:
    for version in MANIFESTS[kind]["spec"]["versions"]:
        for path, schema in values(version["schema"]["openAPIV3Schema"]):
            free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
            assert "type" in schema or free, path
            assert not {"$ref", "oneOf", "definitions"} & schema.keys(), path
            assert not ("properties" in schema and "additionalProperties" in schema), path
            assert set(schema.get("required", ())) <= schema.get("properties", {}).keys(), path


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def complaints(value: Any, schema: Schema, path: str) -> Iterator[str]:
    """A small reader of the schema keywords that we emit; the real server has the last word in the real tests."""
    if value is None:
        if not schema.get("nullable"):
            yield path
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield path
            return
    elif "type" in schema:
        fits = isinstance(value, TYPES[schema["type"]]) and (schema["type"] == "boolean") == isinstance(value, bool)
        if not fits:
            yield path
            return
    if "enum" in schema and value not in schema["enum"]:
        yield path
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield path
    if "minimum" in schema and value < schema["minimum"]:
        yield path
    if "maximum" in schema and value > schema["maximum"]:
        yield path
    if "minItems" in schema and len(value) < schema["minItems"]:
        yield path
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{path}.{name}"
        for name, inner in value.items():
            if name in schema.get("properties", {}):
                yield from complaints(inner, schema["properties"][name], f"{path}.{name}")
            elif "additionalProperties" in schema:
                yield from complaints(inner, schema["additionalProperties"], f"{path}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields") and path != ".metadata":
                yield f"{path}.{name}"
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from complaints(inner, schema["items"], f"{path}[{index}]")


@pytest.mark.parametrize("name", list(VALID_OBJECTS))
def test_a_valid_object_passes(name: str) -> None:
    sample = VALID_OBJECTS[name]
    assert list(complaints(sample, schema_of(sample["apiVersion"], sample["kind"]), "")) == []


@pytest.mark.parametrize("name", list(INVALID_OBJECTS))
def test_a_wrong_object_fails_at_its_field(name: str) -> None:
    sample, field = INVALID_OBJECTS[name]
    found = list(complaints(sample, schema_of(sample["apiVersion"], sample["kind"]), ""))
    assert found == [f".{field}"]


@pytest.mark.parametrize(
    ("kind", "path", "default"),
    [
        pytest.param("Reservation", "spec/ttl", "24h", id="reservation-ttl"),
        pytest.param("Reservation", "spec/allocateOnce", True, id="allocate-once"),
        pytest.param("Reservation", "spec/preAllocationPolicy/mode", "Default", id="pre-allocation-mode"),
        pytest.param("Reservation", "status/phase", "Pending", id="reservation-phase"),
        pytest.param("ScheduleExplanation", "spec/ttl", "24h", id="explanation-ttl"),
        pytest.param("NodeSLO", "spec/resourceQOSStrategy/beClass/networkQOS/ingressRequest", 0, id="network-request"),
        pytest.param("NodeSLO", "spec/resourceQOSStrategy/beClass/networkQOS/egressLimit", 100, id="network-limit"),
    ],
)
def test_schema_defaults(kind: str, path: str, default: Any) -> None:
    schema = MANIFESTS[kind]["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]
    for step in path.split("/"):
        schema = schema["properties"][step]
    assert schema["default"] == default


def test_manifests_share_nothing_that_a_caller_could_change() -> None:
    first = crd_manifests()
    first[0]["spec"]["versions"].clear()
    for manifest in first[1:]:
        for version in manifest["spec"]["versions"]:
            version["schema"]["openAPIV3Schema"]["properties"].clear()
    assert crd_manifests() == list(MANIFESTS.values())
