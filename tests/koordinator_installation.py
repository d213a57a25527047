"""This module writes down what an installation of Koordinator's chart 1.8 consists of: names, labels, arguments, ports,
roles, webhooks and configurations, as an API server would return them.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import yaml

from koord.api.schema import crd_manifests
from koord.manager.webhook_server import cert_store

Obj = dict[str, Any]

NAMESPACE = "koordinator-system"
RELEASE = {"meta.helm.sh/release-name": "koordinator", "meta.helm.sh/release-namespace": "default"}
DNS_NAME = f"koordinator-webhook-service.{NAMESPACE}.svc"
LEASES = {
    "koord-manager": "koordinator-manager",
    "koord-scheduler": "koord-scheduler",
    "koord-descheduler": "koord-descheduler",
}
PRIORITIES = {"koord-prod": 9000, "koord-mid": 7000, "koord-batch": 5000, "koord-free": 3000}
_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]
_ALL = [*_READ, "create", "update", "patch", "delete"]
_KOORDINATOR_GROUPS = ("config.koordinator.sh", "slo.koordinator.sh", "scheduling.koordinator.sh")


def _plugins(*names: str) -> Obj:
    return {"enabled": [{"name": name} for name in names]}


def _only(*names: str) -> Obj:
    return {"disabled": [{"name": "*"}], **_plugins(*names)}


SCHEDULER_CONFIG: Obj = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {
        "leaderElect": True,
        "resourceLock": "leases",
        "resourceName": "koord-scheduler",
        "resourceNamespace": NAMESPACE,
    },
    "profiles": [
        {
            "schedulerName": "koord-scheduler",
            "pluginConfig": [
                {
                    "name": "NodeResourcesFit",
                    "args": {
                        "apiVersion": "kubescheduler.config.k8s.io/v1",
                        "kind": "NodeResourcesFitArgs",
                        "scoringStrategy": {
                            "type": "LeastAllocated",
                            "resources": [
                                {"name": name, "weight": 1}
                                for name in ("cpu", "memory", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")
                            ],
                        },
                    },
                },
                {
                    "name": "LoadAwareScheduling",
                    "args": {
                        "apiVersion": "kubescheduler.config.k8s.io/v1",
                        "kind": "LoadAwareSchedulingArgs",
                        "filterExpiredNodeMetrics": False,
                        "nodeMetricExpirationSeconds": 300,
                        "resourceWeights": {"cpu": 1, "memory": 1},
                        "usageThresholds": {"cpu": 65, "memory": 95},
                        "estimatedScalingFactors": {"cpu": 85, "memory": 70},
                    },
                },
                {"name": "ElasticQuota", "args": {"quotaGroupNamespace": NAMESPACE}},
                {"name": "Coscheduling", "args": {"awareNetworkTopology": True, "enablePreemption": True}},
                {
                    "name": "DeviceShare",
                    "args": {"gpuShareUnsupportedModels": [{"vendor": "huawei", "model": "Ascend-310P3-300I-DUO"}]},
                },
            ],
            "plugins": {
                "preEnqueue": _plugins("Coscheduling"),
                "queueSort": _only("PrioritySort"),
                "preFilter": _plugins(
                    "SchedulingHint", "Coscheduling", "Reservation", "NodeNUMAResource", "DeviceShare", "ElasticQuota"
                ),
                "filter": _plugins("Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare"),
                "postFilter": _only("Reservation", "Coscheduling", "ElasticQuota"),
                "preScore": _plugins("Reservation", "Coscheduling"),
                "score": {
                    "enabled": [
                        {"name": "LoadAwareScheduling", "weight": 1},
                        {"name": "NodeNUMAResource", "weight": 1},
                        {"name": "DeviceShare", "weight": 1},
                        {"name": "Reservation", "weight": 5000},
                        {"name": "Coscheduling", "weight": 1},
                    ]
                },
                "reserve": _plugins(
                    "Reservation",
                    "LoadAwareScheduling",
                    "NodeNUMAResource",
                    "DeviceShare",
                    "Coscheduling",
                    "ElasticQuota",
                ),
                "permit": _plugins("Coscheduling"),
                "preBind": _plugins("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"),
                "bind": _only("Reservation", "DefaultBinder"),
                "postBind": _plugins("Coscheduling"),
            },
        }
    ],
}
DESCHEDULER_CONFIG: Obj = {
    "apiVersion": "descheduler/v1alpha2",
    "kind": "DeschedulerConfiguration",
    "leaderElection": {
        "leaderElect": True,
        "resourceLock": "leases",
        "resourceName": "koord-descheduler",
        "resourceNamespace": NAMESPACE,
    },
    "deschedulingInterval": "10s",
    "profiles": [
        {
            "name": "koord-descheduler",
            "plugins": {
                "evict": _only("MigrationController"),
                "filter": _only("MigrationController"),
            },
            "pluginConfig": [
                {
                    "name": "MigrationController",
                    "args": {
                        "apiVersion": "descheduler/v1alpha2",
                        "kind": "MigrationControllerArgs",
                        "evictionPolicy": "Eviction",
                        "evictQPS": "10",
                        "evictBurst": 1,
                        "namespaces": {"exclude": ["kube-system", NAMESPACE]},
                    },
                },
                {
                    "name": "LowNodeLoad",
                    "args": {
                        "apiVersion": "descheduler/v1alpha2",
                        "kind": "LowNodeLoadArgs",
                        "evictableNamespaces": {"exclude": ["kube-system", NAMESPACE]},
                        "lowThresholds": {"cpu": 45, "memory": 55},
                        "highThresholds": {"cpu": 75, "memory": 80},
                    },
                },
            ],
        }
    ],
}
COMMAND_LINES = {
    "koord-manager": (
        "--enable-leader-election",
        "--metrics-addr=:8080",
        "--health-probe-addr=:8000",
        "--logtostderr=true",
        f"--leader-election-namespace={NAMESPACE}",
        "--v=4",
        "--feature-gates=",
        "--sync-period=0",
        f"--config-namespace={NAMESPACE}",
    ),
    "koord-scheduler": (
        "--port=10251",
        "--authentication-skip-lookup=true",
        "--v=4",
        "--feature-gates=",
        "--config=/config/koord-scheduler.config",
        "--enable-network-topology-manager=true",
    ),
    "koord-descheduler": ("--v=4", "--config=/config/koord-descheduler.config"),
    "koordlet": (
        "-addr=:9316",
        "-cgroup-root-dir=/host-cgroup/",
        "-feature-gates=BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true,Accelerators=true",
        "-runtime-hooks-host-endpoint=/var/run/koordlet/koordlet.sock",
        "--logtostderr=true",
        "--v=4",
    ),
}
PREDICTIONS = "/var/run/koordlet/prediction-checkpoints"
_AGENT_MOUNTS = (  # name, place in the pod, place on the machine
    ("host-kubelet", "/var/lib/kubelet/", "/var/lib/kubelet/"),
    ("host-var-run-koordlet", "/host-var-run-koordlet/", "/var/run/koordlet"),
    ("host-koordlet-checkpoints", "/prediction-checkpoints", PREDICTIONS),
    ("host-etc-hookserver", "/host-etc-hookserver/", "/etc/runtime/hookserver.d/"),
    ("host-pod-resources", "/var/run/koordlet/pod-resources/", "/var/run/koordlet/pod-resources/"),
)
_CONTROL_RESOURCES = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "256Mi"}}
_AGENT_RESOURCES = {"limits": {"cpu": "200m", "memory": "256Mi"}, "requests": {"cpu": "0", "memory": "0"}}


def koordinator_objects(*, by_helm: bool = True) -> list[Obj]:
    """Return all objects of the release in an order in which they can be created, without leases and custom objects."""
    made = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *({**one, "metadata": dict(one["metadata"])} for one in crd_manifests()),
        *(_object("v1", "ServiceAccount", name) for name in COMMAND_LINES),
        *_roles(),
        *(_deployment(name) for name in LEASES),
        _daemon_set("koordlet", COMMAND_LINES["koordlet"], _AGENT_RESOURCES),
        _daemon_set("koord-device-daemon", (), _AGENT_RESOURCES),
        _object(
            "v1",
            "ConfigMap",
            "slo-controller-config",
            data={
                "colocation-config": '{"enable":true}',
                "resource-threshold-config": '{"clusterStrategy":{"enable":true}}',
            },
        ),
        _config("koord-scheduler", SCHEDULER_CONFIG),
        _config("koord-descheduler", DESCHEDULER_CONFIG),
        _object("v1", "ConfigMap", "gpu-shared-resource-templates", data={"data.yaml": "{}"}),
        _object(
            "v1",
            "Service",
            "koordinator-webhook-service",
            spec={"ports": [{"port": 443, "targetPort": 9876}], "selector": {"koord-app": "koord-manager"}},
        ),
        *(
            _cluster("scheduling.k8s.io/v1", "PriorityClass", name, value=value, globalDefault=False)
            for name, value in PRIORITIES.items()
        ),
        *webhook_configurations(b"\n"),
    ]
    if by_helm:
        for one in made:
            one["metadata"]["annotations"] = {**one["metadata"].get("annotations", {}), **RELEASE}
    return made


def certificate_secret(at: datetime | None = None) -> tuple[Obj, bytes]:
    """Return the Secret that Koordinator's manager made, and the authority that API servers trust."""
    made = cert_store.generate(DNS_NAME, at or datetime.now(UTC))
    files = {
        "ca-key.pem": made.ca_key,
        "ca-cert.pem": made.ca_cert,
        "cert.pem": made.cert,
        "tls.crt": made.cert,
        "key.pem": made.key,
        "tls.key": made.key,
    }
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return _object("v1", "Secret", "koordinator-webhook-certs", data=data), made.ca_cert


def webhook_configurations(authority: bytes) -> list[Obj]:
    """Return both configurations with the entries of the chart's defaults."""
    pods, quotas = ("", "v1", "pods"), ("scheduling.sigs.k8s.io", "v1alpha1", "elasticquotas")
    quota_path = "scheduling-sigs-k8s-io-v1alpha1-elasticquota"
    mutating = [
        _webhook("mpod-create.koordinator.sh", "/mutate-pod", pods, ["CREATE"], authority),
        {
            **_webhook("mpod-update.koordinator.sh", "/mutate-pod", pods, ["UPDATE"], authority),
            "objectSelector": {"matchLabels": {"pod.koordinator.sh/mutating-update": "true"}},
        },
        _webhook("melasticquota.koordinator.sh", f"/mutate-{quota_path}", quotas, ["CREATE"], authority),
    ]
    validating = [
        _webhook("vpod.koordinator.sh", "/validate-pod", pods, ["CREATE", "UPDATE"], authority),
        _webhook(
            "velasticquota.koordinator.sh", f"/validate-{quota_path}", quotas, ["CREATE", "UPDATE", "DELETE"], authority
        ),
    ]
    group = "admissionregistration.k8s.io/v1"
    return [
        _cluster(group, f"{kind}WebhookConfiguration", f"koordinator-{kind.lower()}-webhook-configuration", webhooks=w)
        for kind, w in (("Mutating", mutating), ("Validating", validating))
    ]


def lease(program: str, holder: str, renewed: datetime, duration_s: int = 15) -> Obj:
    """Return the lease that a program of Koordinator holds."""
    moment = renewed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration_s, "acquireTime": moment, "renewTime": moment}
    return _object("coordination.k8s.io/v1", "Lease", LEASES[program], spec={**spec, "leaseTransitions": 3})


def _deployment(name: str) -> Obj:
    container: Obj = {
        "name": name.removeprefix("koord-"),
        "image": f"registry.example/koordinator-sh/{name}:v1.8.0",
        "command": [f"/{name}"],
        "args": list(COMMAND_LINES[name]),
        "resources": _CONTROL_RESOURCES,
    }
    if name == "koord-manager":
        container["env"] = [{"name": "WEBHOOK_PORT", "value": "9876"}]
    made = _workload("Deployment", name, {"containers": [container], "serviceAccountName": name})
    made["spec"] |= {"replicas": 2}
    return made


def _daemon_set(name: str, words: tuple[str, ...], resources: Obj) -> Obj:
    container = {
        "name": name,
        "image": f"registry.example/koordinator-sh/{name}:v1.8.0",
        "command": [f"/{name}"],
        "args": list(words),
        "resources": resources,
        "volumeMounts": [{"name": name, "mountPath": inside} for name, inside, _ in _AGENT_MOUNTS],
    }
    volumes = [{"name": name, "hostPath": {"path": path}} for name, _, path in _AGENT_MOUNTS]
    account = {"serviceAccountName": name} if name == "koordlet" else {}
    spec = {"containers": [container], "volumes": volumes, "tolerations": [{"operator": "Exists"}], **account}
    return _workload("DaemonSet", name, spec)


def _workload(kind: str, name: str, spec: Obj) -> Obj:
    labels = {"koord-app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return _object("apps/v1", kind, name, spec={"selector": {"matchLabels": labels}, "template": template})


def _config(program: str, content: Obj) -> Obj:
    return _object(
        "v1",
        "ConfigMap",
        f"{program}-config",
        data={f"{program}.config": yaml.safe_dump(content, sort_keys=False)},
    )


def _webhook(name: str, path: str, target: tuple[str, str, str], verbs: list[str], authority: bytes) -> Obj:
    group, version, resource = target
    return {
        "name": name,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": {
            "caBundle": base64.b64encode(authority).decode(),
            "service": {"name": "koordinator-webhook-service", "namespace": NAMESPACE, "path": path},
        },
        "failurePolicy": "Ignore",
        "namespaceSelector": {"matchExpressions": [{"key": "control-plane", "operator": "DoesNotExist"}]},
        "rules": [{"apiGroups": [group], "apiVersions": [version], "operations": verbs, "resources": [resource]}],
        "sideEffects": "None",
        "timeoutSeconds": 30,
    }


def _roles() -> list[Obj]:
    bindings = {
        "koord-manager-rolebinding": "koord-manager-role",
        "koord-scheduler-rolebinding": "system:kube-scheduler",
        "koord-scheduler-rolebinding-volume": "system:volume-scheduler",
        "koord-scheduler-rolebinding-custom": "koord-scheduler-role",
        "koord-descheduler-rolebinding": "koord-descheduler-role",
        "koordlet-rolebinding": "koordlet-role",
    }
    rules = [{"apiGroups": [group], "resources": ["*"], "verbs": ["*"]} for group in _KOORDINATOR_GROUPS]
    rules += [{"apiGroups": [""], "resources": ["nodes", "pods", "namespaces", "configmaps"], "verbs": _READ}]
    election = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": _ALL}]
    return [
        _object(f"{_RBAC}/v1", "Role", "koord-leader-election-role", rules=election),
        _object(
            f"{_RBAC}/v1",
            "RoleBinding",
            "koord-leader-election-rolebinding",
            roleRef={"apiGroup": _RBAC, "kind": "Role", "name": "koord-leader-election-role"},
            subjects=[{"kind": "ServiceAccount", "name": "koord-manager", "namespace": NAMESPACE}],
        ),
        *(_cluster(f"{_RBAC}/v1", "ClusterRole", f"{name}-role", rules=rules) for name in COMMAND_LINES),
        *(
            _cluster(
                f"{_RBAC}/v1",
                "ClusterRoleBinding",
                name,
                roleRef={"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
                subjects=[
                    {
                        "kind": "ServiceAccount",
                        "name": name.partition("-rolebinding")[0],
                        "namespace": NAMESPACE,
                    }
                ],
            )
            for name, role in bindings.items()
        ),
    ]


def _object(version: str, kind: str, name: str, **more: Any) -> Obj:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **more}


def _cluster(version: str, kind: str, name: str, **more: Any) -> Obj:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}
