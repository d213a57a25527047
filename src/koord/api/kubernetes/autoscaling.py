"""This module is the kind HorizontalPodAutoscaler of autoscaling/v2, as far as programs here read it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from koord.api.kubernetes.meta import Condition, Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import QuantityText, Submodel
from koord.api.schema_markers import REQUIRED, never_omitted


class CrossVersionObjectReference(Submodel, frozen=True, kw_only=True):
    kind: Annotated[str, REQUIRED] = never_omitted("")
    name: Annotated[str, REQUIRED] = never_omitted("")
    api_version: str = ""


class MetricTarget(Submodel, frozen=True, kw_only=True):
    type: str = ""  # Utilization, AverageValue, Value
    average_utilization: int | None = None  # percent of requests
    average_value: QuantityText | None = None


class ResourceMetricSource(Submodel, frozen=True, kw_only=True):
    name: str = ""
    target: MetricTarget = MetricTarget()


class MetricSpec(Submodel, frozen=True, kw_only=True):
    type: str = ""  # Resource; ContainerResource, Pods, Object and External need metrics that nobody here has
    resource: ResourceMetricSource | None = None


class ScalingPolicy(Submodel, frozen=True, kw_only=True):
    type: str = ""  # Pods, Percent
    value: int = 0
    period_seconds: int = 0


class ScalingRules(Submodel, frozen=True, kw_only=True):
    stabilization_window_seconds: int | None = None
    select_policy: str = "Max"  # Max, Min, Disabled
    policies: tuple[ScalingPolicy, ...] = ()


class ScalingBehavior(Submodel, frozen=True, kw_only=True):
    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None


class HorizontalPodAutoscalerSpec(Submodel, frozen=True, kw_only=True):
    scale_target_ref: CrossVersionObjectReference = CrossVersionObjectReference()
    min_replicas: int = 1
    max_replicas: int = 0
    metrics: tuple[MetricSpec, ...] = ()
    behavior: ScalingBehavior | None = None


class HorizontalPodAutoscalerStatus(Submodel, frozen=True, kw_only=True):
    observed_generation: int = 0
    last_scale_time: datetime | None = None
    current_replicas: int = 0
    desired_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class HorizontalPodAutoscaler(Object, frozen=True, kw_only=True):
    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()


HORIZONTAL_POD_AUTOSCALERS = Resource.named_like_model(
    "autoscaling",
    "v2",
    HorizontalPodAutoscaler,
    "horizontalpodautoscalers",
    ("hpa",),
    namespaced=True,
    status=True,
)
