"""The OOMScoreAdj hook: which containers the kernel kills first when memory is short, by annotations of the pod.

A value by container beats that of the whole pod. A value that cannot be used leaves the container as it is, even where
the pod has a value: whoever named the container wanted something else for it.
"""

from __future__ import annotations

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.qos_codecs import container_oom_score_adj
from koord.api.koordinator.protocol import BEST_EFFORT, GUARANTEED
from koord.koordlet.hooks.hook import NOTHING, ContainerContext, HookPlan, NodeRules

NAME = "OOMScoreAdj"
_NODE_CRITICAL = 2_000_001_000  # the priority of system-node-critical
_LAST, _FIRST = -997, 1000  # to be killed


def decide_container(container: ContainerContext, rules: NodeRules) -> HookPlan:
    if container.is_sandbox:
        return NOTHING
    found = container_oom_score_adj(container.pod.annotations, container.name)
    return HookPlan(problem=str(found)) if isinstance(found, MalformedAnnotation) else HookPlan(oom_score_adj=found)


def kubelet_oom_score_adj(kube_qos: str, priority: int | None, request_bytes: int, capacity_bytes: int) -> int:
    """Return what the kubelet gives a container by itself: the more memory it requested, the later it is killed."""
    if kube_qos == GUARANTEED or (priority is not None and priority >= _NODE_CRITICAL):
        return _LAST
    if kube_qos == BEST_EFFORT:
        return _FIRST
    return min(max(2, 1000 - 1000 * request_bytes // max(capacity_bytes, 1)), _FIRST - 1)
