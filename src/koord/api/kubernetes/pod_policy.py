"""This module holds the kinds that rule pods from outside: policy/v1 PodDisruptionBudget and Eviction, and
scheduling.k8s.io/v1 PriorityClass and node.k8s.io/v1 RuntimeClass, which admission copies into pods.
"""

from __future__ import annotations

from datetime import datetime

from koord.api.kubernetes.affinity import Toleration
from koord.api.kubernetes.meta import Condition, DeleteOptions, LabelSelector, Object
from koord.api.model import IntOrString, ResourceList, Submodel


class PodDisruptionBudgetSpec(Submodel, frozen=True, kw_only=True):
    """PodDisruptionBudgetSpec selects pods: a null selector matches none, an empty one matches all of the
    namespace.
    """

    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None  # IfHealthyBudget, AlwaysAllow


class PodDisruptionBudgetStatus(Submodel, frozen=True, kw_only=True):
    observed_generation: int = 0
    disrupted_pods: dict[str, datetime | None] = {}
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    conditions: tuple[Condition, ...] = ()


class PodDisruptionBudget(Object, frozen=True, kw_only=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class Eviction(Object, frozen=True, kw_only=True):
    delete_options: DeleteOptions | None = None


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
