"""This module makes the objects of an installation that no program owns: namespace, priority classes, default
configuration, and webhook configurations, whose CA bundle koord-manager fills in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from koord.api.model import Obj
from koord.manager.webhook_server.cert_rotator import MUTATING_NAME, SERVICE_NAME, VALIDATING_NAME
from koord.manager.webhook_server.routes import WebhookEntry, WebhookRoute, exclude_namespaces, registered_routes
from koord.manager.webhooks.admission import excluded_namespaces

LABELS = {"app.kubernetes.io/part-of": "koordinator"}
_PRIORITY_VALUES = {"koord-prod": 9000, "koord-mid": 7000, "koord-batch": 5000, "koord-free": 3000}
_PRIORITY_DESCRIPTIONS = {
    "koord-prod": "services that must not suffer; 9000 to 9999",
    "koord-mid": "work that fills what services ask for and do not use; 7000 to 7999",
    "koord-batch": "batch work in the gap that services leave; 5000 to 5999",
    "koord-free": "work that may be taken away at any time; 3000 to 3999",
}
DEFAULT_SLO_CONFIG: Obj = {
    "colocation-config": {"enable": True},
    "resource-threshold-config": {"clusterStrategy": {"enable": True}},
}


def namespace_object(name: str) -> Obj:
    # koordlet's pods are privileged, which clusters may refuse unless the namespace allows it.
    labels = {**LABELS, "pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def priority_classes() -> list[Obj]:
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name, "labels": dict(LABELS)},
            "value": value,
            "description": f"This priority class is for {_PRIORITY_DESCRIPTIONS[name]}.",
            "preemptionPolicy": "PreemptLowerPriority",
            "globalDefault": False,
        }
        for name, value in _PRIORITY_VALUES.items()
    ]


def default_config(namespace: str, name: str) -> Obj:
    """Return slo-controller-config: batch resources on, protection by suppression on. The label makes its webhook
    check it.
    """
    return config_map(namespace, name, {key: json.dumps(value) for key, value in DEFAULT_SLO_CONFIG.items()}) | {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**LABELS, "koordinator.sh/configmap-type": "slo-controller-config"},
        }
    }


def config_map(namespace: str, name: str, data: dict[str, str]) -> Obj:
    metadata = {"name": name, "namespace": namespace, "labels": dict(LABELS)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def webhook_configurations(namespace: str, gates: Mapping[str, bool]) -> list[Obj]:
    routes = registered_routes(gates)
    return [
        _webhook_configuration(
            "MutatingWebhookConfiguration", MUTATING_NAME, namespace, [r for r in routes if r.mutates]
        ),
        _webhook_configuration(
            "ValidatingWebhookConfiguration", VALIDATING_NAME, namespace, [r for r in routes if not r.mutates]
        ),
    ]


def _webhook_configuration(kind: str, name: str, namespace: str, routes: list[WebhookRoute]) -> Obj:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        # An empty template: koord-manager keeps the entries there, for gates that are switched on later.
        "metadata": {"name": name, "labels": dict(LABELS), "annotations": {"template": ""}},
        "webhooks": [_webhook(route, entry, namespace) for route in routes for entry in route.entries],
    }


def _webhook(route: WebhookRoute, entry: WebhookEntry, namespace: str) -> Obj:
    made: Obj = {
        "name": entry.name,
        "clientConfig": {"service": {"namespace": namespace, "name": SERVICE_NAME, "path": route.path}},
        "rules": [
            {
                "operations": list(entry.operations),
                "apiGroups": [entry.group],
                "apiVersions": [entry.version],
                "resources": list(entry.resources),
            }
        ],
        "failurePolicy": entry.failure_policy,
        "sideEffects": entry.side_effects,
        "timeoutSeconds": entry.timeout_s,
        "admissionReviewVersions": list(entry.review_versions),
    }
    spaces = entry.namespace_selector
    if route.excludes_system:
        spaces = exclude_namespaces(spaces or {}, sorted(excluded_namespaces(namespace)))
    if spaces:
        made["namespaceSelector"] = spaces
    if entry.object_selector:
        made["objectSelector"] = entry.object_selector
    return made
