"""The OOMScoreAdj hook: which containers the kernel kills first when memory is short, by annotations of the pod.

A value by container beats that of the whole pod. A value that cannot be used leaves the container as it is, even where
the pod has a value: whoever named the container wanted something else for it.
"""

from __future__ import annotations

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.qos_codecs import container_oom_score_adj
from koord.koordlet.hooks.hook import NOTHING, ContainerContext, HookPlan, NodeRules

NAME = "OOMScoreAdj"


def decide_container(container: ContainerContext, rules: NodeRules) -> HookPlan:
    if container.is_sandbox:
        return NOTHING
    found = container_oom_score_adj(container.pod.annotations, container.name)
    return HookPlan(problem=str(found)) if isinstance(found, MalformedAnnotation) else HookPlan(oom_score_adj=found)
