"""Cluster-scoped kinds, discovery, custom resources, and paths that are not there."""

from tests.real.conformance.stories.objects import config_map, crd, node
from tests.real.conformance.story import TABLE, Step, Story, apply, delete, get, merge, post, strategic

SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
                "color": {"type": "string", "enum": ["red", "green"]},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "port": {"x-kubernetes-int-or-string": True},
                "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
                    },
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    },
}
COLUMNS = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "{ns}.example.com"
WIDGETS = f"/apis/{GROUP}/v1/namespaces/{{ns}}/widgets"


def widget(named: str, **spec: object) -> dict[str, object]:
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": named}, "spec": spec}


STORIES = (
    Story(
        "paths",
        (
            get("no-group", "/apis/nothing.example.com/v1"),
            get("no-resource", "/api/v1/nothing"),
            get("no-root", "/nothing"),
            get("no-subresource", "/api/v1/namespaces/default/nothing"),
            Step("put-on-list", "PUT", "/api/v1/namespaces/{ns}/configmaps", config_map("x")),
            Step("post-on-object", "POST", "/api/v1/namespaces/{ns}/configmaps/x", config_map("x")),
            Step("post-without-namespace", "POST", "/api/v1/configmaps", config_map("x")),
            get("healthz", "/healthz"),
            get("readyz", "/readyz"),
            get("livez", "/livez"),
        ),
    ),
    Story(
        "nodes",
        (
            post("create", "/api/v1/nodes", node("{ns}-n1", metadata={"labels": {"zone": "a"}})),
            post(
                "with-status",
                "/api/v1/nodes",
                node(
                    "{ns}-n2",
                    status={
                        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                        "allocatable": {"cpu": "3500m", "memory": "7Gi", "pods": "110"},
                        "conditions": [{"type": "Ready", "status": "True"}],
                        "nodeInfo": {"kubeletVersion": "v1.35.0"},
                    },
                ),
            ),
            post("bad-taint", "/api/v1/nodes", node("{ns}-n3", spec={"taints": [{"key": "a", "effect": "Maybe"}]})),
            post(
                "taint-twice",
                "/api/v1/nodes",
                node(
                    "{ns}-n3",
                    spec={"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}]},
                ),
            ),
            strategic("cordon", "/api/v1/nodes/{ns}-n1", {"spec": {"unschedulable": True}}),
            strategic(
                "taint",
                "/api/v1/nodes/{ns}-n1",
                {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}},
            ),
            merge(
                "status",
                "/api/v1/nodes/{ns}-n1/status",
                {
                    "status": {
                        "capacity": {"cpu": "8", "kubernetes.io/batch-cpu": "4000"},
                        "allocatable": {"cpu": "8", "kubernetes.io/batch-cpu": "4000"},
                    }
                },
            ),
            strategic(
                "condition",
                "/api/v1/nodes/{ns}-n1/status",
                {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}},
            ),
            merge("bad-capacity", "/api/v1/nodes/{ns}-n1/status", {"status": {"capacity": {"cpu": "lots"}}}),
            get("table", "/api/v1/nodes/{ns}-n1", accept=TABLE),
            delete("delete-1", "/api/v1/nodes/{ns}-n1"),
            delete("delete-2", "/api/v1/nodes/{ns}-n2"),
        ),
    ),
    Story(
        "priority-and-storage",
        (
            post(
                "priority",
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": "{ns}-pc"},
                    "value": 9000,
                },
            ),
            merge("value-is-immutable", "/apis/scheduling.k8s.io/v1/priorityclasses/{ns}-pc", {"value": 1}),
            post(
                "too-high",
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": "{ns}-high"},
                    "value": 2000000000,
                },
            ),
            post(
                "system-name",
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": "system-{ns}"},
                    "value": 1,
                },
            ),
            get("table", "/apis/scheduling.k8s.io/v1/priorityclasses/{ns}-pc", accept=TABLE),
            post(
                "pod-gets-it",
                "/api/v1/namespaces/{ns}/pods",
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "pp"},
                    "spec": {"priorityClassName": "{ns}-pc", "containers": [{"name": "c", "image": "i:1"}]},
                },
            ),
            post(
                "pod-critical",
                "/api/v1/namespaces/{ns}/pods",
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "pq"},
                    "spec": {
                        "priorityClassName": "system-node-critical",
                        "containers": [{"name": "c", "image": "i:1"}],
                    },
                },
            ),
            delete("delete-priority", "/apis/scheduling.k8s.io/v1/priorityclasses/{ns}-pc"),
            post(
                "storage-class",
                "/apis/storage.k8s.io/v1/storageclasses",
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "metadata": {"name": "{ns}-sc"},
                    "provisioner": "example.com/x",
                    "volumeBindingMode": "WaitForFirstConsumer",
                },
            ),
            get("storage-class-table", "/apis/storage.k8s.io/v1/storageclasses/{ns}-sc", accept=TABLE),
            delete("delete-storage-class", "/apis/storage.k8s.io/v1/storageclasses/{ns}-sc"),
            post(
                "volume",
                "/api/v1/persistentvolumes",
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": "{ns}-pv"},
                    "spec": {
                        "capacity": {"storage": "1Gi"},
                        "accessModes": ["ReadWriteOnce"],
                        "hostPath": {"path": "/x"},
                    },
                },
            ),
            get("volume-table", "/api/v1/persistentvolumes/{ns}-pv", accept=TABLE),
            post(
                "csinode",
                "/apis/storage.k8s.io/v1/csinodes",
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "CSINode",
                    "metadata": {"name": "{ns}-c"},
                    "spec": {
                        "drivers": [
                            {"name": "d.example.com", "nodeID": "x", "topologyKeys": ["z"], "allocatable": {"count": 3}}
                        ]
                    },
                },
            ),
            delete("delete-csinode", "/apis/storage.k8s.io/v1/csinodes/{ns}-c"),
            post(
                "runtime-class",
                "/apis/node.k8s.io/v1/runtimeclasses",
                {
                    "apiVersion": "node.k8s.io/v1",
                    "kind": "RuntimeClass",
                    "metadata": {"name": "{ns}-rc"},
                    "handler": "h",
                },
            ),
            delete("delete-runtime-class", "/apis/node.k8s.io/v1/runtimeclasses/{ns}-rc"),
        ),
    ),
    Story(
        "namespaces",
        (
            get("get", "/api/v1/namespaces/{ns}"),
            post(
                "again", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}"}}
            ),
            post("bad", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}}),
            merge("label", "/api/v1/namespaces/{ns}", {"metadata": {"labels": {"team": "x"}}}),
            get("table", "/api/v1/namespaces/{ns}", accept=TABLE),
            delete("default-is-kept", "/api/v1/namespaces/default"),
            delete("system-is-kept", "/api/v1/namespaces/kube-system"),
            post(
                "second",
                "/api/v1/namespaces",
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}-second"}},
            ),
            post(
                "inside", "/api/v1/namespaces/{ns}-second/configmaps", config_map("x", finalizers=["example.com/hold"])
            ),
            delete("delete-second", "/api/v1/namespaces/{ns}-second", only=("status",)),
            post("too-late", "/api/v1/namespaces/{ns}-second/configmaps", config_map("y"), only=("reason",)),
            merge(
                "release",
                "/api/v1/namespaces/{ns}-second/configmaps/x",
                {"metadata": {"finalizers": None}},
                only=("kind",),
            ),
        ),
    ),
    Story(
        "custom-resources",
        (
            post(
                "define",
                CRDS,
                crd(GROUP, SCHEMA, version={"subresources": {"status": {}}, "additionalPrinterColumns": COLUMNS}),
                only=("spec", "metadata.name"),
            ),
            Step(
                "established",
                "GET",
                f"{CRDS}/widgets.{GROUP}",
                until_established=True,
                only=("status.acceptedNames", "status.storedVersions"),
            ),
            post("create", WIDGETS, widget("w", size=5, color="red")),
            post(
                "defaulted",
                WIDGETS,
                {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "dflt"}, "spec": {}},
            ),
            post("no-spec", WIDGETS, {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "nospec"}}),
            post("pruned", WIDGETS, {**widget("pr", size=1, junk=True, free={"any": {"thing": 1}}), "top": 1}),
            post("strict", WIDGETS, widget("st", size=1, junk=True), query={"fieldValidation": "Strict"}),
            post("too-big", WIDGETS, widget("x", size=11)),
            post("wrong-type", WIDGETS, widget("x", size="big")),
            post("float-for-int", WIDGETS, widget("x", size=1.5)),
            post("bad-enum", WIDGETS, widget("x", size=1, color="blue")),
            post("bad-pattern", WIDGETS, widget("x", size=1, name="UPPER-and-long")),
            post("int-or-string", WIDGETS, widget("ios", size=1, port="http")),
            post("int-or-string-bad", WIDGETS, widget("x", size=1, port=[1])),
            post("set-duplicate", WIDGETS, widget("x", size=1, tags=["a", "a"])),
            post("map-duplicate", WIDGETS, widget("x", size=1, parts=[{"name": "a"}, {"name": "a"}])),
            post("map-without-key", WIDGETS, widget("x", size=1, parts=[{"n": 1}])),
            post(
                "null-spec",
                WIDGETS,
                {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "n"}, "spec": None},
            ),
            post("status-is-dropped", WIDGETS, {**widget("sd", size=1), "status": {"phase": "x"}}),
            merge("status", f"{WIDGETS}/w/status", {"status": {"phase": "Ready"}, "spec": {"size": 9}}),
            merge("main", f"{WIDGETS}/w", {"status": {"phase": "Nope"}, "spec": {"size": 7}}),
            strategic("no-strategic", f"{WIDGETS}/w", {"spec": {"size": 2}}),
            apply("apply", f"{WIDGETS}/ap", widget("ap", size=2, parts=[{"name": "a", "n": 1}]), manager="alice"),
            apply(
                "apply-bob",
                f"{WIDGETS}/ap",
                {
                    "apiVersion": f"{GROUP}/v1",
                    "kind": "Widget",
                    "metadata": {"name": "ap"},
                    "spec": {"parts": [{"name": "b", "n": 2}]},
                },
                manager="bob",
            ),
            apply("apply-conflict", f"{WIDGETS}/ap", widget("ap", size=3), manager="bob"),
            get("list", WIDGETS),
            get("table", WIDGETS, accept=TABLE),
            get("discovery", f"/apis/{GROUP}/v1"),
            get("group", f"/apis/{GROUP}"),
            get("no-version", f"/apis/{GROUP}/v2/widgets"),
            get("by-field", WIDGETS, query={"fieldSelector": "metadata.name=w"}),
            get("unknown-field", WIDGETS, query={"fieldSelector": "spec.size=1"}),
            delete("delete", f"{WIDGETS}/w"),
            delete("undefine", f"{CRDS}/widgets.{GROUP}", only=("metadata.name",)),
        ),
    ),
    Story(
        "broken-definitions",
        (
            post(
                "not-structural",
                CRDS,
                crd(GROUP, {"type": "object", "properties": {"spec": {"properties": {"a": {"type": "string"}}}}}),
            ),
            post("no-schema", CRDS, crd(GROUP, SCHEMA, version={"schema": None})),
            post("bad-name", CRDS, {**crd(GROUP, SCHEMA), "metadata": {"name": "gadgets.{ns}.example.com"}}),
            post("bad-scope", CRDS, crd(GROUP, SCHEMA, scope="Everywhere")),
            post("no-storage-version", CRDS, crd(GROUP, SCHEMA, version={"storage": False})),
            post(
                "bad-default",
                CRDS,
                crd(
                    GROUP,
                    {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"n": {"type": "integer", "default": "x"}}}
                        },
                    },
                ),
            ),
            post("bad-type", CRDS, crd(GROUP, {"type": "object", "properties": {"spec": {"type": "thing"}}})),
            post(
                "list-map-without-keys",
                CRDS,
                crd(
                    GROUP,
                    {
                        "type": "object",
                        "properties": {
                            "a": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}
                        },
                    },
                ),
            ),
            post(
                "metadata-restricted",
                CRDS,
                crd(
                    GROUP,
                    {
                        "type": "object",
                        "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}},
                    },
                ),
            ),
        ),
    ),
)
