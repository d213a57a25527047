"""This module holds the kinds that the manager acts on: profiles of config.koordinator.sh/v1alpha1, which the pod
webhook puts on matching pods, and of quota.koordinator.sh/v1alpha1, from which it keeps the root quota of a node
pool; and analysis.koordinator.sh/v1alpha1, how much a workload should request.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from koord.api.kubernetes.meta import Condition, LabelSelector, Object
from koord.api.kubernetes.workload import CrossVersionObjectReference
from koord.api.model import Submodel
from koord.api.schema_markers import (
    NULLABLE,
    PRESERVE_UNKNOWN,
    REQUIRED,
    Int32,
    IntOrString,
    ResourceList,
    SchemaRule,
    never_omitted,
)


class ClusterColocationProfileSpec(Submodel, frozen=True, kw_only=True):
    """An absent or empty selector matches every pod: here null does not mean nothing, as it does elsewhere."""

    namespace_selector: LabelSelector | None = None
    selector: LabelSelector | None = None
    probability: IntOrString | None = None
    qos_class: Annotated[str, SchemaRule(enum=("LSE", "LSR", "LS", "BE", "SYSTEM"))] = ""
    priority_class_name: str = ""
    koordinator_priority: Int32 | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    label_keys_mapping: dict[str, str] = {}  # source key -> destination key
    annotation_keys_mapping: dict[str, str] = {}
    label_suffixes: dict[str, str] = {}
    scheduler_name: str = ""
    patch: Annotated[dict[str, Any], PRESERVE_UNKNOWN] | None = None


class ClusterColocationProfileStatus(Submodel, frozen=True, kw_only=True):
    """Empty upstream."""


class ClusterColocationProfile(Object, frozen=True, kw_only=True):
    """ClusterColocationProfile states what matching pods get at creation: a QoS class, a priority, labels, a
    scheduler, a patch.
    """

    spec: ClusterColocationProfileSpec = ClusterColocationProfileSpec()
    status: ClusterColocationProfileStatus = ClusterColocationProfileStatus()


class ElasticQuotaProfileSpec(Submodel, frozen=True, kw_only=True):
    quota_name: Annotated[str, REQUIRED] = never_omitted("")
    quota_labels: dict[str, str] = {}
    resource_ratio: str | None = None  # decimal text such as "0.9", times the pool's total
    node_selector: Annotated[LabelSelector, REQUIRED] | None = None


class ElasticQuotaProfileStatus(Submodel, frozen=True, kw_only=True):
    """Empty upstream."""


class ElasticQuotaProfile(Object, frozen=True, kw_only=True):
    """Sizes the root ElasticQuota of the selected nodes, in its own namespace."""

    spec: ElasticQuotaProfileSpec = ElasticQuotaProfileSpec()
    status: ElasticQuotaProfileStatus = ElasticQuotaProfileStatus()


TARGET_WORKLOAD = "workload"
TARGET_POD_SELECTOR = "podSelector"


class RecommendationTarget(Submodel, frozen=True, kw_only=True):
    type: Annotated[str, SchemaRule(required=True, enum=(TARGET_WORKLOAD, TARGET_POD_SELECTOR))] = never_omitted("")
    workload: CrossVersionObjectReference | None = None
    pod_selector: LabelSelector | None = None


class RecommendationSpec(Submodel, frozen=True, kw_only=True):
    target: Annotated[RecommendationTarget, REQUIRED] = never_omitted(RecommendationTarget())


class RecommendedContainerStatus(Submodel, frozen=True, kw_only=True):
    container_name: str = ""
    resources: ResourceList = {}


class RecommendedPodStatus(Submodel, frozen=True, kw_only=True):
    container_statuses: tuple[RecommendedContainerStatus, ...] = ()


class RecommendationStatus(Submodel, frozen=True, kw_only=True):
    pod_status: RecommendedPodStatus | None = None
    update_time: Annotated[datetime, NULLABLE] | None = None
    conditions: tuple[Condition, ...] = ()


class Recommendation(Object, frozen=True, kw_only=True):
    """Requests computed from the measured use of a workload or of selected pods."""

    spec: RecommendationSpec = RecommendationSpec()
    status: RecommendationStatus = RecommendationStatus()
