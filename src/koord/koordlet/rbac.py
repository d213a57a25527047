"""The RBAC rules of koordlet: read its node, its NodeSLO and its pods, report, and evict."""

from __future__ import annotations

from koord.api.kubernetes.rbac import READ_VERBS, RbacRule

RBAC_RULES: tuple[RbacRule, ...] = (
    RbacRule("", ("nodes", "pods"), READ_VERBS),
    RbacRule("", ("nodes/status",), ("patch",)),  # conditions of what the kernel supports
    RbacRule("", ("nodes/proxy",), ("get",)),  # the kubelet's /pods and /configz
    RbacRule("", ("persistentvolumeclaims",), ("get",)),  # of pods that want disk limits on their volumes
    RbacRule("", ("pods/eviction",), ("create",)),
    RbacRule("", ("events",), ("create", "patch")),
    RbacRule("slo.koordinator.sh", ("nodeslos", "nodemetrics"), READ_VERBS),
    RbacRule("slo.koordinator.sh", ("nodemetrics/status",), ("patch",)),
    RbacRule("scheduling.koordinator.sh", ("devices",), (*READ_VERBS, "create", "patch")),
    RbacRule("topology.node.k8s.io", ("noderesourcetopologies",), (*READ_VERBS, "create", "patch")),
)
# With --tell-interference: the annotation on pods that others disturb.
INTERFERENCE_RBAC_RULES: tuple[RbacRule, ...] = (RbacRule("", ("pods",), ("patch",)),)
