"""This module holds analysis.koordinator.sh/v1alpha1: how much a workload should request."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from koord.api.marker import NULLABLE, REQUIRED, ResourceList, Rule, always
from koord.api.meta import Condition, LabelSelector, Object
from koord.api.part import Part

TARGET_WORKLOAD = "workload"
TARGET_POD_SELECTOR = "podSelector"
CONDITIONS = ("LowConfidence", "NoObjectsMatched", "FetchingHistory", "ConfigDeprecated", "ConfigUnsupported")


class CrossVersionObjectReference(Part, frozen=True, kw_only=True):
    kind: Annotated[str, REQUIRED] = always("")
    name: Annotated[str, REQUIRED] = always("")
    api_version: str = ""


class RecommendationTarget(Part, frozen=True, kw_only=True):
    type: Annotated[str, Rule(required=True, enum=(TARGET_WORKLOAD, TARGET_POD_SELECTOR))] = always("")
    workload: CrossVersionObjectReference | None = None
    pod_selector: LabelSelector | None = None


class RecommendationSpec(Part, frozen=True, kw_only=True):
    target: Annotated[RecommendationTarget, REQUIRED] = always(RecommendationTarget())


class RecommendedContainerStatus(Part, frozen=True, kw_only=True):
    container_name: str = ""
    resources: ResourceList = {}


class RecommendedPodStatus(Part, frozen=True, kw_only=True):
    container_statuses: tuple[RecommendedContainerStatus, ...] = ()


class RecommendationStatus(Part, frozen=True, kw_only=True):
    pod_status: RecommendedPodStatus | None = None
    update_time: Annotated[datetime, NULLABLE] | None = None
    conditions: tuple[Condition, ...] = ()


class Recommendation(Object, frozen=True, kw_only=True):
    """Requests computed from the measured use of a workload or of selected pods."""

    spec: RecommendationSpec = RecommendationSpec()
    status: RecommendationStatus = RecommendationStatus()
