"""Strategic merge directives, server-side apply with conflicts and managed fields."""

from tests.real.conformance.stories.objects import config_map, workload
from tests.real.conformance.story import APPLY, STRATEGIC, Step, Story, apply, get, json_patch, merge, post, strategic

CM = "/api/v1/namespaces/{ns}/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{ns}/deployments"
SERVICES = "/api/v1/namespaces/{ns}/services"

STORIES = (
    Story(
        "strategic-merge",
        (
            post("create", DEPLOYMENTS, workload("Deployment", "d")),
            strategic(
                "add-container",
                f"{DEPLOYMENTS}/d",
                {"spec": {"template": {"spec": {"containers": [{"name": "two", "image": "two:1"}]}}}},
            ),
            strategic(
                "add-env",
                f"{DEPLOYMENTS}/d",
                {
                    "spec": {
                        "template": {
                            "spec": {
                                "containers": [
                                    {"name": "two", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
                                ]
                            }
                        }
                    }
                },
            ),
            strategic(
                "change-env",
                f"{DEPLOYMENTS}/d",
                {
                    "spec": {
                        "template": {"spec": {"containers": [{"name": "two", "env": [{"name": "A", "value": "9"}]}]}}
                    }
                },
            ),
            strategic(
                "delete-env",
                f"{DEPLOYMENTS}/d",
                {
                    "spec": {
                        "template": {
                            "spec": {"containers": [{"name": "two", "env": [{"name": "A", "$patch": "delete"}]}]}
                        }
                    }
                },
            ),
            strategic(
                "order",
                f"{DEPLOYMENTS}/d",
                {
                    "spec": {
                        "template": {
                            "spec": {
                                "$setElementOrder/containers": [{"name": "two"}, {"name": "c"}],
                                "containers": [{"name": "two", "image": "two:2"}],
                            }
                        }
                    }
                },
            ),
            strategic(
                "replace-containers",
                f"{DEPLOYMENTS}/d",
                {
                    "spec": {
                        "template": {
                            "spec": {"containers": [{"name": "only", "image": "only:1"}, {"$patch": "replace"}]}
                        }
                    }
                },
            ),
            strategic(
                "no-merge-key", f"{DEPLOYMENTS}/d", {"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}
            ),
            strategic(
                "retain-keys", f"{DEPLOYMENTS}/d", {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
            ),
            strategic(
                "delete-container",
                f"{DEPLOYMENTS}/d",
                {
                    "spec": {
                        "template": {
                            "spec": {
                                "containers": [{"name": "only", "$patch": "delete"}, {"name": "c", "image": "c:1"}]
                            }
                        }
                    }
                },
            ),
            strategic("null-deletes", f"{DEPLOYMENTS}/d", {"spec": {"revisionHistoryLimit": None, "paused": None}}),
            strategic(
                "selector-is-immutable", f"{DEPLOYMENTS}/d", {"spec": {"selector": {"matchLabels": {"app": "other"}}}}
            ),
            strategic(
                "unknown-directive",
                f"{DEPLOYMENTS}/d",
                {"spec": {"template": {"spec": {"containers": [{"name": "c", "$patch": "explode"}]}}}},
            ),
            Step("on-missing", "PATCH", f"{DEPLOYMENTS}/missing", {"spec": {}}, content_type=STRATEGIC),
            Step("not-json", "PATCH", f"{DEPLOYMENTS}/d", b"{", content_type=STRATEGIC),
            Step("unknown-media", "PATCH", f"{DEPLOYMENTS}/d", b"{}", content_type="application/json"),
            get("after", f"{DEPLOYMENTS}/d"),
        ),
    ),
    Story(
        "json-patch",
        (
            post("create", CM, config_map("j", {"a": "1"}, annotations={"example.com/c": "2"})),
            json_patch("add", f"{CM}/j", [{"op": "add", "path": "/data/new", "value": "x"}]),
            json_patch(
                "escaped",
                f"{CM}/j",
                [
                    {"op": "replace", "path": "/metadata/annotations/example.com~1c", "value": "slash"},
                    {"op": "test", "path": "/metadata/annotations/example.com~1c", "value": "slash"},
                ],
            ),
            json_patch("move", f"{CM}/j", [{"op": "move", "from": "/data/a", "path": "/data/z"}]),
            json_patch("copy", f"{CM}/j", [{"op": "copy", "from": "/data/z", "path": "/data/y"}]),
            json_patch("remove", f"{CM}/j", [{"op": "remove", "path": "/data/y"}]),
            json_patch("replace-missing", f"{CM}/j", [{"op": "replace", "path": "/data/none", "value": "x"}]),
            json_patch("unknown-op", f"{CM}/j", [{"op": "explode", "path": "/data"}]),
            json_patch("bad-pointer", f"{CM}/j", [{"op": "add", "path": "data/x", "value": "1"}]),
            json_patch("wrong-type", f"{CM}/j", [{"op": "add", "path": "/data/n", "value": 5}]),
            get("after", f"{CM}/j"),
        ),
    ),
    Story(
        "apply",
        (
            apply("create", f"{CM}/a", config_map("a", {"one": "1", "two": "2"}), manager="alice"),
            apply("same-again", f"{CM}/a", config_map("a", {"one": "1", "two": "2"}), manager="alice"),
            apply("drop-a-key", f"{CM}/a", config_map("a", {"one": "1"}), manager="alice"),
            apply("share", f"{CM}/a", config_map("a", {"one": "1", "bob": "b"}), manager="bob"),
            apply("conflict", f"{CM}/a", config_map("a", {"one": "bob's"}), manager="bob"),
            apply("force", f"{CM}/a", config_map("a", {"one": "bob's"}), manager="bob", force=True),
            apply("alice-lost-it", f"{CM}/a", config_map("a", {"one": "1"}), manager="alice"),
            merge("update-takes", f"{CM}/a", {"data": {"one": "patched"}}, query={"fieldManager": "carol"}),
            apply("conflict-with-update", f"{CM}/a", config_map("a", {"one": "again"}), manager="alice"),
            Step("no-manager", "PATCH", f"{CM}/a", config_map("a"), content_type=APPLY),
            Step(
                "force-on-merge",
                "PATCH",
                f"{CM}/a",
                {"data": {}},
                content_type="application/merge-patch+json",
                query={"force": "true"},
            ),
            apply("with-managed-fields", f"{CM}/a", config_map("a", managedFields=[{"manager": "x"}]), manager="alice"),
            apply("name-differs", f"{CM}/a", config_map("b"), manager="alice"),
            apply("no-kind", f"{CM}/a", {"metadata": {"name": "a"}}, manager="alice"),
            apply(
                "strict-unknown",
                f"{CM}/a",
                {**config_map("a"), "extra": 1},
                manager="alice",
                query={"fieldValidation": "Strict"},
            ),
            merge("reset-managed-fields", f"{CM}/a", {"metadata": {"managedFields": [{}]}}),
            get("after", f"{CM}/a"),
        ),
    ),
    Story(
        "apply-lists",
        (
            apply("create", f"{DEPLOYMENTS}/d", workload("Deployment", "d", replicas=2), manager="alice"),
            merge("scale", f"{DEPLOYMENTS}/d", {"spec": {"replicas": 5}}, query={"fieldManager": "scaler"}),
            apply("conflict", f"{DEPLOYMENTS}/d", workload("Deployment", "d", replicas=2), manager="alice"),
            apply("give-up-replicas", f"{DEPLOYMENTS}/d", workload("Deployment", "d"), manager="alice"),
            apply(
                "second-container",
                f"{DEPLOYMENTS}/d",
                {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "metadata": {"name": "d"},
                    "spec": {
                        "template": {
                            "spec": {
                                "containers": [
                                    {
                                        "name": "side",
                                        "image": "side:1",
                                        "ports": [{"containerPort": 9, "protocol": "TCP"}],
                                    }
                                ]
                            }
                        }
                    },
                },
                manager="bob",
            ),
            apply(
                "drop-second-container",
                f"{DEPLOYMENTS}/d",
                {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"kept": "yes"}}},
                manager="bob",
            ),
            merge(
                "status",
                f"{DEPLOYMENTS}/d/status",
                {"status": {"replicas": 1, "observedGeneration": 1}},
                query={"fieldManager": "ctrl"},
            ),
            apply(
                "invalid-result",
                f"{DEPLOYMENTS}/d",
                workload("Deployment", "d", replicas=-1),
                manager="alice",
                force=True,
            ),
            apply(
                "duplicate-item",
                f"{DEPLOYMENTS}/x",
                {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "metadata": {"name": "x"},
                    "spec": {
                        "selector": {"matchLabels": {"a": "b"}},
                        "template": {
                            "metadata": {"labels": {"a": "b"}},
                            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "j"}]},
                        },
                    },
                },
                manager="alice",
            ),
            get("after", f"{DEPLOYMENTS}/d"),
        ),
    ),
    Story(
        "merge-patch",
        (
            post(
                "create",
                SERVICES,
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {"name": "s"},
                    "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 80}]},
                },
            ),
            merge(
                "replace-ports", f"{SERVICES}/s", {"spec": {"ports": [{"name": "x", "port": 81, "targetPort": "web"}]}}
            ),
            merge("add-selector", f"{SERVICES}/s", {"spec": {"selector": {"c": "d"}}}),
            merge("drop-selector", f"{SERVICES}/s", {"spec": {"selector": {"a": None}}}),
            merge("no-change", f"{SERVICES}/s", {}),
            merge("bad-port", f"{SERVICES}/s", {"spec": {"ports": [{"name": "x", "port": 0}]}}),
        ),
    ),
)
