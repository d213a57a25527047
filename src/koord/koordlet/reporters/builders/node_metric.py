"""Build the NodeMetric's status: what the node, its pods and its host applications used recently.

A report is made of fresh samples or not at all: a new timestamp on old numbers would hide that the node stopped
measuring. The spec's policy says how often to report and over which windows.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from koord.api.koordinator.resource_name import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.api.koordinator.scheduling import GPU, DeviceInfo
from koord.api.koordinator.slo import (
    AGGREGATIONS,
    MEMORY_WITH_HOT_PAGE_CACHE,
    MEMORY_WITH_PAGE_CACHE,
    MEMORY_WITHOUT_PAGE_CACHE,
    AggregatedUsage,
    HostApplicationMetricInfo,
    HostApplicationSpec,
    NodeMetricInfo,
    NodeMetricSpec,
    NodeMetricStatus,
    NUMAUsage,
    PodMetricInfo,
    PredictedMetric,
    ResourceMap,
)
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.reporters.builders import reclaimable
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SampleWindow, SeriesKey, SeriesStore
from koord.values import duration
from koord.values.duration import DurationError

DEFAULT_AGGREGATE_S = 300
DEFAULT_REPORT_S = 60
DEFAULT_DURATIONS_S = (300.0, 600.0, 1800.0)
MIN_REPORT_S = 30
MIN_AGGREGATE_S = 60


class ReportPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """ReportPolicy states how often to report and over which windows."""

    aggregate_s: int = DEFAULT_AGGREGATE_S
    report_s: int = DEFAULT_REPORT_S
    durations_s: tuple[float, ...] = DEFAULT_DURATIONS_S
    memory: str = MEMORY_WITHOUT_PAGE_CACHE

    @property
    def longest_s(self) -> float:
        """Return how far back series must reach."""
        return max((self.aggregate_s, *self.durations_s))


def report_policy(spec: NodeMetricSpec) -> ReportPolicy:
    """Return the policy of a spec. What is not set has the default; invalid or non-positive durations are left out."""
    wish = spec.metric_collect_policy
    if wish is None:
        return ReportPolicy()
    aggregate, report, windows = (
        wish.aggregate_duration_seconds,
        wish.report_interval_seconds,
        wish.node_aggregate_policy,
    )
    stated = () if windows is None else tuple(filter(None, map(_seconds, windows.durations)))
    return ReportPolicy(
        aggregate_s=max(DEFAULT_AGGREGATE_S if aggregate is None else aggregate, MIN_AGGREGATE_S),
        report_s=max(DEFAULT_REPORT_S if report is None else report, MIN_REPORT_S),
        durations_s=DEFAULT_DURATIONS_S if windows is None or not windows.durations else stated,
        memory=wish.node_memory_collect_policy or MEMORY_WITHOUT_PAGE_CACHE,
    )


def _seconds(text: str) -> float | None:
    try:
        found = duration.parse_seconds(text)
    except DurationError:
        return None
    return found if found > 0 else None


MAX_SAMPLE_AGE_S = 30.0  # a series whose last sample is older is not what the node does now
_MIN_COVERAGE = 0.5  # of a window must be covered by samples before it is reported

_NODE_MEMORY = {
    MEMORY_WITH_HOT_PAGE_CACHE: metric_kind.NODE_MEMORY_WITH_HOT_PAGES,
    MEMORY_WITH_PAGE_CACHE: metric_kind.NODE_MEMORY_WITH_PAGE_CACHE,
}
_POD_MEMORY = {
    MEMORY_WITH_HOT_PAGE_CACHE: metric_kind.POD_MEMORY_WITH_HOT_PAGES,
    MEMORY_WITH_PAGE_CACHE: metric_kind.POD_MEMORY_WITH_PAGE_CACHE,
}
_APPLICATION_MEMORY = {
    MEMORY_WITH_HOT_PAGE_CACHE: metric_kind.APPLICATION_MEMORY_WITH_HOT_PAGES,
    MEMORY_WITH_PAGE_CACHE: metric_kind.APPLICATION_MEMORY_WITH_PAGE_CACHE,
}


class GpuIdentity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    uuid: str
    minor: int
    total_bytes: int


class NodeMetricView(msgspec.Struct, frozen=True, kw_only=True):
    """NodeMetricView holds what a report is built of; `prediction` is None while nothing can be predicted."""

    series: SeriesStore
    now_s: float
    policy: ReportPolicy = ReportPolicy()
    pods: tuple[PodMeta, ...] = ()
    applications: tuple[HostApplicationSpec, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    gpus: tuple[GpuIdentity, ...] = ()
    prediction: reclaimable.PeakPrediction | None = None
    hot_pages: bool = False  # whether the kernel distinguishes hot pages from cold ones
    max_sample_age_s: float = MAX_SAMPLE_AGE_S


class ReportWithheld(msgspec.Struct, frozen=True):
    why: str


def build_node_metric(view: NodeMetricView) -> NodeMetricStatus | ReportWithheld:
    """Build the status, or say why it is withheld."""
    node = _usage(view, (metric_kind.NODE_CPU,), (_memory_kind(view, _NODE_MEMORY, metric_kind.NODE_MEMORY),))
    if node is None:
        return ReportWithheld(f"the node was not measured in the last {view.max_sample_age_s:.0f}s")
    system = _usage(view, (metric_kind.SYSTEM_CPU,), (metric_kind.SYSTEM_MEMORY,))
    prediction = view.prediction
    return NodeMetricStatus(
        update_time=datetime.fromtimestamp(view.now_s, UTC).replace(microsecond=0),
        node_metric=NodeMetricInfo(
            node_usage=msgspec.structs.replace(node, devices=_devices(view, ())),
            aggregated_node_usages=_aggregated(
                view, (metric_kind.NODE_CPU,), (_memory_kind(view, _NODE_MEMORY, metric_kind.NODE_MEMORY),)
            ),
            system_usage=system or ResourceMap(),
            aggregated_system_usages=_aggregated(view, (metric_kind.SYSTEM_CPU,), (metric_kind.SYSTEM_MEMORY,)),
            numa_usages=_numa(view),
        ),
        pods_metric=_pods(view),
        host_application_metric=_applications(view),
        prod_reclaimable_metric=PredictedMetric(
            resource=ResourceMap() if prediction is None else reclaimable.resource_map_of_amount(prediction.reclaimable)
        ),
        prod_peak_metric=None
        if prediction is None
        else PredictedMetric(resource=reclaimable.resource_map_of_amount(prediction.peak)),
    )


def _memory_kind(view: NodeMetricView, by_policy: dict[str, str], plain: str) -> str:
    """Return the kind of series that the memory policy asks for. Hot pages count only where the kernel marks them."""
    policy = view.policy.memory
    return plain if policy == MEMORY_WITH_HOT_PAGE_CACHE and not view.hot_pages else by_policy.get(policy, plain)


def _window(view: NodeMetricView, key: SeriesKey, length_s: float) -> SampleWindow:
    """Return a window of the series; an empty one when its last sample is not fresh."""
    found = view.series.window(key, view.now_s, length_s)
    return (
        found if found.count and view.now_s * 1000 - found.last_ms <= view.max_sample_age_s * 1000 else SampleWindow()
    )


def _usage(view: NodeMetricView, cpu: SeriesKey, memory: SeriesKey) -> ResourceMap | None:
    length = view.policy.aggregate_s
    return reclaimable.usage_map(_window(view, cpu, length).avg, _window(view, memory, length).avg)


def _aggregated(view: NodeMetricView, cpu: SeriesKey, memory: SeriesKey) -> tuple[AggregatedUsage, ...]:
    found: list[AggregatedUsage] = []
    for length in view.policy.durations_s:
        cores, held = _window(view, cpu, length), _window(view, memory, length)
        cold = cores.span_ms < _MIN_COVERAGE * length * 1000
        usages = {
            name: (None if cold else reclaimable.usage_map(cores.aggregate(name), held.aggregate(name)))
            or ResourceMap()
            for name in AGGREGATIONS
        }
        found.append(AggregatedUsage(usage=usages, duration=duration.text(duration.from_seconds(length))))
    return tuple(found)


def _numa(view: NodeMetricView) -> tuple[NUMAUsage, ...]:
    found: list[NUMAUsage] = []
    for number in sorted(view.numa_nodes):
        node = _usage(view, (metric_kind.NUMA_CPU, str(number)), (metric_kind.NUMA_MEMORY, str(number)))
        if node is not None:
            system = _usage(
                view, (metric_kind.NUMA_SYSTEM_CPU, str(number)), (metric_kind.NUMA_SYSTEM_MEMORY, str(number))
            )
            found.append(NUMAUsage(numa_node_id=number, node_usage=node, system_usage=system or ResourceMap()))
    return tuple(found)


def _pods(view: NodeMetricView) -> tuple[PodMetricInfo, ...]:
    memory = _memory_kind(view, _POD_MEMORY, metric_kind.POD_MEMORY)
    found: list[PodMetricInfo] = []
    for pod in sorted(view.pods, key=lambda one: (one.namespace, one.name)):
        used = _usage(view, (metric_kind.POD_CPU, pod.uid), (memory, pod.uid))
        if used is not None:
            found.append(
                PodMetricInfo(
                    namespace=pod.namespace,
                    name=pod.name,
                    priority=pod.priority_class,
                    qos=pod.qos_with_default,
                    pod_usage=msgspec.structs.replace(used, devices=_devices(view, (pod.uid,))),
                )
            )
    return tuple(found)


def _applications(view: NodeMetricView) -> tuple[HostApplicationMetricInfo, ...]:
    memory = _memory_kind(view, _APPLICATION_MEMORY, metric_kind.APPLICATION_MEMORY)
    found: list[HostApplicationMetricInfo] = []
    for one in sorted(view.applications, key=lambda application: application.name):
        used = _usage(view, (metric_kind.APPLICATION_CPU, one.name), (memory, one.name))
        if used is not None:
            found.append(HostApplicationMetricInfo(name=one.name, usage=used, priority=one.priority, qos=one.qos))
    return tuple(found)


def _devices(view: NodeMetricView, pod: tuple[str, ...]) -> tuple[DeviceInfo, ...]:
    """Return the GPU usage of one pod or of the node; cards without samples are left out."""
    core, memory = (
        (metric_kind.POD_GPU_CORE, metric_kind.POD_GPU_MEMORY)
        if pod
        else (metric_kind.NODE_GPU_CORE, metric_kind.NODE_GPU_MEMORY)
    )
    found: list[DeviceInfo] = []
    for gpu in view.gpus:
        subject = (*pod, str(gpu.minor), gpu.uuid)
        length = view.policy.aggregate_s
        busy, held = _window(view, (core, *subject), length).avg, _window(view, (memory, *subject), length).avg
        if busy is None or held is None:
            continue
        ratio = int(100 * held / gpu.total_bytes) if gpu.total_bytes > 0 else 0
        found.append(
            DeviceInfo(
                type=GPU,
                id=gpu.uuid,
                minor=gpu.minor,
                resources={
                    GPU_CORE: str(int(busy)),
                    GPU_MEMORY: reclaimable.bytes_quantity(int(held)),
                    GPU_MEMORY_RATIO: str(ratio),
                },
            )
        )
    return tuple(found)
