"""This module evaluates a node's load report (good enough to lend by, or the reason why it is not), and computes what
is taken before anything is lent: reserved by kubelet or operator, and used or requested by pods.

The sums are made once for the whole node and, where its NUMA zones are known, once more for each zone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import BATCH, FREE, LSE, PRIORITY_BANDS
from koord.manager.colocation.models import (
    NO_COMPUTE,
    ColocationMetricStatus,
    ColocationNodeMetric,
    ComputeResources,
    PodShare,
)
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.quantity import Quantity, QuantityError
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


RECLAIMED_CLASSES = (BATCH, FREE)  # these pods run on reclaimed resources and do not reduce them


class NodeReserved(msgspec.Struct, frozen=True, kw_only=True):
    kubelet: ComputeResources = NO_COMPUTE  # capacity less allocatable
    annotated: ComputeResources = NO_COMPUTE
    ignored: str = ""  # why the annotation has no effect

    @property
    def total(self) -> ComputeResources:
        return self.kubelet.maximum(self.annotated)


class HighPriorityConsumption(msgspec.Struct, frozen=True, kw_only=True):
    """The consumption of the pods that rank above batch and free."""

    used: ComputeResources = NO_COMPUTE
    requested: ComputeResources = NO_COMPUTE
    larger: ComputeResources = NO_COMPUTE  # the larger of usage and request, pod by pod
    estimated: tuple[PodKey, ...] = ()  # pods without a sample, whose request stands for their usage
    dangling: tuple[PodKey, ...] = ()  # samples of pods that are not there (any more)


def node_reserved(
    capacity: ComputeResources, allocatable: ComputeResources, annotations: Mapping[str, str]
) -> NodeReserved:
    kubelet = (capacity - allocatable).floor_zero()
    given = node_codecs.parse_node_reservation(annotations)
    if given is None:
        return NodeReserved(kubelet=kubelet)
    if isinstance(given, MalformedAnnotation):
        return NodeReserved(kubelet=kubelet, ignored=str(given))
    wanted = {name: given.resources[name] for name in (CPU, MEMORY) if name in given.resources}
    if given.reserved_cpus:
        try:
            wanted[CPU] = len(CPUSet.parse(given.reserved_cpus))
        except CPUSetError as error:
            return NodeReserved(kubelet=kubelet, ignored=f"reservedCPUs: {error}")
    return NodeReserved(kubelet=kubelet, annotated=ComputeResources.parse(wanted))


def node_consumption(pods: Sequence[PodShare], samples: Mapping[PodKey, PodSample]) -> HighPriorityConsumption:
    """Sum the consumption of the node. A pod without a sample counts its request as used, but not in the larger-of-both
    sum.

    That is upstream's number; the sum over zones includes it in both.
    """
    used, requested, larger = _ComputeSum(), _ComputeSum(), _ComputeSum()
    estimated: list[PodKey] = []
    unseen = dict(samples)
    for pod in pods:
        key = (pod.namespace, pod.name)
        sample = unseen.pop(key, None)
        if pod.priority_class in RECLAIMED_CLASSES:
            continue
        request = pod.request
        requested.add(request)
        if sample is None:
            used.add(request)
            estimated.append(key)
            continue
        used.add(ComputeResources(request.cpu, sample.usage.memory) if pod.qos == LSE else sample.usage)
        larger.add(request.maximum(sample.usage))
    dangling = tuple(key for key, sample in unseen.items() if sample.priority not in RECLAIMED_CLASSES)
    for key in dangling:
        used.add(unseen[key].usage)
        larger.add(unseen[key].usage)
    return HighPriorityConsumption(
        used=used.total(),
        requested=requested.total(),
        larger=larger.total(),
        estimated=tuple(estimated),
        dangling=dangling,
    )


def zone_consumption(
    pods: Sequence[PodShare], samples: Mapping[PodKey, PodSample], zones: int
) -> tuple[HighPriorityConsumption, ...]:
    """Sum per zone: a pod counts in the zones that it was given, and equally in all when it was given none."""
    used, requested, larger = (tuple(_ComputeSum() for _ in range(zones)) for _ in range(3))
    unseen = dict(samples)
    for pod in pods:
        sample = unseen.pop((pod.namespace, pod.name), None)
        if pod.priority_class in RECLAIMED_CLASSES:
            continue
        places = [zone for zone in pod.zones if 0 <= zone < zones] or range(zones)
        request = pod.request.split(len(places))
        usage = request if sample is None else sample.usage.split(len(places))
        counted = ComputeResources(request.cpu, usage.memory) if pod.qos == LSE else usage
        both = request.maximum(usage)
        for zone in places:
            requested[zone].add(request)
            used[zone].add(counted)
            larger[zone].add(both)
    for sample in unseen.values():
        if sample.priority in RECLAIMED_CLASSES:
            continue
        usage = sample.usage.split(zones)
        for zone in range(zones):
            used[zone].add(usage)
            larger[zone].add(usage)
    return tuple(
        HighPriorityConsumption(used=used[z].total(), requested=requested[z].total(), larger=larger[z].total())
        for z in range(zones)
    )


class _ComputeSum:
    """Adds up without an object for every intermediate sum."""

    __slots__ = ("_cpu", "_memory")

    def __init__(self) -> None:
        self._cpu: Quantity = NO_COMPUTE.cpu
        self._memory: Quantity = NO_COMPUTE.memory

    def add(self, amount: ComputeResources) -> None:
        self._cpu += amount.cpu
        self._memory += amount.memory

    def total(self) -> ComputeResources:
        return ComputeResources(self._cpu, self._memory)
