"""Names, generated names, labels, annotations, owners, finalizers, uid and revision preconditions."""

from tests.real.conformance.stories.objects import config_map
from tests.real.conformance.story import Story, delete, get, merge, post, put

CM = "/api/v1/namespaces/{ns}/configmaps"

STORIES = (
    Story(
        "names",
        (
            post("create", CM, config_map("plain")),
            post("again", CM, config_map("plain")),
            post("upper-case", CM, config_map("Plain")),
            post("empty-name", CM, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}),
            post("too-long", CM, config_map("x" * 254)),
            post("dot-ends", CM, config_map("x.")),
            post(
                "generated", CM, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "generated-"}}
            ),
            post(
                "bad-generate-name", CM, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "A_"}}
            ),
            post("wrong-namespace", CM, config_map("w", namespace="elsewhere")),
            post("wrong-kind", CM, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}),
            post("wrong-version", CM, {"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "s"}}),
            post("no-kind", CM, {"metadata": {"name": "nokind"}}),
            post("missing-namespace", "/api/v1/namespaces/never-made/configmaps", config_map("x")),
            get("get", f"{CM}/plain"),
            get("get-missing", f"{CM}/missing"),
            post("with-uid", CM, config_map("with-uid", uid="abc", resourceVersion="")),
            post("with-revision", CM, config_map("with-revision", resourceVersion="12")),
        ),
    ),
    Story(
        "labels-and-annotations",
        (
            post("good", CM, config_map("a", labels={"app": "x", "example.com/tier": "web"}, annotations={"n": "v\n"})),
            post("bad-label-value", CM, config_map("b", labels={"app": "not valid"})),
            post("bad-label-key", CM, config_map("c", labels={"-app": "x"})),
            post("bad-label-prefix", CM, config_map("d", labels={"UP/app": "x"})),
            post("long-label", CM, config_map("e", labels={"app": "x" * 64})),
            post("bad-annotation-key", CM, config_map("f", annotations={"bad key": "x"})),
            post("label-not-string", CM, config_map("g", labels={"app": 1})),
            merge("add-label", f"{CM}/a", {"metadata": {"labels": {"new": "1"}}}),
            merge("drop-label", f"{CM}/a", {"metadata": {"labels": {"app": None}}}),
            merge("break-label", f"{CM}/a", {"metadata": {"labels": {"app": "-"}}}),
        ),
    ),
    Story(
        "owners-and-finalizers",
        (
            post("owner", CM, config_map("owner")),
            post(
                "owned",
                CM,
                config_map(
                    "owned",
                    ownerReferences=[
                        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "${owner.metadata.uid}"}
                    ],
                ),
            ),
            post(
                "owner-without-uid",
                CM,
                config_map("x1", ownerReferences=[{"apiVersion": "v1", "kind": "ConfigMap", "name": "o"}]),
            ),
            post(
                "two-controllers",
                CM,
                config_map(
                    "x2",
                    ownerReferences=[
                        {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1", "controller": True},
                        {"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": "2", "controller": True},
                    ],
                ),
            ),
            post("bad-finalizer", CM, config_map("x3", finalizers=["not/a/good/one"])),
            post("finalized", CM, config_map("held", finalizers=["example.com/hold"])),
            delete("delete-held", f"{CM}/held"),
            get("still-there", f"{CM}/held"),
            merge(
                "add-finalizer-while-deleting",
                f"{CM}/held",
                {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}},
            ),
            merge("label-while-deleting", f"{CM}/held", {"metadata": {"labels": {"a": "b"}}}),
            delete("delete-again", f"{CM}/held"),
            merge("release", f"{CM}/held", {"metadata": {"finalizers": None}}),
            get("gone", f"{CM}/held"),
        ),
    ),
    Story(
        "preconditions",
        (
            post("create", CM, config_map("p")),
            put("update", f"{CM}/p", config_map("p", {"k": "2"}, resourceVersion="${create.metadata.resourceVersion}")),
            put("stale", f"{CM}/p", config_map("p", {"k": "3"}, resourceVersion="${create.metadata.resourceVersion}")),
            put("no-revision", f"{CM}/p", config_map("p", {"k": "4"})),
            put("same-again", f"{CM}/p", config_map("p", {"k": "4"})),
            put("wrong-uid", f"{CM}/p", config_map("p", {"k": "5"}, uid="other")),
            put("other-name", f"{CM}/p", config_map("q", {"k": "5"})),
            put("missing", f"{CM}/nothing", config_map("nothing")),
            merge("wrong-uid-patch", f"{CM}/p", {"metadata": {"uid": "other"}, "data": {"k": "6"}}),
            merge("stale-patch", f"{CM}/p", {"metadata": {"resourceVersion": "1"}, "data": {"k": "6"}}),
            merge("rename", f"{CM}/p", {"metadata": {"name": "q"}}),
            merge("creation-time-is-kept", f"{CM}/p", {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}}),
            delete("wrong-uid-delete", f"{CM}/p", {"preconditions": {"uid": "other"}}),
            delete("stale-delete", f"{CM}/p", {"preconditions": {"resourceVersion": "1"}}),
            delete("dry-run-delete", f"{CM}/p", query={"dryRun": "All"}),
            delete("delete", f"{CM}/p"),
            delete("delete-missing", f"{CM}/p"),
        ),
    ),
    Story(
        "dry-run",
        (
            post("create", CM, config_map("d"), query={"dryRun": "All"}),
            get("not-there", f"{CM}/d"),
            post("bad-dry-run", CM, config_map("d"), query={"dryRun": "Some"}),
            post("really", CM, config_map("d")),
            merge("patch", f"{CM}/d", {"data": {"x": "y"}}, query={"dryRun": "All"}),
            get("unchanged", f"{CM}/d"),
        ),
    ),
    Story(
        "field-validation",
        (
            post("strict-unknown", CM, {**config_map("s"), "extra": 1}, query={"fieldValidation": "Strict"}),
            post("warn-unknown", CM, {**config_map("w"), "extra": 1}, query={"fieldValidation": "Warn"}),
            post("ignore-unknown", CM, {**config_map("i"), "extra": 1}, query={"fieldValidation": "Ignore"}),
            post("default-unknown", CM, {**config_map("e"), "extra": 1}),
            post("bad-value", CM, config_map("v"), query={"fieldValidation": "Loose"}),
            post(
                "duplicate-key",
                CM,
                b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dup"},"data":{"a":"1","a":"2"}}',
                query={"fieldValidation": "Strict"},
            ),
            post("not-json", CM, b"{nope"),
            post("not-an-object", CM, b"[1]"),
            post("empty-body", CM, b""),
            post("wrong-data-type", CM, {**config_map("t"), "data": {"k": 1}}),
            post("wrong-data-shape", CM, {**config_map("t"), "data": ["x"]}),
            post(
                "yaml-body",
                CM,
                b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yaml\ndata:\n  k: v\n",
                content_type="application/yaml",
            ),
            post("unknown-media", CM, b"x", content_type="text/plain"),
            post("config-map-key", CM, config_map("keys", {"bad key": "x"})),
            post("immutable", CM, {**config_map("frozen"), "immutable": True}),
            merge("change-immutable", f"{CM}/frozen", {"data": {"k": "2"}}),
        ),
    ),
)
