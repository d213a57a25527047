"""Evaluate a node's load report: good enough to lend by, or the reason why it is not."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from koord.api.qos_class import BANDS
from koord.policy.colocation.amount import NOTHING, Compute
from koord.policy.colocation.wire import MetricStatus, NodeMetric
from koord.values.instant import text
from koord.values.quantity import QuantityError
from koord.values.resources import CPU, MEMORY

Key = tuple[str, str]  # namespace and name
Cause = Literal["Missing", "NeverReported", "Expired", "FromTheFuture", "Incomplete", "Unreadable", "Negative"]

EXPECTED: tuple[Cause, ...] = ("Missing", "NeverReported")  # a node whose koordlet did not start yet


class Degraded(msgspec.Struct, frozen=True):
    """The reason why nothing is lent by this report."""

    cause: Cause
    detail: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.detail}"


class PodSample(msgspec.Struct, frozen=True, gc=False):
    usage: Compute
    priority: str


class HostApplication(msgspec.Struct, frozen=True):
    name: str
    usage: Compute
    priority: str

    @property
    def value(self) -> int:
        """Return the default value of its priority class; an unknown class counts as the lowest."""
        band = BANDS.get(self.priority)
        return 0 if band is None else band.default


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    node_usage: Compute | None = None  # None unless both CPU and memory are reported
    system_usage: Compute = NOTHING
    pods: dict[Key, PodSample] = {}
    applications: tuple[HostApplication, ...] = ()
    prod_reclaimable: Compute | None = None

    def applications_above(self, priority: int) -> Compute:
        """Return the usage of host applications that outrank `priority`."""
        total = NOTHING
        for application in self.applications:
            if application.value > priority:
                total += application.usage
        return total


def judge(metric: NodeMetric | None, now: datetime, degrade_minutes: int) -> Sample | Degraded:
    """Evaluate the report. One that is too old, or cannot be true, is not used: it would lend what is in use."""
    if metric is None:
        return Degraded("Missing", "there is no NodeMetric of this node")
    status = metric.status
    if status.update_time is None:
        return Degraded("NeverReported", "the NodeMetric has no updateTime: its koordlet did not report yet")
    patience = timedelta(minutes=degrade_minutes)
    if now > status.update_time + patience:
        return Degraded(
            "Expired", f"last reported at {text(status.update_time)}, more than {degrade_minutes} minutes ago"
        )
    # A clock that is a little ahead does no harm. One that is far ahead would keep a dead koordlet's report fresh.
    if status.update_time > now + max(patience, timedelta(minutes=1)):
        return Degraded("FromTheFuture", f"reported at {text(status.update_time)}, which has not come yet")
    return _read(status, status.update_time)


def _read(status: MetricStatus, at: datetime) -> Sample | Degraded:
    measured = status.node_metric
    if measured is None:
        return Degraded("Incomplete", "the report has no nodeMetric")
    part = "nodeMetric"
    try:
        node = measured.node_usage.resources
        node_usage = Compute.of(node)
        system = Compute.of(measured.system_usage.resources)
        pods: dict[Key, PodSample] = {}
        for pod in status.pods_metric:
            part = f"podsMetric of {pod.namespace}/{pod.name}"
            sample = PodSample(Compute.of(pod.pod_usage.resources), pod.priority)
            if sample.usage.negative():
                return _negative(part, sample.usage)
            pods[pod.namespace, pod.name] = sample
        part = "hostApplicationMetric"
        applications = tuple(
            HostApplication(a.name, Compute.of(a.usage.resources), a.priority) for a in status.host_application_metric
        )
        part = "prodReclaimableMetric"
        predicted = status.prod_reclaimable_metric
        reclaimable = None if predicted is None else Compute.of(predicted.resource.resources)
    except QuantityError as error:
        return Degraded("Unreadable", f"{part}: {error}")
    judged = (("nodeUsage", node_usage), ("systemUsage", system), *((f"host {a.name}", a.usage) for a in applications))
    for part, usage in judged:
        if usage.negative():
            return _negative(part, usage)
    return Sample(
        at=at,
        node_usage=node_usage if CPU in node and MEMORY in node else None,
        system_usage=system,
        pods=pods,
        applications=applications,
        prod_reclaimable=reclaimable,
    )


def _negative(part: str, usage: Compute) -> Degraded:
    return Degraded("Negative", f"{part} reports cpu {usage.cpu}, memory {usage.memory}")
