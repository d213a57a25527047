"""Requests and usage of each pod in its tier's resources, from the last NodeMetric of its node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import cast

import msgspec

from koord.api.annotations import interference
from koord.api.annotations.codec import Malformed
from koord.api.annotations.interference import Disturbance
from koord.api.pod import PodSpec
from koord.api.pod_resources import pod_requests
from koord.api.qos_class import BATCH, FREE
from koord.api.resource_name import CPU, MEMORY, TIERS
from koord.policy.colocation.amount import Compute
from koord.policy.colocation.wire import NodeMetric, Pod, share_of
from koord.values.quantity import QuantityError

_HOLDING = ("Running", "Pending")


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and usage of one pod. Used amounts are None without a report. `disturbed` is interference by
    metric.
    """

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
    disturbed: dict[str, Disturbance] = {}
    reported: datetime | None = None  # by its node


def pod_uses(pods: Iterable[Pod], metrics: Mapping[str, NodeMetric]) -> list[PodUse]:
    """Return the usage of running and pending pods; `metrics` by node."""
    reports = {name: _report(metric) for name, metric in metrics.items()}
    return [_use(pod, *reports.get(pod.spec.node_name, ({}, None))) for pod in pods if pod.status.phase in _HOLDING]


def _use(pod: Pod, used: Mapping[tuple[str, str], Compute], reported: datetime | None) -> PodUse:
    share, meta = share_of(pod), pod.metadata
    asked = pod_requests(cast(PodSpec, pod.spec))
    names = TIERS.get(BATCH if share.priority_class == FREE else share.priority_class, {})
    found = used.get((meta.namespace, meta.name))
    disturbed = interference.parse(meta.annotations)
    return PodUse(
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
        disturbed={} if disturbed is None or isinstance(disturbed, Malformed) else disturbed,
        reported=reported,
    )


def _report(metric: NodeMetric) -> tuple[dict[tuple[str, str], Compute], datetime | None]:
    """Return usage by namespace and name. An unreadable report counts as none."""
    status = metric.status
    try:
        used = {(one.namespace, one.name): Compute.of(one.pod_usage.resources) for one in status.pods_metric}
    except QuantityError:
        return {}, None
    return used, status.update_time
