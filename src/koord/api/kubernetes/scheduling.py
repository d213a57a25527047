"""This module holds scheduling.k8s.io/v1 PriorityClass and node.k8s.io/v1 RuntimeClass, which admission copies
into pods.
"""

from __future__ import annotations

from koord.api.kubernetes.affinity import Toleration
from koord.api.kubernetes.meta import Object
from koord.api.model import ResourceList, Submodel


class PriorityClass(Object, frozen=True, kw_only=True):
    value: int = 0
    global_default: bool = False
    description: str = ""
    preemption_policy: str | None = None  # PreemptLowerPriority, Never


class RuntimeOverhead(Submodel, frozen=True, kw_only=True):
    pod_fixed: ResourceList = {}


class RuntimeScheduling(Submodel, frozen=True, kw_only=True):
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


class RuntimeClass(Object, frozen=True, kw_only=True):
    handler: str = ""
    overhead: RuntimeOverhead | None = None
    scheduling: RuntimeScheduling | None = None
