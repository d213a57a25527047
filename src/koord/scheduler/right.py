"""Define what koord-scheduler may do on an API server, beside Kubernetes' own scheduler roles."""

from __future__ import annotations

from koord.api.protocol import NAMESPACE
from koord.api.right import READ, Right

# Every cluster with RBAC has these; they hold what kube-scheduler itself needs.
BOUND_ROLES = ("system:kube-scheduler", "system:volume-scheduler")

_EVERYTHING = (*READ, "create", "update", "patch", "delete")

RIGHTS: tuple[Right, ...] = (
    Right("coordination.k8s.io", ("leases",), ("create",), namespace=NAMESPACE),
    Right("coordination.k8s.io", ("leases",), ("get", "update", "patch"), namespace=NAMESPACE),
    Right("", ("pods",), (*READ, "patch", "update", "delete")),
    Right("", ("pods/status",), ("patch", "update")),
    Right("", ("pods/binding", "pods/eviction"), ("create",)),
    Right("", ("nodes",), (*READ, "patch")),
    Right("", ("configmaps", "namespaces"), READ),
    Right("apiextensions.k8s.io", ("customresourcedefinitions",), READ),
    Right(
        "storage.k8s.io",
        ("csidrivers", "csinodes", "csistoragecapacities", "storageclasses", "volumeattachments"),
        READ,
    ),
    Right("resource.k8s.io", ("resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses"), READ),
    Right("resource.k8s.io", ("resourceclaims/status",), (*READ, "patch", "update")),
    Right("events.k8s.io", ("events",), ("create", "patch", "update")),
    Right("config.koordinator.sh", ("*",), _EVERYTHING),
    Right("slo.koordinator.sh", ("*",), _EVERYTHING),
    Right("scheduling.koordinator.sh", ("*",), _EVERYTHING),
    Right("topology.node.k8s.io", ("*",), _EVERYTHING),
    Right("scheduling.sigs.k8s.io", ("*",), _EVERYTHING),
)
