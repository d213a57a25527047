"""This module makes the webhook configurations of an installation, from the table of webhooks. koord-manager
fills in the CA bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.cli.manifests.settings_objects import LABELS
from koord.manager.webhook_server.cert_rotator import MUTATING_NAME, SERVICE_NAME, VALIDATING_NAME
from koord.manager.webhook_server.registration import exclude_namespaces
from koord.manager.webhook_server.routes import WebhookEntry, WebhookRoute, registered_routes
from koord.manager.webhooks.admission import excluded_namespaces

Obj = dict[str, Any]


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
