"""What koord-descheduler may do on an API server: read what it weighs, make jobs and reservations, evict pods."""

from __future__ import annotations

from koord.api.protocol import NAMESPACE
from koord.api.right import READ, Right

RIGHTS: tuple[Right, ...] = (
    Right("coordination.k8s.io", ("leases",), ("create", "get", "update", "patch"), namespace=NAMESPACE),
    Right("", ("pods",), (*READ, "patch", "delete")),  # patch: costs and soft evictions; delete: that policy
    Right("", ("pods/eviction",), ("create",)),
    Right("", ("nodes",), (*READ, "patch")),  # patch: cordons
    Right("", ("namespaces", "replicationcontrollers", "persistentvolumeclaims"), READ),
    Right("apps", ("deployments", "replicasets", "statefulsets"), READ),
    Right("policy", ("poddisruptionbudgets",), READ),
    Right("scheduling.k8s.io", ("priorityclasses",), READ),
    Right("events.k8s.io", ("events",), ("create", "patch", "update")),
    Right("slo.koordinator.sh", ("nodemetrics",), READ),
    Right("scheduling.koordinator.sh", ("podmigrationjobs",), (*READ, "create", "patch", "delete")),
    Right("scheduling.koordinator.sh", ("podmigrationjobs/status",), ("patch",)),
    Right("scheduling.koordinator.sh", ("reservations",), (*READ, "create", "patch", "delete")),
)
