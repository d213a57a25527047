"""TaintToleration rejects nodes with taints that a pod does not tolerate, and prefers nodes with fewer soft
taints.

The matching of taints and tolerations is shared with other plugins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from koord.api.affinity import Toleration
from koord.scheduler.state.column import Coded
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import NodeTable

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
# Effects that keep a pod off a node.
REPELLING = frozenset((NO_SCHEDULE, NO_EXECUTE))

# (key, value, effect): when a taint was added changes nothing here, and would make every node's taints its own.
TaintKey = tuple[str, str, str]
TaintSet = tuple[TaintKey, ...]


def taint_set(taints: Iterable[Any]) -> TaintSet:
    return tuple((taint.key, taint.value, taint.effect) for taint in taints)


def taints_of(node: NodeInfo) -> TaintSet:
    return taint_set(node.node.spec.taints) if node.node is not None else ()


def taint_sets(table: NodeTable) -> Coded:
    """Return each node's taints as codes: clusters have thousands of nodes and a handful of different taint sets."""
    return table.coded("taints", taints_of)


def tolerates(toleration: Toleration, taint: TaintKey) -> bool:
    """Return whether the toleration matches the taint.

    Comparison operators (Gt, Lt) belong to a feature gate that is off in Kubernetes 1.35, so they tolerate
    nothing.
    """
    key, value, effect = taint
    if toleration.effect and toleration.effect != effect:
        return False
    if toleration.key and toleration.key != key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == value
    return toleration.operator == "Exists"


def tolerated(tolerations: Iterable[Toleration], taint: TaintKey) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def repels(taints: TaintSet, tolerations: tuple[Toleration, ...]) -> bool:
    """Return whether any taint that keeps pods off a node is not tolerated."""
    return any(taint[2] in REPELLING and not tolerated(tolerations, taint) for taint in taints)
