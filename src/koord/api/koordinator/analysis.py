"""This module holds analysis.koordinator.sh/v1alpha1: how much a workload should request."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from koord.api.kubernetes.autoscaling import CrossVersionObjectReference
from koord.api.kubernetes.meta import Condition, LabelSelector, Object
from koord.api.model import Submodel
from koord.api.schema_markers import NULLABLE, REQUIRED, ResourceList, SchemaRule, never_omitted

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
