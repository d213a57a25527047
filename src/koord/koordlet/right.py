"""The RBAC rules of koordlet: read its node, its NodeSLO and its pods, report, and evict."""

from __future__ import annotations

from koord.api.right import READ, Right

RIGHTS: tuple[Right, ...] = (
    Right("", ("nodes", "pods"), READ),
    Right("", ("nodes/status",), ("patch",)),  # conditions of what the kernel supports
    Right("", ("nodes/proxy",), ("get",)),  # the kubelet's /pods and /configz
    Right("", ("persistentvolumeclaims",), ("get",)),  # of pods that want disk limits on their volumes
    Right("", ("pods/eviction",), ("create",)),
    Right("events.k8s.io", ("events",), ("create", "patch", "update")),
    Right("slo.koordinator.sh", ("nodeslos", "nodemetrics"), READ),
    Right("slo.koordinator.sh", ("nodemetrics/status",), ("patch",)),
    Right("scheduling.koordinator.sh", ("devices",), (*READ, "create", "patch")),
    Right("topology.node.k8s.io", ("noderesourcetopologies",), (*READ, "create", "patch")),
)
# With --tell-interference: the annotation on pods that others disturb.
TELLING: tuple[Right, ...] = (Right("", ("pods",), ("patch",)),)
