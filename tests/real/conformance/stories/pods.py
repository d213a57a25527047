"""Pods: defaults, validation, what may change, status, binding, deletion with grace."""

from tests.real.conformance.stories.objects import pod
from tests.real.conformance.story import Story, delete, get, json_patch, merge, post, put, strategic

PODS = "/api/v1/namespaces/{ns}/pods"

FULL = {
    "initContainers": [
        {"name": "init", "image": "example/init"},
        {"name": "side", "image": "example/side:2", "restartPolicy": "Always"},
    ],
    "containers": [
        {
            "name": "main",
            "image": "example/app:1",
            "command": ["run"],
            "ports": [{"containerPort": 8080}, {"name": "udp", "containerPort": 53, "protocol": "UDP"}],
            "env": [
                {"name": "A", "value": "1"},
                {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
            "resources": {
                "requests": {"cpu": "0.5", "memory": "1024Mi"},
                "limits": {"cpu": "1000m", "memory": "2048Mi"},
            },
            "livenessProbe": {"httpGet": {"path": "/", "port": 8080}},
            "readinessProbe": {"exec": {"command": ["true"]}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "securityContext": {"runAsUser": 0, "privileged": False},
        }
    ],
    "volumes": [
        {"name": "v", "emptyDir": {}},
        {"name": "c", "configMap": {"name": "cm"}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "h", "hostPath": {"path": "/x"}},
        {"name": "d", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ],
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "In", "values": ["a"]}]}]
            }
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 5,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"a": "b"}},
                    },
                }
            ]
        },
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"a": "b"}},
        }
    ],
}

STORIES = (
    Story(
        "pod-create",
        (
            post("minimal", PODS, pod("minimal")),
            post("full", PODS, pod("full", spec=FULL)),
            post("latest-image", PODS, pod("latest", spec={"containers": [{"name": "c", "image": "example/app"}]})),
            post(
                "host-network",
                PODS,
                pod(
                    "hostnet",
                    spec={
                        "hostNetwork": True,
                        "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80}]}],
                    },
                ),
            ),
            post(
                "limits-only",
                PODS,
                pod(
                    "limits",
                    spec={
                        "containers": [
                            {"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
                        ]
                    },
                ),
            ),
            post(
                "extended-resource",
                PODS,
                pod(
                    "extended",
                    spec={
                        "containers": [
                            {
                                "name": "c",
                                "image": "i:1",
                                "resources": {
                                    "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"},
                                    "requests": {
                                        "kubernetes.io/batch-cpu": "1000",
                                        "kubernetes.io/batch-memory": "1Gi",
                                    },
                                },
                            }
                        ]
                    },
                ),
            ),
            post("gated", PODS, pod("gated", spec={"schedulingGates": [{"name": "example.com/wait"}]})),
            post("pre-bound", PODS, pod("prebound", spec={"nodeName": "somewhere"})),
            post("status-is-ignored", PODS, {**pod("status"), "status": {"phase": "Running", "podIP": "1.2.3.4"}}),
            post("generation", PODS, pod("gen", metadata={"generation": 7})),
        ),
    ),
    Story(
        "pod-refusals",
        (
            post("no-spec", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}),
            post("no-containers", PODS, pod("x", spec={"containers": []})),
            post("no-image", PODS, pod("x", spec={"containers": [{"name": "c"}]})),
            post("no-container-name", PODS, pod("x", spec={"containers": [{"image": "i"}]})),
            post("bad-container-name", PODS, pod("x", spec={"containers": [{"name": "C_1", "image": "i"}]})),
            post(
                "same-name-twice",
                PODS,
                pod("x", spec={"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]}),
            ),
            post("bad-restart-policy", PODS, pod("x", spec={"restartPolicy": "Sometimes"})),
            post(
                "bad-quantity",
                PODS,
                pod(
                    "x", spec={"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1.2.3"}}}]}
                ),
            ),
            post(
                "negative-quantity",
                PODS,
                pod("x", spec={"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "-1"}}}]}),
            ),
            post(
                "request-over-limit",
                PODS,
                pod(
                    "x",
                    spec={
                        "containers": [
                            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}
                        ]
                    },
                ),
            ),
            post(
                "extended-fraction",
                PODS,
                pod(
                    "x",
                    spec={
                        "containers": [
                            {
                                "name": "c",
                                "image": "i",
                                "resources": {
                                    "requests": {"kubernetes.io/batch-cpu": "1500m"},
                                    "limits": {"kubernetes.io/batch-cpu": "1500m"},
                                },
                            }
                        ]
                    },
                ),
            ),
            post(
                "extended-no-limit",
                PODS,
                pod(
                    "x",
                    spec={
                        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"example.com/gpu": "1"}}}]
                    },
                ),
            ),
            post(
                "unknown-native-resource",
                PODS,
                pod("x", spec={"containers": [{"name": "c", "image": "i", "resources": {"requests": {"gpu": "1"}}}]}),
            ),
            post(
                "bad-port",
                PODS,
                pod("x", spec={"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 70000}]}]}),
            ),
            post(
                "bad-protocol",
                PODS,
                pod(
                    "x",
                    spec={
                        "containers": [
                            {"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "ICMP"}]}
                        ]
                    },
                ),
            ),
            post("bad-toleration", PODS, pod("x", spec={"tolerations": [{"key": "a", "operator": "Maybe"}]})),
            post(
                "bad-env-name",
                PODS,
                pod("x", spec={"containers": [{"name": "c", "image": "i", "env": [{"name": ""}]}]}),
            ),
            post(
                "missing-volume",
                PODS,
                pod(
                    "x",
                    spec={
                        "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]
                    },
                ),
            ),
            post("volume-without-source", PODS, pod("x", spec={"volumes": [{"name": "Bad_Name", "emptyDir": {}}]})),
            post(
                "bad-node-selector-operator",
                PODS,
                pod(
                    "x",
                    spec={
                        "affinity": {
                            "nodeAffinity": {
                                "requiredDuringSchedulingIgnoredDuringExecution": {
                                    "nodeSelectorTerms": [
                                        {"matchExpressions": [{"key": "z", "operator": "Like", "values": ["a"]}]}
                                    ]
                                }
                            }
                        }
                    },
                ),
            ),
            post(
                "bad-max-skew",
                PODS,
                pod(
                    "x",
                    spec={
                        "topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Never"}]
                    },
                ),
            ),
            post("bad-grace", PODS, pod("x", spec={"terminationGracePeriodSeconds": -1})),
            post("bad-deadline", PODS, pod("x", spec={"activeDeadlineSeconds": 0})),
            post("unknown-priority-class", PODS, pod("x", spec={"priorityClassName": "never-made"})),
            post("bad-priority", PODS, pod("x", spec={"priority": 5})),
            post("bad-dns-policy", PODS, pod("x", spec={"dnsPolicy": "Some"})),
            post(
                "gate-and-node", PODS, pod("x", spec={"nodeName": "n", "schedulingGates": [{"name": "example.com/g"}]})
            ),
            post("bad-bool", PODS, pod("x", spec={"hostNetwork": "yes"})),
            post("bad-int", PODS, pod("x", spec={"priority": "high"})),
            post("bad-list", PODS, pod("x", spec={"containers": {"name": "c"}})),
            post("strict-unknown", PODS, pod("x", spec={"nonsense": 1}), query={"fieldValidation": "Strict"}),
        ),
    ),
    Story(
        "pod-update",
        (
            post("create", PODS, pod("u", metadata={"labels": {"app": "u"}})),
            strategic("image", f"{PODS}/u", {"spec": {"containers": [{"name": "c", "image": "example/app:2"}]}}),
            strategic("command", f"{PODS}/u", {"spec": {"containers": [{"name": "c", "command": ["x"]}]}}),
            merge("node-name", f"{PODS}/u", {"spec": {"nodeName": "direct"}}),
            merge("restart-policy", f"{PODS}/u", {"spec": {"restartPolicy": "Never"}}),
            merge("deadline", f"{PODS}/u", {"spec": {"activeDeadlineSeconds": 100}}),
            merge("add-toleration", f"{PODS}/u", {"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}}),
            merge("priority", f"{PODS}/u", {"spec": {"priority": 100}}),
            merge("add-gate", f"{PODS}/u", {"spec": {"schedulingGates": [{"name": "example.com/late"}]}}),
            merge("status-through-main", f"{PODS}/u", {"status": {"phase": "Running"}}),
            merge(
                "status",
                f"{PODS}/u/status",
                {
                    "status": {
                        "phase": "Running",
                        "conditions": [
                            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                        ],
                    }
                },
            ),
            strategic(
                "condition",
                f"{PODS}/u/status",
                {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}},
            ),
            merge(
                "spec-through-status",
                f"{PODS}/u/status",
                {"spec": {"activeDeadlineSeconds": 5}, "metadata": {"labels": {"via": "status"}}},
            ),
            json_patch("test-fails", f"{PODS}/u", [{"op": "test", "path": "/metadata/labels/app", "value": "other"}]),
            json_patch("remove-missing", f"{PODS}/u", [{"op": "remove", "path": "/metadata/labels/missing"}]),
            json_patch(
                "replace",
                f"{PODS}/u",
                [
                    {"op": "test", "path": "/metadata/labels/app", "value": "u"},
                    {"op": "replace", "path": "/metadata/labels/app", "value": "w"},
                ],
            ),
            json_patch("not-a-list", f"{PODS}/u", {"op": "add"}),
            merge("not-an-object", f"{PODS}/u", [1]),
            get("after", f"{PODS}/u"),
        ),
    ),
    Story(
        "pod-binding",
        (
            post("create", PODS, pod("b")),
            post(
                "bind-missing",
                f"{PODS}/nothing/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "nothing"},
                    "target": {"kind": "Node", "name": "n1"},
                },
            ),
            post(
                "bind-nowhere",
                f"{PODS}/b/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "b"},
                    "target": {"kind": "Node", "name": ""},
                },
            ),
            post(
                "bind-to-pod",
                f"{PODS}/b/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "b"},
                    "target": {"kind": "Pod", "name": "n1"},
                },
            ),
            post(
                "bind-wrong-uid",
                f"{PODS}/b/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "b", "uid": "other"},
                    "target": {"kind": "Node", "name": "n1"},
                },
            ),
            post(
                "bind",
                f"{PODS}/b/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "b", "annotations": {"by": "test"}, "labels": {"l": "1"}},
                    "target": {"kind": "Node", "name": "n1"},
                },
            ),
            get("bound", f"{PODS}/b"),
            post(
                "bind-again",
                f"{PODS}/b/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "b"},
                    "target": {"kind": "Node", "name": "n2"},
                },
            ),
            post("gated", PODS, pod("g", spec={"schedulingGates": [{"name": "example.com/wait"}]})),
            post(
                "bind-gated",
                f"{PODS}/g/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "g"},
                    "target": {"kind": "Node", "name": "n1"},
                },
            ),
            merge("open-gate", f"{PODS}/g", {"spec": {"schedulingGates": None}}),
            delete("delete-bound", f"{PODS}/b"),
            post(
                "bind-deleting",
                f"{PODS}/b/binding",
                {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": "b"},
                    "target": {"kind": "Node", "name": "n1"},
                },
            ),
            get("deleting", f"{PODS}/b"),
            delete("shorten", f"{PODS}/b", query={"gracePeriodSeconds": "5"}),
            delete("lengthen", f"{PODS}/b", query={"gracePeriodSeconds": "50"}),
            delete("force", f"{PODS}/b", {"gracePeriodSeconds": 0}),
            get("gone", f"{PODS}/b"),
            delete("unbound-goes-at-once", f"{PODS}/g"),
            get("unbound-gone", f"{PODS}/g"),
        ),
    ),
    Story(
        "pod-put",
        (
            post("create", PODS, pod("p")),
            put(
                "shorter",
                f"{PODS}/p",
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "p"},
                    "spec": {"containers": [{"name": "c", "image": "example/app:9"}]},
                },
            ),
            put(
                "another-container",
                f"{PODS}/p",
                pod("p", spec={"containers": [{"name": "c", "image": "example/app:9"}, {"name": "d", "image": "x:1"}]}),
            ),
            put("status", f"{PODS}/p/status", {**pod("p"), "status": {"phase": "Failed", "message": "why"}}),
            get("after", f"{PODS}/p"),
        ),
    ),
)
