"""Kinds of apps, batch, policy, scheduling, coordination and storage: defaults, refusals, scale, status."""

from tests.real.conformance.stories.objects import pod, template, workload
from tests.real.conformance.story import TABLE, Story, delete, get, merge, post, put

APPS = "/apis/apps/v1/namespaces/{ns}"
BATCH = "/apis/batch/v1/namespaces/{ns}"
POLICY = "/apis/policy/v1/namespaces/{ns}"
PODS = "/api/v1/namespaces/{ns}/pods"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}

STORIES = (
    Story(
        "deployments",
        (
            post("create", f"{APPS}/deployments", workload("Deployment", "d")),
            post(
                "rolling",
                f"{APPS}/deployments",
                workload(
                    "Deployment",
                    "r",
                    replicas=3,
                    strategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": "10%"}},
                    minReadySeconds=5,
                ),
            ),
            post(
                "selector-mismatch",
                f"{APPS}/deployments",
                {
                    **workload("Deployment", "m"),
                    "spec": {"selector": {"matchLabels": {"x": "y"}}, "template": template("m")},
                },
            ),
            post(
                "no-selector",
                f"{APPS}/deployments",
                {**workload("Deployment", "n"), "spec": {"template": template("n")}},
            ),
            post("negative", f"{APPS}/deployments", workload("Deployment", "neg", replicas=-1)),
            post(
                "never-restart",
                f"{APPS}/deployments",
                {
                    **workload("Deployment", "nr"),
                    "spec": {
                        "selector": {"matchLabels": {"app": "nr"}},
                        "template": {
                            "metadata": {"labels": {"app": "nr"}},
                            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
                        },
                    },
                },
            ),
            post(
                "both-zero",
                f"{APPS}/deployments",
                workload("Deployment", "z", strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}),
            ),
            post("bad-strategy", f"{APPS}/deployments", workload("Deployment", "bs", strategy={"type": "Sometimes"})),
            get("scale", f"{APPS}/deployments/d/scale"),
            merge("scale-up", f"{APPS}/deployments/d/scale", {"spec": {"replicas": 4}}),
            put(
                "scale-put",
                f"{APPS}/deployments/d/scale",
                {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 2}},
            ),
            merge("scale-negative", f"{APPS}/deployments/d/scale", {"spec": {"replicas": -2}}),
            get("scaled", f"{APPS}/deployments/d"),
            merge(
                "status",
                f"{APPS}/deployments/d/status",
                {
                    "status": {
                        "replicas": 2,
                        "readyReplicas": 1,
                        "updatedReplicas": 2,
                        "availableReplicas": 1,
                        "unavailableReplicas": 1,
                        "conditions": [
                            {
                                "type": "Available",
                                "status": "True",
                                "reason": "MinimumReplicasAvailable",
                                "message": "ok",
                            }
                        ],
                    }
                },
            ),
            get("table", f"{APPS}/deployments", accept=TABLE),
            merge("spec-bumps-generation", f"{APPS}/deployments/d", {"spec": {"paused": True}}),
            merge("label-does-not", f"{APPS}/deployments/d", {"metadata": {"labels": {"x": "y"}}}),
            delete("foreground", f"{APPS}/deployments/r", {"propagationPolicy": "Foreground"}),
            get("waits", f"{APPS}/deployments/r"),
            delete("background", f"{APPS}/deployments/d", {"propagationPolicy": "Background"}),
            delete("bad-policy", f"{APPS}/deployments/d", {"propagationPolicy": "Sideways"}),
        ),
    ),
    Story(
        "other-apps",
        (
            post("replicaset", f"{APPS}/replicasets", workload("ReplicaSet", "rs")),
            get("replicaset-table", f"{APPS}/replicasets", accept=TABLE),
            post(
                "statefulset",
                f"{APPS}/statefulsets",
                workload(
                    "StatefulSet",
                    "ss",
                    serviceName="svc",
                    volumeClaimTemplates=[{"metadata": {"name": "data"}, "spec": CLAIM}],
                ),
            ),
            get("statefulset-table", f"{APPS}/statefulsets", accept=TABLE),
            merge("statefulset-immutable", f"{APPS}/statefulsets/ss", {"spec": {"serviceName": "other"}}),
            post("daemonset", f"{APPS}/daemonsets", workload("DaemonSet", "ds")),
            get("daemonset-table", f"{APPS}/daemonsets", accept=TABLE),
            post(
                "revision",
                f"{APPS}/controllerrevisions",
                {
                    "apiVersion": "apps/v1",
                    "kind": "ControllerRevision",
                    "metadata": {"name": "cr"},
                    "revision": 1,
                    "data": {"a": 1},
                },
            ),
            get("scale-rs", f"{APPS}/replicasets/rs/scale"),
            get("no-scale-ds", f"{APPS}/daemonsets/ds/scale"),
        ),
    ),
    Story(
        "jobs",
        (
            post(
                "create",
                f"{BATCH}/jobs",
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": {"name": "j"},
                    "spec": {
                        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}
                    },
                },
                only=("status",),
            ),
            post(
                "always-restart",
                f"{BATCH}/jobs",
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": {"name": "a"},
                    "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:1"}]}}},
                },
            ),
            post(
                "negative",
                f"{BATCH}/jobs",
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": {"name": "n"},
                    "spec": {
                        "parallelism": -1,
                        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}},
                    },
                },
            ),
            merge("immutable-template", f"{BATCH}/jobs/j", {"spec": {"completions": 7}}),
            merge("suspend", f"{BATCH}/jobs/j", {"spec": {"suspend": True}}),
            get("table", f"{BATCH}/jobs", accept=TABLE),
            post(
                "cronjob",
                f"{BATCH}/cronjobs",
                {
                    "apiVersion": "batch/v1",
                    "kind": "CronJob",
                    "metadata": {"name": "cj"},
                    "spec": {
                        "schedule": "*/5 * * * *",
                        "jobTemplate": {
                            "spec": {
                                "template": {
                                    "spec": {
                                        "restartPolicy": "OnFailure",
                                        "containers": [{"name": "c", "image": "i:1"}],
                                    }
                                }
                            }
                        },
                    },
                },
            ),
            post(
                "bad-schedule",
                f"{BATCH}/cronjobs",
                {
                    "apiVersion": "batch/v1",
                    "kind": "CronJob",
                    "metadata": {"name": "bad"},
                    "spec": {
                        "schedule": "sometimes",
                        "jobTemplate": {
                            "spec": {
                                "template": {
                                    "spec": {
                                        "restartPolicy": "OnFailure",
                                        "containers": [{"name": "c", "image": "i:1"}],
                                    }
                                }
                            }
                        },
                    },
                },
            ),
            get("cronjob-table", f"{BATCH}/cronjobs", accept=TABLE),
        ),
    ),
    Story(
        "disruption",
        (
            post(
                "budget",
                f"{POLICY}/poddisruptionbudgets",
                {
                    "apiVersion": "policy/v1",
                    "kind": "PodDisruptionBudget",
                    "metadata": {"name": "b"},
                    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}},
                },
            ),
            post(
                "both",
                f"{POLICY}/poddisruptionbudgets",
                {
                    "apiVersion": "policy/v1",
                    "kind": "PodDisruptionBudget",
                    "metadata": {"name": "c"},
                    "spec": {"minAvailable": 1, "maxUnavailable": 1, "selector": {}},
                },
            ),
            post(
                "bad-percent",
                f"{POLICY}/poddisruptionbudgets",
                {
                    "apiVersion": "policy/v1",
                    "kind": "PodDisruptionBudget",
                    "metadata": {"name": "d"},
                    "spec": {"minAvailable": "120%", "selector": {}},
                },
            ),
            get("table", f"{POLICY}/poddisruptionbudgets", accept=TABLE),
            post("pod", PODS, pod("p", metadata={"labels": {"app": "x"}}, spec={"nodeName": "n1"})),
            merge(
                "running",
                f"{PODS}/p/status",
                {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
            ),
            post(
                "evict-refused",
                f"{PODS}/p/eviction",
                {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}},
            ),
            merge(
                "allow",
                f"{POLICY}/poddisruptionbudgets/b/status",
                {
                    "status": {
                        "observedGeneration": 1,
                        "disruptionsAllowed": 1,
                        "currentHealthy": 2,
                        "desiredHealthy": 1,
                        "expectedPods": 2,
                    }
                },
            ),
            post(
                "evict-dry",
                f"{PODS}/p/eviction",
                {
                    "apiVersion": "policy/v1",
                    "kind": "Eviction",
                    "metadata": {"name": "p"},
                    "deleteOptions": {"dryRun": ["All"]},
                },
            ),
            post(
                "evict-wrong-uid",
                f"{PODS}/p/eviction",
                {
                    "apiVersion": "policy/v1",
                    "kind": "Eviction",
                    "metadata": {"name": "p"},
                    "deleteOptions": {"preconditions": {"uid": "other"}},
                },
            ),
            post(
                "evict",
                f"{PODS}/p/eviction",
                {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}},
            ),
            get("terminating", f"{PODS}/p"),
            get("counted", f"{POLICY}/poddisruptionbudgets/b"),
            post(
                "evict-missing",
                f"{PODS}/none/eviction",
                {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "none"}},
            ),
            post(
                "evict-name-differs",
                f"{PODS}/p/eviction",
                {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "q"}},
            ),
        ),
    ),
    Story(
        "small-kinds",
        (
            post(
                "lease",
                "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases",
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": "l"},
                    "spec": {
                        "holderIdentity": "me",
                        "leaseDurationSeconds": 15,
                        "renewTime": "2026-01-01T00:00:00.000001Z",
                    },
                },
            ),
            post(
                "bad-lease",
                "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases",
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": "m"},
                    "spec": {"leaseDurationSeconds": 0},
                },
            ),
            put(
                "lease-put-creates",
                "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases/fresh",
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": "fresh"},
                    "spec": {"holderIdentity": "me"},
                },
            ),
            get("lease-table", "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases/l", accept=TABLE),
            post(
                "secret",
                "/api/v1/namespaces/{ns}/secrets",
                {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "plain"}},
            ),
            post(
                "bad-secret",
                "/api/v1/namespaces/{ns}/secrets",
                {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t"}, "data": {"a": "not base64!"}},
            ),
            merge("secret-type", "/api/v1/namespaces/{ns}/secrets/s", {"type": "other"}),
            get("secret-table", "/api/v1/namespaces/{ns}/secrets/s", accept=TABLE),
            post(
                "account",
                "/api/v1/namespaces/{ns}/serviceaccounts",
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}},
            ),
            post(
                "claim",
                "/api/v1/namespaces/{ns}/persistentvolumeclaims",
                {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "pvc"}, "spec": CLAIM},
            ),
            post(
                "bad-claim",
                "/api/v1/namespaces/{ns}/persistentvolumeclaims",
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": "bad"},
                    "spec": {"accessModes": []},
                },
            ),
            get("claim-table", "/api/v1/namespaces/{ns}/persistentvolumeclaims", accept=TABLE),
            post(
                "quota",
                "/api/v1/namespaces/{ns}/resourcequotas",
                {
                    "apiVersion": "v1",
                    "kind": "ResourceQuota",
                    "metadata": {"name": "q"},
                    "spec": {"hard": {"pods": "1000", "requests.cpu": "2000"}},
                },
                only=("status",),
            ),
            post(
                "limit-range",
                "/api/v1/namespaces/{ns}/limitranges",
                {
                    "apiVersion": "v1",
                    "kind": "LimitRange",
                    "metadata": {"name": "lr"},
                    "spec": {"limits": [{"type": "Pod", "max": {"cpu": "64"}}]},
                },
            ),
            post(
                "event",
                "/api/v1/namespaces/{ns}/events",
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": "e", "namespace": "{ns}"},
                    "involvedObject": {"kind": "Pod", "name": "p", "namespace": "{ns}"},
                    "reason": "Testing",
                    "message": "hello",
                    "type": "Normal",
                    "count": 1,
                },
            ),
            get("event-table", "/api/v1/namespaces/{ns}/events", accept=TABLE),
            post(
                "new-event",
                "/apis/events.k8s.io/v1/namespaces/{ns}/events",
                {
                    "apiVersion": "events.k8s.io/v1",
                    "kind": "Event",
                    "metadata": {"name": "f"},
                    "eventTime": "2026-01-01T00:00:00.000000Z",
                    "reportingController": "koord.sh/test",
                    "reportingInstance": "one",
                    "action": "Test",
                    "reason": "Testing",
                    "type": "Normal",
                    "regarding": {"kind": "Pod", "name": "p", "namespace": "{ns}"},
                    "note": "n",
                },
            ),
            get("event-both-ways", "/api/v1/namespaces/{ns}/events/f"),
            post(
                "role",
                "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles",
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "Role",
                    "metadata": {"name": "r"},
                    "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
                },
            ),
            post(
                "binding",
                "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings",
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "RoleBinding",
                    "metadata": {"name": "rb"},
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
                    "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "{ns}"}],
                },
            ),
        ),
    ),
)
