"""The status of the NodeMetric: what the node, its pods and its applications used of late.

A report is made of fresh samples or not at all: a new time on old numbers would keep others from noticing that the
node stopped measuring.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from koord.api.device import GPU, DeviceInfo
from koord.api.resource_name import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.api.slo import (
    AGGREGATIONS,
    MEMORY_WITH_HOT_PAGE_CACHE,
    MEMORY_WITH_PAGE_CACHE,
    AggregatedUsage,
    HostApplicationMetricInfo,
    NodeMetricInfo,
    NodeMetricStatus,
    NUMAUsage,
    PodMetricInfo,
    PredictedMetric,
    ResourceMap,
)
from koord.api.slo_strategy import HostApplicationSpec
from koord.koordlet.pod import PodView
from koord.koordlet.report.policy import ReportPolicy
from koord.koordlet.report.usage import bytes_text, of_amount, usage
from koord.koordlet.series import kind
from koord.koordlet.series.store import Key, Store
from koord.koordlet.series.window import Window
from koord.policy.prediction.reclaimable import Prediction
from koord.values import duration

FRESH_S = 30.0  # a series whose last sample is older is not what the node does now
_COLD_SHARE = 0.5  # of a window must be covered by samples before it is reported

_NODE_MEMORY = {
    MEMORY_WITH_HOT_PAGE_CACHE: kind.NODE_MEMORY_WITH_HOT_PAGES,
    MEMORY_WITH_PAGE_CACHE: kind.NODE_MEMORY_WITH_PAGE_CACHE,
}
_POD_MEMORY = {
    MEMORY_WITH_HOT_PAGE_CACHE: kind.POD_MEMORY_WITH_HOT_PAGES,
    MEMORY_WITH_PAGE_CACHE: kind.POD_MEMORY_WITH_PAGE_CACHE,
}
_APPLICATION_MEMORY = {
    MEMORY_WITH_HOT_PAGE_CACHE: kind.APPLICATION_MEMORY_WITH_HOT_PAGES,
    MEMORY_WITH_PAGE_CACHE: kind.APPLICATION_MEMORY_WITH_PAGE_CACHE,
}


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The identity and memory of one GPU."""
    uuid: str
    minor: int
    total_bytes: int


class ReportView(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is built of; `prediction` is None while nothing can be predicted."""

    series: Store
    now_s: float
    policy: ReportPolicy = ReportPolicy()
    pods: tuple[PodView, ...] = ()
    applications: tuple[HostApplicationSpec, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    prediction: Prediction | None = None
    hot_pages: bool = False  # whether the kernel distinguishes hot pages from cold ones
    fresh_s: float = FRESH_S


class Withheld(msgspec.Struct, frozen=True):
    """Why there is no report now."""

    why: str


def build_node_metric(seen: ReportView) -> NodeMetricStatus | Withheld:
    """Build the status, or say why it is withheld."""
    node = _usage(seen, (kind.NODE_CPU,), (_source(seen, _NODE_MEMORY, kind.NODE_MEMORY),))
    if node is None:
        return Withheld(f"the node was not measured in the last {seen.fresh_s:.0f}s")
    system = _usage(seen, (kind.SYSTEM_CPU,), (kind.SYSTEM_MEMORY,))
    prediction = seen.prediction
    return NodeMetricStatus(
        update_time=datetime.fromtimestamp(seen.now_s, UTC).replace(microsecond=0),
        node_metric=NodeMetricInfo(
            node_usage=msgspec.structs.replace(node, devices=_devices(seen, ())),
            aggregated_node_usages=_aggregated(
                seen, (kind.NODE_CPU,), (_source(seen, _NODE_MEMORY, kind.NODE_MEMORY),)
            ),
            system_usage=system or ResourceMap(),
            aggregated_system_usages=_aggregated(seen, (kind.SYSTEM_CPU,), (kind.SYSTEM_MEMORY,)),
            numa_usages=_numa(seen),
        ),
        pods_metric=_pods(seen),
        host_application_metric=_applications(seen),
        prod_reclaimable_metric=PredictedMetric(
            resource=ResourceMap() if prediction is None else of_amount(prediction.reclaimable)
        ),
        prod_peak_metric=None if prediction is None else PredictedMetric(resource=of_amount(prediction.peak)),
    )


def _source(seen: ReportView, by_policy: dict[str, str], plain: str) -> str:
    """Return the kind of series that the memory policy asks for. Hot pages count only where the kernel marks them."""
    policy = seen.policy.memory
    return plain if policy == MEMORY_WITH_HOT_PAGE_CACHE and not seen.hot_pages else by_policy.get(policy, plain)


def _window(seen: ReportView, key: Key, length_s: float) -> Window:
    """Return a window of the series; an empty one when its last sample is not fresh."""
    found = seen.series.window(key, seen.now_s, length_s)
    return found if found.count and seen.now_s * 1000 - found.last_ms <= seen.fresh_s * 1000 else Window()


def _usage(seen: ReportView, cpu: Key, memory: Key) -> ResourceMap | None:
    length = seen.policy.aggregate_s
    return usage(_window(seen, cpu, length).avg, _window(seen, memory, length).avg)


def _aggregated(seen: ReportView, cpu: Key, memory: Key) -> tuple[AggregatedUsage, ...]:
    found: list[AggregatedUsage] = []
    for length in seen.policy.durations_s:
        cores, held = _window(seen, cpu, length), _window(seen, memory, length)
        cold = cores.span_ms < _COLD_SHARE * length * 1000
        usages = {
            name: (None if cold else usage(cores.aggregate(name), held.aggregate(name))) or ResourceMap()
            for name in AGGREGATIONS
        }
        found.append(AggregatedUsage(usage=usages, duration=duration.text(duration.from_seconds(length))))
    return tuple(found)


def _numa(seen: ReportView) -> tuple[NUMAUsage, ...]:
    found: list[NUMAUsage] = []
    for number in sorted(seen.numa_nodes):
        node = _usage(seen, (kind.NUMA_CPU, str(number)), (kind.NUMA_MEMORY, str(number)))
        if node is not None:
            system = _usage(seen, (kind.NUMA_SYSTEM_CPU, str(number)), (kind.NUMA_SYSTEM_MEMORY, str(number)))
            found.append(NUMAUsage(numa_node_id=number, node_usage=node, system_usage=system or ResourceMap()))
    return tuple(found)


def _pods(seen: ReportView) -> tuple[PodMetricInfo, ...]:
    memory = _source(seen, _POD_MEMORY, kind.POD_MEMORY)
    found: list[PodMetricInfo] = []
    for pod in sorted(seen.pods, key=lambda one: (one.namespace, one.name)):
        used = _usage(seen, (kind.POD_CPU, pod.uid), (memory, pod.uid))
        if used is not None:
            found.append(
                PodMetricInfo(
                    namespace=pod.namespace,
                    name=pod.name,
                    priority=pod.priority_class,
                    qos=pod.qos_with_default,
                    pod_usage=msgspec.structs.replace(used, devices=_devices(seen, (pod.uid,))),
                )
            )
    return tuple(found)


def _applications(seen: ReportView) -> tuple[HostApplicationMetricInfo, ...]:
    memory = _source(seen, _APPLICATION_MEMORY, kind.APPLICATION_MEMORY)
    found: list[HostApplicationMetricInfo] = []
    for one in sorted(seen.applications, key=lambda application: application.name):
        used = _usage(seen, (kind.APPLICATION_CPU, one.name), (memory, one.name))
        if used is not None:
            found.append(HostApplicationMetricInfo(name=one.name, usage=used, priority=one.priority, qos=one.qos))
    return tuple(found)


def _devices(seen: ReportView, pod: tuple[str, ...]) -> tuple[DeviceInfo, ...]:
    """Return the GPU usage of one pod or of the node; cards without samples are left out."""
    core, memory = (kind.POD_GPU_CORE, kind.POD_GPU_MEMORY) if pod else (kind.NODE_GPU_CORE, kind.NODE_GPU_MEMORY)
    found: list[DeviceInfo] = []
    for gpu in seen.gpus:
        subject = (*pod, str(gpu.minor), gpu.uuid)
        length = seen.policy.aggregate_s
        busy, held = _window(seen, (core, *subject), length).avg, _window(seen, (memory, *subject), length).avg
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
                    GPU_MEMORY: bytes_text(int(held)),
                    GPU_MEMORY_RATIO: str(ratio),
                },
            )
        )
    return tuple(found)
