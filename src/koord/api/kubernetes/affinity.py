"""This module holds the core/v1 types of placement: selectors, affinity, taints, tolerations, topology spread."""

from __future__ import annotations

from datetime import datetime

from koord.api.kubernetes.meta import LabelSelector
from koord.api.model import Submodel


class NodeSelectorRequirement(Submodel, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""  # In, NotIn, Exists, DoesNotExist, Gt, Lt
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Submodel, frozen=True, kw_only=True):
    """NodeSelectorTerm matches when all its requirements hold; a term with none matches nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Submodel, frozen=True, kw_only=True):
    """NodeSelector matches when one of its terms does."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Submodel, frozen=True, kw_only=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Submodel, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(Submodel, frozen=True, kw_only=True):
    """PodAffinityTerm selects pods by label: a null selector matches no pod, an empty one matches all of them."""

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    topology_key: str = ""
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Submodel, frozen=True, kw_only=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Submodel, frozen=True, kw_only=True):
    """PodAffinity is the shape of podAffinity and of podAntiAffinity."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(Submodel, frozen=True, kw_only=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Taint(Submodel, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""  # NoSchedule, PreferNoSchedule, NoExecute
    time_added: datetime | None = None


class Toleration(Submodel, frozen=True, kw_only=True):
    key: str = ""  # empty with operator Exists tolerates every taint
    operator: str = ""  # Equal when empty
    value: str = ""
    effect: str = ""  # empty matches every effect
    toleration_seconds: int | None = None


class TopologySpreadConstraint(Submodel, frozen=True, kw_only=True):
    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""  # DoNotSchedule, ScheduleAnyway
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None  # Honor when absent
    node_taints_policy: str | None = None  # Ignore when absent
    match_label_keys: tuple[str, ...] = ()


class TopologySelectorLabelRequirement(Submodel, frozen=True, kw_only=True):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Submodel, frozen=True, kw_only=True):
    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()
