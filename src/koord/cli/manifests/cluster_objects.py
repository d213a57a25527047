"""This module makes the objects of an installation that no program owns: namespace, priority classes, default
configuration, and webhook configurations, whose CA bundle koord-manager fills in.

RBAC objects are made from the rules that the parts of a program declare: no more, no less, and each rule once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from koord.api.kubernetes.rbac import RbacRule
from koord.api.model import Obj
from koord.manager.reconcile_loop import NAMESPACE
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


_GROUP = "rbac.authorization.k8s.io"
_VERB_ORDER = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def service_account(name: str, namespace: str) -> Obj:
    """Return an account whose token is mounted only by pods that ask for it."""
    metadata = _meta(name, namespace)
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False}


def rbac_objects(
    account: str, namespace: str, rights: Iterable[RbacRule], bound_roles: Iterable[str] = ()
) -> list[Obj]:
    """Return a ClusterRole, a Role for each namespace, and what binds them and `bound_roles` to the account.

    Rules in the usual namespace of the product mean the one that it is installed in.
    """
    by_namespace: dict[str, list[RbacRule]] = {}
    for right in rights:
        place = namespace if right.namespace == NAMESPACE else right.namespace
        by_namespace.setdefault(place, []).append(right)
    bound_roles = tuple(bound_roles)
    everywhere = by_namespace.pop("", [])
    wide = policy_rules(everywhere)
    objects: list[Obj] = []
    if wide:
        role = f"{account}-role"
        # In Koordinator's chart the plain name binds a role of Kubernetes where there is one, and what a binding
        # refers to cannot change: the same names let its release be upgraded to this one.
        binding = f"{role}binding-custom" if bound_roles else f"{role}binding"
        objects += [
            {"apiVersion": f"{_GROUP}/v1", "kind": "ClusterRole", "metadata": _meta(role), "rules": wide},
            _binding("ClusterRoleBinding", binding, "", "ClusterRole", role, account, namespace),
        ]
    for bound in bound_roles:
        name = f"{account}-{bound.removeprefix('system:')}"
        objects.append(_binding("ClusterRoleBinding", name, "", "ClusterRole", bound, account, namespace))
    for place in sorted(by_namespace):
        narrow = policy_rules(_not_granted_cluster_wide(by_namespace[place], everywhere))
        if narrow:
            role = f"{account}-local-role"
            objects += [
                {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": _meta(role, place), "rules": narrow},
                _binding("RoleBinding", f"{role}binding", place, "Role", role, account, namespace),
            ]
    return objects


def policy_rules(rights: Iterable[RbacRule]) -> list[Obj]:
    """Return the rules, with resources of equal verbs together, in an order that does not depend on the input's."""
    verbs: dict[tuple[str, tuple[str, ...], str], set[str]] = {}
    for right in rights:
        for resource in right.resources:
            verbs.setdefault((right.group, tuple(sorted(right.names)), resource), set()).update(right.verbs)
    together: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, names, resource), allowed in sorted(verbs.items()):
        together.setdefault((group, names, _ordered_verbs(allowed)), []).append(resource)
    made: list[Obj] = []
    for (group, names, allowed_verbs), resources in together.items():
        rule: Obj = {"apiGroups": [group], "resources": resources, "verbs": list(allowed_verbs)}
        if names:
            rule["resourceNames"] = list(names)
        made.append(rule)
    return made


def _not_granted_cluster_wide(local: Iterable[RbacRule], everywhere: Iterable[RbacRule]) -> list[RbacRule]:
    """Return what the local rules need beyond the cluster-wide ones."""
    given: dict[tuple[str, str], set[str]] = {}
    for right in everywhere:
        if not right.names:
            for resource in right.resources:
                given.setdefault((right.group, resource), set()).update(right.verbs)
    left: list[RbacRule] = []
    for right in local:
        for resource in right.resources:
            missing = tuple(verb for verb in right.verbs if verb not in given.get((right.group, resource), ()))
            if missing:
                left.append(RbacRule(right.group, (resource,), missing, right.names, right.namespace))
    return left


def _ordered_verbs(verbs: set[str]) -> tuple[str, ...]:
    return tuple(
        sorted(verbs, key=lambda verb: (_VERB_ORDER.index(verb) if verb in _VERB_ORDER else len(_VERB_ORDER), verb))
    )


def _binding(kind: str, name: str, place: str, role_kind: str, role: str, account: str, namespace: str) -> Obj:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": kind,
        "metadata": _meta(name, place),
        "roleRef": {"apiGroup": _GROUP, "kind": role_kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def _meta(name: str, namespace: str = "") -> Obj:
    place = {"namespace": namespace} if namespace else {}
    return {"name": name, **place, "labels": dict(LABELS)}
