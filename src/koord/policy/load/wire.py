"""The parts of a NodeMetric that load decisions read, and their reports as vectors."""

from __future__ import annotations

from datetime import datetime

from koord.api import custom
from koord.api.meta import Object
from koord.api.part import Part, ResourceList
from koord.api.resource import Resource


class Usage(Part, frozen=True, kw_only=True):
    resources: ResourceList = {}


class AggregatedUsage(Part, frozen=True, kw_only=True):
    """One window: usage by the name of its aggregation (avg, p50 ... p99)."""

    usage: dict[str, Usage] = {}
    duration: str = ""


class NodeUsage(Part, frozen=True, kw_only=True):
    node_usage: Usage = Usage()
    aggregated_node_usages: tuple[AggregatedUsage, ...] = ()
    system_usage: Usage = Usage()


class PodUsage(Part, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    pod_usage: Usage = Usage()
    priority: str = ""


class CollectPolicy(Part, frozen=True, kw_only=True):
    report_interval_seconds: int | None = None


class MetricSpec(Part, frozen=True, kw_only=True):
    metric_collect_policy: CollectPolicy | None = None


class MetricStatus(Part, frozen=True, kw_only=True):
    update_time: datetime | None = None
    node_metric: NodeUsage | None = None
    pods_metric: tuple[PodUsage, ...] = ()


class NodeMetric(Object, frozen=True, kw_only=True):
    spec: MetricSpec = MetricSpec()
    status: MetricStatus = MetricStatus()


NODE_METRICS: Resource[NodeMetric] = custom.NODE_METRICS.viewed(NodeMetric)
