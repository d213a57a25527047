"""This module computes how a node's CPU and memory are divided between prod, mid and batch pods: requested, used and
lent. Pure.

Free pods use the same leftovers as batch pods and are counted with them. Amounts are milli-cores and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import cast

import msgspec

from koord.api.annotations import pod_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.pod_codecs import MetricInterference
from koord.api.koordinator.protocol import BATCH, FREE, MID
from koord.api.koordinator.resource_name import (
    BATCH_CPU,
    BATCH_MEMORY,
    CPU,
    MEMORY,
    MID_CPU,
    MID_MEMORY,
    TIER_RESOURCE_NAMES,
)
from koord.api.kubernetes.pod import PodSpec
from koord.api.kubernetes.pod_resources import pod_requests
from koord.manager.colocation.models import (
    ColocationNode,
    ColocationNodeMetric,
    ColocationPod,
    ComputeResources,
    pod_share_of,
)
from koord.values.quantity import Quantity, QuantityError

_TIER_RESOURCES = {CPU: (CPU, MID_CPU, BATCH_CPU), MEMORY: (MEMORY, MID_MEMORY, BATCH_MEMORY)}
TOTAL = "TOTAL"  # no node can have this name
_ACTIVE_PHASES = ("Running", "Pending")


class TierUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One tier. `room` is what its pods may request on the node: allocatable, or what is lent."""

    room: int = 0
    requested: int = 0
    used: int = 0

    def __add__(self, other: TierUsage) -> TierUsage:
        return TierUsage(
            room=self.room + other.room, requested=self.requested + other.requested, used=self.used + other.used
        )


class ResourceTierUsage(msgspec.Struct, frozen=True, kw_only=True):
    capacity: int = 0
    used: int = 0  # by everything on the node
    system: int = 0  # used outside of pods
    prod: TierUsage = TierUsage()
    mid: TierUsage = TierUsage()
    batch: TierUsage = TierUsage()

    def __add__(self, other: ResourceTierUsage) -> ResourceTierUsage:
        return ResourceTierUsage(
            capacity=self.capacity + other.capacity,
            used=self.used + other.used,
            system=self.system + other.system,
            prod=self.prod + other.prod,
            mid=self.mid + other.mid,
            batch=self.batch + other.batch,
        )


class NodeTierUsage(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cpu: ResourceTierUsage = ResourceTierUsage()
    memory: ResourceTierUsage = ResourceTierUsage()
    reported: datetime | None = None  # None: nothing is known of its use


def node_tier_usage(
    node: ColocationNode, pods: Iterable[ColocationPod], metric: ColocationNodeMetric | None
) -> NodeTierUsage:
    """Return the tier usage of a node; `pods` are those on the node."""
    tiers: dict[tuple[str, str], str] = {}
    asked: dict[tuple[str, str], int] = {}  # (tier, resource)
    for pod in pods:
        if pod.status.phase not in _ACTIVE_PHASES:
            continue
        tier = _tier(pod_share_of(pod).priority_class)
        tiers[pod.metadata.namespace, pod.metadata.name] = tier
        requests = pod_requests(cast(PodSpec, pod.spec))
        for resource, names in _TIER_RESOURCES.items():
            amount = requests.get(names[_TIER_INDEX[tier]], 0)
            asked[tier, resource] = asked.get((tier, resource), 0) + amount
    used, at = _used_by_tier(metric, tiers)

    def resource_usage(resource: str, whole: int) -> ResourceTierUsage:
        prod, mid, batch = (
            TierUsage(
                room=_parse_amount(
                    node.status.allocatable.get(_TIER_RESOURCES[resource][place]), resource if not place else ""
                ),
                requested=asked.get((tier, resource), 0),
                used=_amount_of(used.get(tier), resource),
            )
            for tier, place in _TIER_INDEX.items()
        )
        return ResourceTierUsage(
            capacity=whole,
            used=_amount_of(used.get(TOTAL), resource),
            system=_amount_of(used.get(_SYSTEM), resource),
            prod=prod,
            mid=mid,
            batch=batch,
        )

    capacity = node.status.capacity
    return NodeTierUsage(
        name=node.metadata.name,
        cpu=resource_usage(CPU, _parse_amount(capacity.get(CPU), CPU)),
        memory=resource_usage(MEMORY, _parse_amount(capacity.get(MEMORY), MEMORY)),
        reported=at,
    )


def total_tier_usage(shares: Sequence[NodeTierUsage]) -> NodeTierUsage:
    cpu, memory = ResourceTierUsage(), ResourceTierUsage()
    for one in shares:
        cpu, memory = cpu + one.cpu, memory + one.memory
    return NodeTierUsage(name=TOTAL, cpu=cpu, memory=memory)


_SYSTEM = "system"
_TIER_INDEX = {"prod": 0, "mid": 1, "batch": 2}


def _tier(priority_class: str) -> str:
    if priority_class in (BATCH, FREE):
        return "batch"
    return "mid" if priority_class == MID else "prod"


def _used_by_tier(
    metric: ColocationNodeMetric | None, tiers: dict[tuple[str, str], str]
) -> tuple[dict[str, ComputeResources], datetime | None]:
    """Return usage by tier, of the system and of the node, and when it was reported; an unreadable report counts as
    none.

    The node's usage is an average over minutes, which has pods that are gone by now. So the system's usage is what the
    report says of it and of host applications, and never what the pods of the report leave of the node's.
    """
    if metric is None or metric.status.update_time is None or metric.status.node_metric is None:
        return {}, None
    used: dict[str, ComputeResources] = {}
    try:
        for sample in metric.status.pods_metric:
            tier = tiers.get((sample.namespace, sample.name)) or _tier(sample.priority)
            used[tier] = used.get(tier, ComputeResources()) + ComputeResources.parse(sample.pod_usage.resources)
        used[TOTAL] = ComputeResources.parse(metric.status.node_metric.node_usage.resources)
        used[_SYSTEM] = ComputeResources.parse(metric.status.node_metric.system_usage.resources)
        for application in metric.status.host_application_metric:
            used[_SYSTEM] += ComputeResources.parse(application.usage.resources)
    except QuantityError:
        return {}, None
    return used, metric.status.update_time


def _amount_of(amount: ComputeResources | None, resource: str) -> int:
    if amount is None:
        return 0
    return amount.cpu.milli_value() if resource == CPU else amount.memory.value()


def _parse_amount(text: str | int | float | None, resource: str) -> int:
    """Parse an amount; batch-cpu and mid-cpu are in milli-cores as written."""
    if text is None:
        return 0
    quantity = Quantity.parse(text)
    return quantity.milli_value() if resource == CPU else quantity.value()


class PodTierUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and usage of one pod. Used amounts are None without a report. `disturbed` is interference by metric."""

    namespace: str
    name: str
    node: str
    qos: str
    priority_class: str
    priority: int | None
    cpu_requested: int
    cpu_used: int | None = None
    memory_requested: int
    memory_used: int | None = None
    disturbed: dict[str, MetricInterference] = {}
    reported: datetime | None = None  # by its node


def pod_tier_usages(pods: Iterable[ColocationPod], metrics: Mapping[str, ColocationNodeMetric]) -> list[PodTierUsage]:
    """Return the usage of running and pending pods; `metrics` by node."""
    reports = {name: _used_by_pod(metric) for name, metric in metrics.items()}
    return [
        _pod_tier_usage(pod, *reports.get(pod.spec.node_name, ({}, None)))
        for pod in pods
        if pod.status.phase in _ACTIVE_PHASES
    ]


def _pod_tier_usage(
    pod: ColocationPod, used: Mapping[tuple[str, str], ComputeResources], reported: datetime | None
) -> PodTierUsage:
    share, meta = pod_share_of(pod), pod.metadata
    asked = pod_requests(cast(PodSpec, pod.spec))
    names = TIER_RESOURCE_NAMES.get(BATCH if share.priority_class == FREE else share.priority_class, {})
    found = used.get((meta.namespace, meta.name))
    disturbed = pod_codecs.parse_interference(meta.annotations)
    return PodTierUsage(
        namespace=meta.namespace,
        name=meta.name,
        node=pod.spec.node_name,
        qos=share.qos,
        priority_class=share.priority_class,
        priority=pod.spec.priority,
        cpu_requested=asked.get(names.get(CPU, CPU), asked.get(CPU, 0)),
        cpu_used=None if found is None else found.cpu.milli_value(),
        memory_requested=asked.get(names.get(MEMORY, MEMORY), asked.get(MEMORY, 0)),
        memory_used=None if found is None else found.memory.value(),
        disturbed={} if disturbed is None or isinstance(disturbed, MalformedAnnotation) else disturbed,
        reported=reported,
    )


def _used_by_pod(metric: ColocationNodeMetric) -> tuple[dict[tuple[str, str], ComputeResources], datetime | None]:
    """Return usage by namespace and name. An unreadable report counts as none."""
    status = metric.status
    try:
        used = {
            (one.namespace, one.name): ComputeResources.parse(one.pod_usage.resources) for one in status.pods_metric
        }
    except QuantityError:
        return {}, None
    return used, status.update_time
