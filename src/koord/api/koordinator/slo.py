"""This module holds slo.koordinator.sh/v1alpha1: a node's load (NodeMetric) and how it shall be run (NodeSLO)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import field

from koord.api.koordinator import slo_strategy
from koord.api.koordinator.scheduling import DeviceInfo
from koord.api.kubernetes.meta import Object
from koord.api.model import Submodel
from koord.api.schema_markers import NULLABLE, PRESERVE_UNKNOWN, REQUIRED, Duration, Int32, ResourceList, SchemaRule

MEMORY_WITHOUT_PAGE_CACHE = "usageWithoutPageCache"
MEMORY_WITH_HOT_PAGE_CACHE = "usageWithHotPageCache"
MEMORY_WITH_PAGE_CACHE = "usageWithPageCache"  # the schema takes it, no program implements it
MEMORY_COLLECT_POLICIES = (MEMORY_WITHOUT_PAGE_CACHE, MEMORY_WITH_HOT_PAGE_CACHE, MEMORY_WITH_PAGE_CACHE)

AGGREGATIONS = ("avg", "p50", "p90", "p95", "p99")


class Extensions(Submodel, frozen=True, kw_only=True):
    """Free-form data of third parties. The capital-O wrapper is upstream's wire shape, an inline tag that failed."""

    object: dict[str, Any] | None = field(default=None, name="Object")


class ResourceMap(Submodel, frozen=True, kw_only=True):
    """Usage by resource name, and by device."""

    resources: ResourceList = {}
    devices: tuple[DeviceInfo, ...] = ()


class ReportedUsage(Submodel, frozen=True, kw_only=True):
    """A ResourceMap without devices: decoding them costs programs that read cpu and memory alone."""

    resources: ResourceList = {}


class ReportedPodUsage(Submodel, frozen=True, kw_only=True):
    """The fields of a PodMetricInfo that decisions read."""

    namespace: str = ""
    name: str = ""
    pod_usage: ReportedUsage = ReportedUsage()
    priority: str = ""


class AggregatePolicy(Submodel, frozen=True, kw_only=True):
    durations: tuple[Duration, ...] = ()


class MetricCollectPolicy(Submodel, frozen=True, kw_only=True):
    aggregate_duration_seconds: int | None = None
    report_interval_seconds: int | None = None
    node_aggregate_policy: AggregatePolicy | None = None
    node_memory_collect_policy: Annotated[str, SchemaRule(enum=MEMORY_COLLECT_POLICIES)] | None = None


class NodeMetricSpec(Submodel, frozen=True, kw_only=True):
    metric_collect_policy: MetricCollectPolicy | None = None


class AggregatedUsage(Submodel, frozen=True, kw_only=True):
    """One window of percentile reports: aggregation name to usage."""

    usage: dict[str, ResourceMap] = {}
    duration: Duration = ""


class NUMAUsage(Submodel, frozen=True, kw_only=True):
    numa_node_id: Annotated[Int32, REQUIRED] = field(default_factory=lambda: 0, name="numaNodeID")
    node_usage: ResourceMap = ResourceMap()
    system_usage: ResourceMap = ResourceMap()


class NodeMetricInfo(Submodel, frozen=True, kw_only=True):
    node_usage: ResourceMap = ResourceMap()
    aggregated_node_usages: tuple[AggregatedUsage, ...] = ()
    system_usage: ResourceMap = ResourceMap()
    aggregated_system_usages: tuple[AggregatedUsage, ...] = ()
    numa_usages: tuple[NUMAUsage, ...] = ()


class PodMetricInfo(Submodel, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    pod_usage: ResourceMap = ResourceMap()
    priority: str = ""
    qos: str = ""
    extensions: Annotated[Extensions, PRESERVE_UNKNOWN] | None = None


class HostApplicationMetricInfo(Submodel, frozen=True, kw_only=True):
    name: str = ""
    usage: ResourceMap = ResourceMap()
    priority: str = ""
    qos: str = ""


class PredictedMetric(Submodel, frozen=True, kw_only=True):
    resource: ResourceMap = ResourceMap()


class NodeMetricStatus(Submodel, frozen=True, kw_only=True):
    """prodPeakMetric holds system usage and the safety margin already: adding them again counts them twice."""

    update_time: Annotated[datetime, NULLABLE] | None = None
    node_metric: NodeMetricInfo | None = None
    pods_metric: tuple[PodMetricInfo, ...] = ()
    host_application_metric: tuple[HostApplicationMetricInfo, ...] = ()
    prod_reclaimable_metric: PredictedMetric | None = None
    prod_peak_metric: PredictedMetric | None = None


class NodeMetric(Object, frozen=True, kw_only=True):
    """NodeMetric reports what one node and its pods use. Named as the node; the manager writes spec, the koordlet
    writes status.
    """

    spec: NodeMetricSpec = NodeMetricSpec()
    status: NodeMetricStatus = NodeMetricStatus()


class NodeSLOSpec(Submodel, frozen=True, kw_only=True):
    resource_used_threshold_with_be: slo_strategy.ResourceThresholdStrategy | None = field(
        default=None, name="resourceUsedThresholdWithBE"
    )
    resource_qos_strategy: slo_strategy.ResourceQOSStrategy | None = field(default=None, name="resourceQOSStrategy")
    cpu_burst_strategy: slo_strategy.CPUBurstStrategy | None = None
    system_strategy: slo_strategy.SystemStrategy | None = None
    host_applications: tuple[slo_strategy.HostApplicationSpec, ...] = ()
    extensions: Annotated[Extensions, PRESERVE_UNKNOWN] | None = None


class NodeSLOStatus(Submodel, frozen=True, kw_only=True):
    """Empty upstream."""


class NodeSLO(Object, frozen=True, kw_only=True):
    """NodeSLO states how the koordlet of one node shall run it. Named as the node; the manager writes it."""

    spec: NodeSLOSpec = NodeSLOSpec()
    status: NodeSLOStatus = NodeSLOStatus()
