"""Evaluate a node's load report: good enough to lend by, or the reason why it is not."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from koord.api.koordinator.qos_class import PRIORITY_BANDS
from koord.manager.colocation.models import NO_COMPUTE, ColocationMetricStatus, ColocationNodeMetric, ComputeResources
from koord.values.quantity import QuantityError
from koord.values.resources import CPU, MEMORY
from koord.values.timestamp import text

PodKey = tuple[str, str]  # namespace and name
DegradeCause = Literal["Missing", "NeverReported", "Expired", "FromTheFuture", "Incomplete", "Unreadable", "Negative"]

EXPECTED_CAUSES: tuple[DegradeCause, ...] = ("Missing", "NeverReported")  # a node whose koordlet did not start yet


class DegradedMetric(msgspec.Struct, frozen=True):
    """The reason why nothing is lent by this report."""

    cause: DegradeCause
    detail: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.detail}"


class PodSample(msgspec.Struct, frozen=True, gc=False):
    usage: ComputeResources
    priority: str


class HostApplicationSample(msgspec.Struct, frozen=True):
    name: str
    usage: ComputeResources
    priority: str

    @property
    def priority_value(self) -> int:
        """Return the default value of its priority class; an unknown class counts as the lowest."""
        band = PRIORITY_BANDS.get(self.priority)
        return 0 if band is None else band.default


class NodeMetricSample(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    node_usage: ComputeResources | None = None  # None unless both CPU and memory are reported
    system_usage: ComputeResources = NO_COMPUTE
    pods: dict[PodKey, PodSample] = {}
    applications: tuple[HostApplicationSample, ...] = ()
    prod_reclaimable: ComputeResources | None = None

    def host_usage_above(self, priority: int) -> ComputeResources:
        """Return the usage of host applications that outrank `priority`."""
        total = NO_COMPUTE
        for application in self.applications:
            if application.priority_value > priority:
                total += application.usage
        return total


def evaluate_metric(
    metric: ColocationNodeMetric | None, now: datetime, degrade_minutes: int
) -> NodeMetricSample | DegradedMetric:
    """Evaluate the report. One that is too old, or cannot be true, is not used: it would lend what is in use."""
    if metric is None:
        return DegradedMetric("Missing", "there is no NodeMetric of this node")
    status = metric.status
    if status.update_time is None:
        return DegradedMetric("NeverReported", "the NodeMetric has no updateTime: its koordlet did not report yet")
    patience = timedelta(minutes=degrade_minutes)
    if now > status.update_time + patience:
        return DegradedMetric(
            "Expired", f"last reported at {text(status.update_time)}, more than {degrade_minutes} minutes ago"
        )
    # A clock that is a little ahead does no harm. One that is far ahead would keep a dead koordlet's report fresh.
    if status.update_time > now + max(patience, timedelta(minutes=1)):
        return DegradedMetric("FromTheFuture", f"reported at {text(status.update_time)}, which has not come yet")
    return _read_status(status, status.update_time)


def _read_status(status: ColocationMetricStatus, at: datetime) -> NodeMetricSample | DegradedMetric:
    measured = status.node_metric
    if measured is None:
        return DegradedMetric("Incomplete", "the report has no nodeMetric")
    part = "nodeMetric"
    try:
        node = measured.node_usage.resources
        node_usage = ComputeResources.parse(node)
        system = ComputeResources.parse(measured.system_usage.resources)
        pods: dict[PodKey, PodSample] = {}
        for pod in status.pods_metric:
            part = f"podsMetric of {pod.namespace}/{pod.name}"
            sample = PodSample(ComputeResources.parse(pod.pod_usage.resources), pod.priority)
            if sample.usage.is_negative():
                return _negative(part, sample.usage)
            pods[pod.namespace, pod.name] = sample
        part = "hostApplicationMetric"
        applications = tuple(
            HostApplicationSample(a.name, ComputeResources.parse(a.usage.resources), a.priority)
            for a in status.host_application_metric
        )
        part = "prodReclaimableMetric"
        predicted = status.prod_reclaimable_metric
        reclaimable = None if predicted is None else ComputeResources.parse(predicted.resource.resources)
    except QuantityError as error:
        return DegradedMetric("Unreadable", f"{part}: {error}")
    judged = (("nodeUsage", node_usage), ("systemUsage", system), *((f"host {a.name}", a.usage) for a in applications))
    for part, usage in judged:
        if usage.is_negative():
            return _negative(part, usage)
    return NodeMetricSample(
        at=at,
        node_usage=node_usage if CPU in node and MEMORY in node else None,
        system_usage=system,
        pods=pods,
        applications=applications,
        prod_reclaimable=reclaimable,
    )


def _negative(part: str, usage: ComputeResources) -> DegradedMetric:
    return DegradedMetric("Negative", f"{part} reports cpu {usage.cpu}, memory {usage.memory}")
