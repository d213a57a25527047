"""These tests check the generated table of built-in kinds: discovery and nodes."""

from koord.embedded.apiserver.schema.builtin_types import builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode


def field(kind: tuple[str, str, str], *path: str) -> SchemaNode:
    node = builtin_types().node_for(*kind)
    for name in path:
        assert node is not None
        node = node.items or node.values if name == "[]" else node.fields[name]
    assert node is not None
    return node


POD = ("", "v1", "Pod")


def test_pods_in_discovery() -> None:
    (pods,) = [r for r in builtin_types().resources() if (r.group, r.plural) == ("", "pods")]
    assert (pods.kind, pods.singular, pods.namespaced) == ("Pod", "pod", True)
    assert pods.short_names == ("po",)
    assert pods.categories == ("all",)
    below = {s.name: s for s in pods.subresources}
    assert (below["eviction"].group, below["eviction"].version, below["eviction"].kind) == ("policy", "v1", "Eviction")
    assert below["status"].verbs == ("get", "patch", "update")


def test_both_versions_of_autoscaling_are_served_preferred_first() -> None:
    assert [r.version for r in builtin_types().resources() if r.plural == "horizontalpodautoscalers"] == ["v2", "v1"]


def test_every_served_kind_has_a_node() -> None:
    assert all(builtin_types().node_for(r.group, r.version, r.kind) for r in builtin_types().resources())


def test_merge_keys() -> None:
    containers = field(POD, "spec", "containers")
    assert (containers.list_type, containers.list_keys) == ("map", ("name",))
    assert (containers.patch_key, containers.patch_strategy) == ("name", frozenset({"merge"}))
    ports = field(POD, "spec", "containers", "[]", "ports")
    assert ports.list_keys == ("containerPort", "protocol")
    assert ports.patch_key == "containerPort"
    assert field(POD, "spec", "containers", "[]", "ports", "[]", "protocol").default == "TCP"
    assert field(POD, "spec", "volumes").patch_strategy == frozenset({"merge", "retainKeys"})
    assert field(("apps", "v1", "Deployment"), "spec", "strategy").patch_strategy == frozenset({"retainKeys"})
    assert field(("policy", "v1", "PodDisruptionBudget"), "spec", "selector").patch_strategy == frozenset({"replace"})
    assert field(POD, "metadata", "finalizers").list_type == "set"
    assert field(("apps", "v1", "Deployment"), "spec", "selector").atomic


def test_pointers_and_omission() -> None:
    replicas = field(("apps", "v1", "Deployment"), "spec", "replicas")
    assert (replicas.pointer, replicas.omit_empty, replicas.go) == (True, True, "*int32")
    paused = field(("apps", "v1", "Deployment"), "spec", "paused")
    assert (paused.pointer, paused.omit_empty) == (False, True)
    assert not field(POD, "spec", "containers").omit_empty
    assert field(POD, "metadata", "creationTimestamp").omit_zero
    assert field(POD, "spec", "volumes", "[]", "hostPath").via == "VolumeSource"


def test_what_a_place_says_stays_at_that_place() -> None:
    builtin_types().definition_node("io.k8s.api.apps.v1.DeploymentStrategy")
    shared = builtin_types().definition_node("io.k8s.api.apps.v1.DeploymentStrategy")
    assert shared.patch_strategy == frozenset()
    assert field(("apps", "v1", "Deployment"), "spec", "strategy").fields is shared.fields


def test_types_that_contain_themselves_are_cycles() -> None:
    schema = builtin_types().definition_node("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps")
    inner = schema.fields["properties"].values
    assert inner is not None
    assert inner.fields is schema.fields


def test_the_table_holds_no_sentences() -> None:
    for name in builtin_types().definition_names():
        entry = builtin_types().definition_entry(name)
        assert "description" not in entry
        assert all("description" not in field for field in entry.get("fields", {}).values())


def test_enumerations_are_kept() -> None:
    assert field(POD, "spec", "restartPolicy").rules["enum"] == ["Always", "Never", "OnFailure"]
