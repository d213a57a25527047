"""This module writes a chart like Koordinator's 1.8 as far as an upgrade can meet it: names, selectors, role references
and definitions without a policy to keep them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from koord.api.schema import crd_manifests

Obj = dict[str, Any]

NAMESPACE = "koordinator-system"
BINDINGS = {
    "koord-manager-rolebinding": "koord-manager-role",
    "koord-scheduler-rolebinding": "system:kube-scheduler",
    "koord-scheduler-rolebinding-volume": "system:volume-scheduler",
    "koord-scheduler-rolebinding-custom": "koord-scheduler-role",
    "koord-descheduler-rolebinding": "koord-descheduler-role",
    "koordlet-rolebinding": "koordlet-role",
}
PRIORITIES = {"koord-prod": 9000, "koord-mid": 7000, "koord-batch": 5000, "koord-free": 3000}
_RBAC = "rbac.authorization.k8s.io"


def write_koordinator_chart(folder: Path) -> Path:
    """Write the chart below a folder, and return its path."""
    chart = folder / "koordinator"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: koordinator\nversion: 1.8.0\nappVersion: 1.8.0\n")
    shutil.copy(Path(__file__).parent / "values" / "koordinator-1.8.yaml", chart / "values.yaml")
    (chart / "templates" / "all.yaml").write_text(yaml.safe_dump_all(_objects(), sort_keys=False))
    return chart


def _objects() -> list[Obj]:
    accounts = ("koord-manager", "koord-scheduler", "koord-descheduler", "koordlet")
    deployments = accounts[:3]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *crd_manifests(),
        *(_object("v1", "ServiceAccount", name) for name in accounts),
        *(_cluster(f"{_RBAC}/v1", "ClusterRole", f"{name}-role", rules=[]) for name in accounts),
        *(_binding(name, role) for name, role in BINDINGS.items()),
        *(_workload("Deployment", name) for name in deployments),
        _workload("DaemonSet", "koordlet"),
        _workload("DaemonSet", "koord-device-daemon"),
        _object("v1", "ConfigMap", "slo-controller-config", data={"colocation-config": '{"enable":true}'}),
        *(_object("v1", "ConfigMap", f"{name}-config", data={f"{name}.config": "{}"}) for name in deployments[1:]),
        _object("v1", "Secret", "koordinator-webhook-certs"),
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
    ]


def _object(version: str, kind: str, name: str, **more: Any) -> Obj:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **more}


def _cluster(version: str, kind: str, name: str, **more: Any) -> Obj:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}


def _binding(name: str, role: str) -> Obj:
    account = name.partition("-rolebinding")[0]
    return _cluster(
        f"{_RBAC}/v1",
        "ClusterRoleBinding",
        name,
        roleRef={"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        subjects=[{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    )


def _workload(kind: str, name: str) -> Obj:
    labels = {"koord-app": name}
    spec = {"containers": [{"name": name, "image": f"koordinator-sh/{name}:v1.8.0"}]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return _object("apps/v1", kind, name, spec={"selector": {"matchLabels": labels}, "template": template})
