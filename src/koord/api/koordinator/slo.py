"""This module holds slo.koordinator.sh/v1alpha1: a node's load (NodeMetric), how it shall be run (NodeSLO), and the
strategies inside a NodeSLO, one block per kernel or koordlet mechanism. Defaults live in koord.api.config.slo.

Ranges written as `a..b` or `at least a` are part of the CRD schema; strict inequalities and relations
between two fields are checked by the ConfigMap validator.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import field

from koord.api.koordinator.scheduling import DeviceInfo
from koord.api.kubernetes.meta import Object
from koord.api.model import Submodel
from koord.api.schema_markers import (
    NULLABLE,
    PRESERVE_UNKNOWN,
    REQUIRED,
    Duration,
    Int32,
    IntOrString,
    NonNegative,
    Percent,
    Quantity,
    ResourceList,
    SchemaRule,
    Switch,
    never_omitted,
)

AtLeastOne = Annotated[int, SchemaRule(minimum=1)]


class ResourceThresholdStrategy(Submodel, frozen=True, kw_only=True):
    """ResourceThresholdStrategy states when to suppress and when to evict batch work on a node."""

    enable: bool | None = None
    cpu_suppress_threshold_percent: Percent | None = None
    cpu_suppress_min_percent: Percent | None = None
    cpu_suppress_policy: str = ""  # cpuset, cfsQuota, idleCpuset
    memory_evict_threshold_percent: Percent | None = None
    memory_evict_lower_percent: Percent | None = None
    memory_allocatable_evict_threshold_percent: NonNegative | None = None
    memory_allocatable_evict_lower_percent: NonNegative | None = None
    cpu_evict_be_satisfaction_upper_percent: Percent | None = field(
        default=None, name="cpuEvictBESatisfactionUpperPercent"
    )
    cpu_evict_be_satisfaction_lower_percent: Percent | None = field(
        default=None, name="cpuEvictBESatisfactionLowerPercent"
    )
    cpu_evict_be_usage_threshold_percent: Percent | None = field(default=None, name="cpuEvictBEUsageThresholdPercent")
    cpu_evict_time_window_seconds: int | None = None
    cpu_evict_threshold_percent: Percent | None = None
    cpu_evict_lower_percent: Percent | None = None
    cpu_allocatable_evict_threshold_percent: NonNegative | None = None
    cpu_allocatable_evict_lower_percent: NonNegative | None = None
    cpu_evict_policy: str = ""  # evictByRealLimit, evictByAllocatable
    evict_enabled_priority_threshold: Int32 | None = None
    allocatable_evict_priority_threshold: Annotated[Int32, SchemaRule(minimum=0, maximum=7999)] | None = None


class CPUQOS(Submodel, frozen=True, kw_only=True):
    group_identity: Annotated[int, SchemaRule(minimum=-1, maximum=2)] | None = None
    sched_idle: Switch | None = None
    core_expeller: bool | None = None


class CPUQOSConfig(CPUQOS, frozen=True, kw_only=True):
    enable: bool | None = None


class MemoryQOS(Submodel, frozen=True, kw_only=True):
    min_limit_percent: Percent | None = None
    low_limit_percent: Percent | None = None
    throttling_percent: Percent | None = None
    wmark_ratio: Percent | None = None
    wmark_scale_permill: Annotated[int, SchemaRule(minimum=1, maximum=1000)] | None = None
    wmark_min_adj: Annotated[int, SchemaRule(minimum=-25, maximum=50)] | None = None
    priority_enable: Switch | None = None
    priority: Annotated[int, SchemaRule(minimum=0, maximum=12)] | None = None
    oom_kill_group: Switch | None = None
    page_cache_enable: bool | None = None
    page_cache_limit_percent: Percent | None = None
    page_cache_limit_size: int | None = None
    page_cache_reclaim_sync: bool | None = None


class MemoryQOSConfig(MemoryQOS, frozen=True, kw_only=True):
    enable: bool | None = None


class IOConfig(Submodel, frozen=True, kw_only=True):
    """Limits (0 is off) in operations and bytes per second, latencies in microseconds, and the io.cost model."""

    read_iops: NonNegative | None = field(default=None, name="readIOPS")
    write_iops: NonNegative | None = field(default=None, name="writeIOPS")
    read_bps: NonNegative | None = field(default=None, name="readBPS")
    write_bps: NonNegative | None = field(default=None, name="writeBPS")
    io_weight_percent: Annotated[int, SchemaRule(minimum=1, maximum=100)] | None = None
    read_latency: int | None = None
    write_latency: int | None = None
    read_latency_percent: Percent | None = None
    write_latency_percent: Percent | None = None
    enable_user_model: bool | None = None
    model_read_bps: AtLeastOne | None = field(default=None, name="modelReadBPS")
    model_write_bps: AtLeastOne | None = field(default=None, name="modelWriteBPS")
    model_read_seq_iops: AtLeastOne | None = field(default=None, name="modelReadSeqIOPS")
    model_write_seq_iops: AtLeastOne | None = field(default=None, name="modelWriteSeqIOPS")
    model_read_rand_iops: AtLeastOne | None = field(default=None, name="modelReadRandIOPS")
    model_write_rand_iops: AtLeastOne | None = field(default=None, name="modelWriteRandIOPS")


class BlockConfig(Submodel, frozen=True, kw_only=True):
    name: str = ""
    type: str = ""  # device, volumegroup, podvolume
    io_cfg: IOConfig = IOConfig()


class BlkIOQOS(Submodel, frozen=True, kw_only=True):
    blocks: tuple[BlockConfig, ...] = ()


class BlkIOQOSConfig(BlkIOQOS, frozen=True, kw_only=True):
    enable: bool | None = None


class ResctrlQOS(Submodel, frozen=True, kw_only=True):
    cat_range_start_percent: Percent | None = None
    cat_range_end_percent: Percent | None = None
    mba_percent: Percent | None = None


class ResctrlQOSConfig(ResctrlQOS, frozen=True, kw_only=True):
    enable: bool | None = None


class NetworkQOS(Submodel, frozen=True, kw_only=True):
    """An integer is a percentage of the node's bandwidth, a string is a quantity of bits per second.

    The schema fills an absent limit with 100 and an absent request with 0; the manager always writes all four.
    """

    ingress_request: Annotated[IntOrString, SchemaRule(default=0)] | None = None
    ingress_limit: Annotated[IntOrString, SchemaRule(default=100)] | None = None
    egress_request: Annotated[IntOrString, SchemaRule(default=0)] | None = None
    egress_limit: Annotated[IntOrString, SchemaRule(default=100)] | None = None


class NetworkQOSConfig(NetworkQOS, frozen=True, kw_only=True):
    enable: bool | None = None


class ResourceQOS(Submodel, frozen=True, kw_only=True):
    """The knobs of one QoS class."""

    cpu_qos: CPUQOSConfig | None = field(default=None, name="cpuQOS")
    memory_qos: MemoryQOSConfig | None = field(default=None, name="memoryQOS")
    blkio_qos: BlkIOQOSConfig | None = field(default=None, name="blkioQOS")
    resctrl_qos: ResctrlQOSConfig | None = field(default=None, name="resctrlQOS")
    network_qos: NetworkQOSConfig | None = field(default=None, name="networkQOS")


class ResourceQOSPolicies(Submodel, frozen=True, kw_only=True):
    cpu_policy: str | None = None  # groupIdentity, coreSched
    net_qos_policy: str | None = field(default=None, name="netQOSPolicy")  # tc, terway-qos


class ResourceQOSStrategy(Submodel, frozen=True, kw_only=True):
    """LSE pods take lsrClass: there is no block of their own. cgroupRoot uses blkioQOS only."""

    policies: ResourceQOSPolicies | None = None
    lsr_class: ResourceQOS | None = None
    ls_class: ResourceQOS | None = None
    be_class: ResourceQOS | None = None
    system_class: ResourceQOS | None = None
    cgroup_root: ResourceQOS | None = None


class CPUBurst(Submodel, frozen=True, kw_only=True):
    """CPUBurst states how far a container may run past its CPU limit; also the body of a pod's own override."""

    policy: str = ""  # none, cpuBurstOnly, cfsQuotaBurstOnly, auto
    cpu_burst_percent: Annotated[int, SchemaRule(minimum=0, maximum=10000)] | None = None
    cfs_quota_burst_percent: int | None = None
    cfs_quota_burst_period_seconds: int | None = None  # -1 is without end


class CPUBurstStrategy(CPUBurst, frozen=True, kw_only=True):
    share_pool_threshold_percent: int | None = None


class SystemStrategy(Submodel, frozen=True, kw_only=True):
    min_free_kbytes_factor: int | None = None
    watermark_scale_factor: int | None = None
    memcg_reap_back_ground: Switch | None = None
    sched_group_identity_enabled: int | None = None
    sched_idle_saver_wmark: int | None = None  # nanoseconds
    sched_features: dict[str, bool] = {}
    page_cache_limit_enabled: Switch | None = None
    total_network_bandwidth: Quantity = never_omitted("0")  # upstream never omits it


class CgroupPath(Submodel, frozen=True, kw_only=True):
    base: str = ""  # CgroupRoot, Kubepods, KubepodsBurstable, KubepodsBesteffort
    parent_dir: str = ""
    relative_path: str = ""


class HostApplicationStrategy(Submodel, frozen=True, kw_only=True):
    """Reserved: upstream has no fields here yet."""


class HostApplicationSpec(Submodel, frozen=True, kw_only=True):
    """A process outside Kubernetes that shares the node."""

    name: str = ""
    priority: str = ""
    qos: str = ""
    cgroup_path: CgroupPath | None = None
    strategy: HostApplicationStrategy | None = None


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
    resource_used_threshold_with_be: ResourceThresholdStrategy | None = field(
        default=None, name="resourceUsedThresholdWithBE"
    )
    resource_qos_strategy: ResourceQOSStrategy | None = field(default=None, name="resourceQOSStrategy")
    cpu_burst_strategy: CPUBurstStrategy | None = None
    system_strategy: SystemStrategy | None = None
    host_applications: tuple[HostApplicationSpec, ...] = ()
    extensions: Annotated[Extensions, PRESERVE_UNKNOWN] | None = None


class NodeSLOStatus(Submodel, frozen=True, kw_only=True):
    """Empty upstream."""


class NodeSLO(Object, frozen=True, kw_only=True):
    """NodeSLO states how the koordlet of one node shall run it. Named as the node; the manager writes it."""

    spec: NodeSLOSpec = NodeSLOSpec()
    status: NodeSLOStatus = NodeSLOStatus()
