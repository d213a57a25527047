"""Define what koord-scheduler may do on an API server, beside Kubernetes' own scheduler roles."""

from __future__ import annotations

from koord.api.koordinator.protocol import NAMESPACE
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule

# Every cluster with RBAC has these; they hold what kube-scheduler itself needs.
BOUND_ROLES = ("system:kube-scheduler", "system:volume-scheduler")

_ALL_VERBS = (*READ_VERBS, "create", "update", "patch", "delete")

RBAC_RULES: tuple[RbacRule, ...] = (
    RbacRule("coordination.k8s.io", ("leases",), ("create",), namespace=NAMESPACE),
    RbacRule("coordination.k8s.io", ("leases",), ("get", "update", "patch"), namespace=NAMESPACE),
    RbacRule("", ("pods",), (*READ_VERBS, "patch", "update", "delete")),
    RbacRule("", ("pods/status",), ("patch", "update")),
    RbacRule("", ("pods/binding", "pods/eviction"), ("create",)),
    RbacRule("", ("nodes",), (*READ_VERBS, "patch")),
    RbacRule("", ("configmaps", "namespaces"), READ_VERBS),
    RbacRule("apiextensions.k8s.io", ("customresourcedefinitions",), READ_VERBS),
    RbacRule(
        "storage.k8s.io",
        ("csidrivers", "csinodes", "csistoragecapacities", "storageclasses", "volumeattachments"),
        READ_VERBS,
    ),
    RbacRule(
        "resource.k8s.io", ("resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses"), READ_VERBS
    ),
    RbacRule("resource.k8s.io", ("resourceclaims/status",), (*READ_VERBS, "patch", "update")),
    RbacRule("events.k8s.io", ("events",), ("create", "patch", "update")),
    RbacRule("config.koordinator.sh", ("*",), _ALL_VERBS),
    RbacRule("slo.koordinator.sh", ("*",), _ALL_VERBS),
    RbacRule("scheduling.koordinator.sh", ("*",), _ALL_VERBS),
    RbacRule("topology.node.k8s.io", ("*",), _ALL_VERBS),
    RbacRule("scheduling.sigs.k8s.io", ("*",), _ALL_VERBS),
)
