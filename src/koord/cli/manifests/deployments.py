"""This module makes the Deployments and Services of an installation, with names, labels, ports and arguments
as in Koordinator's chart, so that dashboards, selectors and network rules fit. Pods run without any
privilege.
"""

from __future__ import annotations

from koord.api.koordinator.yarn import HADOOP_CONF_DIR, OPERATOR_PROGRAM
from koord.api.model import Obj
from koord.cli.manifests.cluster_objects import LABELS, config_map
from koord.manager.webhook_server.cert_rotator import SERVICE_NAME

APP = "koord-app"
REPLICAS = 2
WEBHOOK_PORT, METRICS_PORT, HEALTH_PORT = 9876, 8080, 8000
SCHEDULER_PORT = 10251
SCHEDULER_CONFIG = "koord-scheduler.config"
DESCHEDULER_PORT = 10251
DESCHEDULER_CONFIG = "koord-descheduler.config"
CERTIFICATES = "/certs"
YARN_CONFIG = "yarn-config"
HADOOP_CONF_PATH = "/etc/hadoop-conf"
YARN_HOST = "resource-manager.hadoop-yarn"  # of Koordinator's chart of a demonstration cluster
# As the image's user, which has no rights on the node.
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "fsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
RESOURCES = {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}}


def manager_objects(namespace: str, image: str, feature_gates: str) -> list[Obj]:
    container: Obj = {
        "name": "manager",
        "image": image,
        "command": ["koord-manager"],
        "args": [
            "--enable-leader-election",
            f"--metrics-addr=:{METRICS_PORT}",
            f"--health-probe-addr=:{HEALTH_PORT}",
            f"--leader-election-namespace={namespace}",
            "--v=4",
            f"--feature-gates={feature_gates}",
            "--sync-period=0",
            f"--config-namespace={namespace}",
        ],
        "env": [
            _env_from_field("POD_NAMESPACE", "metadata.namespace"),
            _env_from_field("POD_NAME", "metadata.name"),
            {"name": "WEBHOOK_PORT", "value": str(WEBHOOK_PORT)},
            {"name": "WEBHOOK_CERT_DIR", "value": CERTIFICATES},
        ],
        "ports": [
            {"name": "webhook-server", "containerPort": WEBHOOK_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
            {"name": "health-probe", "containerPort": HEALTH_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": HEALTH_PORT}},
        "livenessProbe": _liveness_probe("/healthz", HEALTH_PORT),
        # API servers hear of a pod's end later than the pod does: it answers on for a moment.
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "volumeMounts": [{"name": "certs", "mountPath": CERTIFICATES}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes: list[Obj] = [
        {"name": "certs", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    ports = [{"name": "https", "port": 443, "targetPort": WEBHOOK_PORT, "protocol": "TCP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(SERVICE_NAME, namespace, "koord-manager"),
        "spec": {"selector": {APP: "koord-manager"}, "ports": ports},
    }
    return [
        service,
        _deployment("koord-manager", namespace, container, volumes),
        _disruption_budget("koord-manager", namespace),
    ]


def scheduler_objects(namespace: str, image: str, config: str) -> list[Obj]:
    """Return the scheduler's objects. `config` is the KubeSchedulerConfiguration as YAML."""
    args = [
        f"--port={SCHEDULER_PORT}",
        "--authentication-skip-lookup=true",
        "--v=4",
        f"--config=/config/{SCHEDULER_CONFIG}",
    ]
    return _configured_program(namespace, image, "scheduler", args, SCHEDULER_PORT, {SCHEDULER_CONFIG: config})


def descheduler_objects(namespace: str, image: str, config: str) -> list[Obj]:
    """Return the descheduler's objects. `config` is the DeschedulerConfiguration as YAML."""
    args = ["--v=4", f"--config=/config/{DESCHEDULER_CONFIG}", "--secure-port=0"]
    return _configured_program(namespace, image, "descheduler", args, DESCHEDULER_PORT, {DESCHEDULER_CONFIG: config})


def _configured_program(
    namespace: str, image: str, container_name: str, args: list[str], port: int, config: dict[str, str]
) -> list[Obj]:
    """Return a Deployment whose program reads its configuration from a ConfigMap and serves all on one port."""
    name = f"koord-{container_name}"
    container: Obj = {
        "name": container_name,
        "image": image,
        "command": [name],
        "args": args,
        "ports": [{"name": "metrics", "containerPort": port, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": port}},
        "livenessProbe": _liveness_probe("/healthz", port),
        "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes: list[Obj] = [
        {"name": "config", "configMap": {"name": f"{name}-config"}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    return [
        config_map(namespace, f"{name}-config", config),
        _deployment(name, namespace, container, volumes),
        _disruption_budget(name, namespace),
    ]


def yarn_operator_objects(namespace: str, image: str, site: str) -> list[Obj]:
    """Return the operator's objects. `site` is the yarn-site.xml of the default cluster."""
    container: Obj = {
        "name": "yarn-operator",
        "image": image,
        "command": [OPERATOR_PROGRAM],
        "args": [
            "--enable-leader-election",
            f"--metrics-addr=:{METRICS_PORT}",
            f"--health-probe-addr=:{HEALTH_PORT}",
            f"--leader-election-namespace={namespace}",
            "--v=4",
            "--over-commit-timeout=10m",
        ],
        "env": [
            {"name": HADOOP_CONF_DIR, "value": HADOOP_CONF_PATH},
            {"name": "HADOOP_USER_NAME", "value": "yarn"},
        ],
        "ports": [
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
            {"name": "health-probe", "containerPort": HEALTH_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": HEALTH_PORT}},
        "livenessProbe": _liveness_probe("/healthz", HEALTH_PORT),
        "volumeMounts": [
            {"name": "hadoop-conf", "mountPath": HADOOP_CONF_PATH},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes: list[Obj] = [
        {"name": "hadoop-conf", "configMap": {"name": YARN_CONFIG}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    return [
        config_map(namespace, YARN_CONFIG, {"yarn-site.xml": site, "core-site.xml": "<configuration/>\n"}),
        _deployment(OPERATOR_PROGRAM, namespace, container, volumes),
        _disruption_budget(OPERATOR_PROGRAM, namespace),
    ]


def yarn_site(address: str, admin_address: str) -> str:
    """Return a yarn-site.xml with the addresses of one ResourceManager."""
    return (
        "<configuration>\n"
        f"  <property><name>yarn.resourcemanager.address</name><value>{address}</value></property>\n"
        f"  <property><name>yarn.resourcemanager.admin.address</name><value>{admin_address}</value></property>\n"
        "</configuration>\n"
    )


def _deployment(name: str, namespace: str, container: Obj, volumes: list[Obj]) -> Obj:
    apart = {"labelSelector": {"matchLabels": {APP: name}}, "topologyKey": "kubernetes.io/hostname"}
    spec: Obj = {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,  # bound to the pod, renewed by the kubelet
        "priorityClassName": "system-cluster-critical",
        "terminationGracePeriodSeconds": 30,
        "securityContext": POD_SECURITY,
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]
            }
        },
        "containers": [{**container, "resources": RESOURCES, "securityContext": CONTAINER_SECURITY}],
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(name, namespace, name),
        "spec": {
            "replicas": REPLICAS,
            "minReadySeconds": 3,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "100%"}},
            "selector": {"matchLabels": {APP: name}},
            "template": {"metadata": {"labels": {**LABELS, APP: name}}, "spec": spec},
        },
    }


def _disruption_budget(name: str, namespace: str) -> Obj:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _meta(name, namespace, name),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {APP: name}}},
    }


def _liveness_probe(path: str, port: int) -> Obj:
    return {
        "httpGet": {"path": path, "port": port},
        "initialDelaySeconds": 30,
        "periodSeconds": 10,
        "failureThreshold": 6,
    }


def _env_from_field(name: str, path: str) -> Obj:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _meta(name: str, namespace: str, app: str) -> Obj:
    return {"name": name, "namespace": namespace, "labels": {**LABELS, APP: app}}
