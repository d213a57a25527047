"""This module makes the webhook configurations of an installation, from the table of webhooks. koord-manager
fills in the CA bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.cli.manifest_object import LABELS
from koord.manager.serving.registration import without_namespaces
from koord.manager.serving.route import Entry, Route, configured
from koord.manager.serving.upkeep import MUTATING_NAME, SERVICE_NAME, VALIDATING_NAME
from koord.manager.webhooks.exclusion import excluded

Obj = dict[str, Any]


def webhook_configurations(namespace: str, gates: Mapping[str, bool]) -> list[Obj]:
    routes = configured(gates)
    return [
        _configuration("MutatingWebhookConfiguration", MUTATING_NAME, namespace, [r for r in routes if r.mutates]),
        _configuration(
            "ValidatingWebhookConfiguration", VALIDATING_NAME, namespace, [r for r in routes if not r.mutates]
        ),
    ]


def _configuration(kind: str, name: str, namespace: str, routes: list[Route]) -> Obj:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        # An empty template: koord-manager keeps the entries there, for gates that are switched on later.
        "metadata": {"name": name, "labels": dict(LABELS), "annotations": {"template": ""}},
        "webhooks": [_webhook(route, entry, namespace) for route in routes for entry in route.entries],
    }


def _webhook(route: Route, entry: Entry, namespace: str) -> Obj:
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
    spaces = entry.namespaces
    if route.excludes_system:
        spaces = without_namespaces(spaces or {}, sorted(excluded(namespace)))
    if spaces:
        made["namespaceSelector"] = spaces
    if entry.objects:
        made["objectSelector"] = entry.objects
    return made
