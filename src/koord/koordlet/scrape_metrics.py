"""Metrics computed at scrape time, with their declarations: CPU pools, predictions, PSI, CPI, resctrl monitors and the
last report, under Koordinator's names. Each has the label `node` first.

They cost nothing between two scrapes, and series of what is gone disappear by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.slo import ResourceMap
from koord.host.cgroup.usage import PressureLine
from koord.koordlet.control_loop import ControlLoop
from koord.koordlet.inputs.node_watcher import NodeWatcher
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.inputs.pod_source import PodSource
from koord.koordlet.reporter_set import ReporterSet
from koord.koordlet.reporters.builders.reclaimable import PeakPrediction, Reclaimable, ResourceAmount
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies import interference_view, runtime_hooks
from koord.koordlet.strategies.interference_view import InterferenceState
from koord.koordlet.strategies.runtime_hooks import RuntimeHooksState
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import MetricDeclaration, MetricReading
from koord.values.cpuset import CPUSet
from koord.values.quantity import Quantity

_PSI_LABELS = ("pod_uid", "pod_name", "pod_namespace", "psi_resource_type", "psi_precision", "psi_degree")
_USAGE = ("resource", "unit")


def _gauge(name: str, help: str, *labels: str) -> MetricDeclaration:
    return MetricDeclaration(f"koordlet_{name}", help, "gauge", ("node", *labels))


# Internal
SHARE_POOL = _gauge("cpuset_share_pool_cpu_cores", "CPUs in the share pool of LS pods.")
SHARE_POOL_INFO = _gauge("cpuset_share_pool_info", "1 for each CPU of the share pool of LS pods.", "cpu")
BE_SHARE_POOL = _gauge("cpuset_be_share_pool_cpu_cores", "CPUs in the share pool of BE pods.")
BE_SHARE_POOL_INFO = _gauge("cpuset_be_share_pool_info", "1 for each CPU of the share pool of BE pods.", "cpu")
PREDICTED_RECLAIMABLE = _gauge(
    "node_predicted_resource_reclaimable",
    "What prod pods requested and are predicted not to need, by predictor.",
    *("predictor", *_USAGE),
)
PREDICTED_PEAK = _gauge(
    "node_predicted_resource_peak", "Peak that is predicted for prod pods, by predictor.", "predictor", *_USAGE
)
HOST_APPLICATION_USAGE = _gauge(
    "host_application_resource_usage",
    "CPU in cores and memory in bytes that a host application uses.",
    *("host_application_name", "resource", "priority_class", "qos"),
)
OOM_SCORE_ADJ = _gauge(
    "container_oom_score_adj",
    "Value of oom_score_adj that the hook OOMScoreAdj decided for a container.",
    *("pod_name", "pod_namespace", "pod_uid", "container_name"),
)
REPORTED_NODE_USAGE = _gauge(
    "node_metric_node_usage", "Usage of the node in the last NodeMetric that was reported.", *_USAGE
)
REPORTED_SYSTEM_USAGE = _gauge(
    "node_metric_system_usage", "Usage outside of pods in the last NodeMetric that was reported.", *_USAGE
)
REPORTED_NUMA_NODE_USAGE = _gauge(
    "node_metric_numa_node_usage",
    "Usage of a NUMA node in the last NodeMetric that was reported.",
    *("numa_node_id", *_USAGE),
)
REPORTED_NUMA_SYSTEM_USAGE = _gauge(
    "node_metric_numa_system_usage",
    "Usage of a NUMA node outside of pods in the last NodeMetric that was reported.",
    *("numa_node_id", *_USAGE),
)
INTERNAL = (
    *(SHARE_POOL, SHARE_POOL_INFO, BE_SHARE_POOL, BE_SHARE_POOL_INFO),
    *(PREDICTED_RECLAIMABLE, PREDICTED_PEAK, HOST_APPLICATION_USAGE, OOM_SCORE_ADJ),
    *(REPORTED_NODE_USAGE, REPORTED_SYSTEM_USAGE, REPORTED_NUMA_NODE_USAGE, REPORTED_NUMA_SYSTEM_USAGE),
)

# External
RECLAIMABLE_STATUS = _gauge(
    "node_resource_priority_reclaimable_status", "0 when the reclaimable resources are known, 1 when not.", "priority"
)
RECLAIMABLE = _gauge(
    "node_priority_resource_reclaimable",
    "What pods of a priority class requested and are predicted not to need.",
    *("priority", *_USAGE),
)
POD_PSI = _gauge("pod_psi", "Pressure stall information of a pod: percent of time.", *_PSI_LABELS, "cpu_full_supported")
CONTAINER_PSI = _gauge(
    "container_psi",
    "Pressure stall information of a container: percent of time.",
    *("container_id", "container_name", *_PSI_LABELS, "cpu_full_supported"),
)
CONTAINER_CPI = _gauge(
    "container_cpi",
    "CPU cycles and instructions of a container in one measurement, by cpi_field: cycles, instructions.",
    *("container_id", "container_name", "pod_uid", "pod_name", "pod_namespace", "cpi_field"),
)
LLC_OCCUPANCY = _gauge(
    "resctrl_llc_occupancy", "Last-level cache that a QoS class occupies, in bytes.", "cache_id", "qos"
)
MEMORY_BANDWIDTH = _gauge(
    "resctrl_memory_bandwidth",
    "Bytes that a QoS class moved to and from memory, as the kernel counts them.",
    *("cache_id", "qos", "mb_type"),
)
INTERFERENCE = _gauge(
    "pod_interference",
    "Standard deviations by which a disturbed container is above its baseline, by metric, and its culprit.",
    *("pod_uid", "pod_name", "pod_namespace", "container_name", "metric", "culprit"),
)
INTERFERENCE_ACTIONS = MetricDeclaration(
    "koordlet_interference_actions_total",
    "Incidents of interference (action report), and pods that were throttled or evicted for one, since the start.",
    "counter",
    ("node", "metric", "action"),
)
EXTERNAL = (
    *(RECLAIMABLE_STATUS, RECLAIMABLE, POD_PSI, CONTAINER_PSI, CONTAINER_CPI),
    *(LLC_OCCUPANCY, MEMORY_BANDWIDTH, INTERFERENCE, INTERFERENCE_ACTIONS),
)


_PREDICTORS = ("podReclaimablePredictor", "priorityReclaimablePredictor", "minPredictor")
_FIELDS = {"cycle": "cycles", "instruction": "instructions"}
_CPI_LOOK_BACK_S = 120.0


class ScrapeTimeMetrics:
    """The scrape-time metrics read the agent's parts when a registry asks for them."""

    def __init__(
        self,
        node: str,
        store: SeriesStore,
        clock: Clock,
        control_loop: ControlLoop,
        reports: ReporterSet,
        node_watcher: NodeWatcher,
        pods: PodSource,
        gates: frozenset[str],
    ) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._control_loop = control_loop
        self._reports = reports
        self._node_watcher = node_watcher
        self._pods = pods
        self._gates = gates

    def internal(self) -> Iterable[MetricReading]:
        yield from self._shares()
        yield from self._predicted()
        yield self._applications()
        yield self._oom_scores()
        if "NodeMetricPromMetrics" in self._gates:
            yield from self._reported()

    def external(self) -> Iterable[MetricReading]:
        yield from self._reclaimable()
        yield from self._pressure()
        yield self._cycles()
        yield from self._caches()
        yield from self._interference()

    # Internal ------------------------------------------------------------------------------------------------------

    def _shares(self) -> Iterator[MetricReading]:
        latest = self._reports.topology.latest
        if latest is None:
            return
        shares = latest.shares
        for size, info, pools in (
            (SHARE_POOL, SHARE_POOL_INFO, shares.ls_pools),
            (BE_SHARE_POOL, BE_SHARE_POOL_INFO, shares.be_pools),
        ):
            pool = CPUSet.of(cpu for one in pools for cpu in CPUSet.parse(one.cpuset))
            yield self._reading(size, [((), float(len(pool)))])
            if "PerCPUMetric" in self._gates:
                yield self._reading(info, [((str(cpu),), 1.0) for cpu in pool])

    def _predicted(self) -> Iterator[MetricReading]:
        forecast = self._reports.predictor.forecast(self._node_watcher.node)
        if not isinstance(forecast, Reclaimable):
            return
        made = dict(zip(_PREDICTORS, (forecast.by_pod, forecast.by_priority, forecast.result), strict=True))
        yield self._reading(
            PREDICTED_RECLAIMABLE,
            [((name, *rest), value) for name, one in made.items() for rest, value in _amounts(one.reclaimable)],
        )
        yield self._reading(
            PREDICTED_PEAK,
            [((name, *rest), value) for name, one in made.items() for rest, value in _amounts(one.peak)],
        )

    def _applications(self) -> MetricReading:
        slo, now_s = self._node_watcher.slo, self._clock.time()
        values: list[tuple[tuple[str, ...], float]] = []
        for one in () if slo is None else slo.host_applications:
            for resource, series in ((CPU, metric_kind.APPLICATION_CPU), (MEMORY, metric_kind.APPLICATION_MEMORY)):
                used = self._store.latest((series, one.name), now_s)
                if used is not None:
                    values.append(((one.name, resource, one.priority, one.qos), used))
        return self._reading(HOST_APPLICATION_USAGE, values)

    def _oom_scores(self) -> MetricReading:
        state = self._control_loop.strategy_runner.state_of(runtime_hooks.NAME)
        hooked = state.pods.values() if isinstance(state, RuntimeHooksState) else ()
        values: list[tuple[tuple[str, ...], float]] = []
        for one in hooked:
            for group in one.groups:
                score = group.decision.oom_score_adj
                if group.container and score is not None:
                    values.append(((one.pod.name, one.pod.namespace, one.pod.uid, group.container), float(score)))
        return self._reading(OOM_SCORE_ADJ, values)

    def _reported(self) -> Iterator[MetricReading]:
        last = self._reports.node_metric.last
        if last is None or last.node_metric is None:
            return
        told = last.node_metric
        yield self._reading(REPORTED_NODE_USAGE, list(_usage(told.node_usage)))
        yield self._reading(REPORTED_SYSTEM_USAGE, list(_usage(told.system_usage)))
        for family, of_nodes in (
            (REPORTED_NUMA_NODE_USAGE, [(one.numa_node_id, one.node_usage) for one in told.numa_usages]),
            (REPORTED_NUMA_SYSTEM_USAGE, [(one.numa_node_id, one.system_usage) for one in told.numa_usages]),
        ):
            values = [((str(number), *labels), value) for number, used in of_nodes for labels, value in _usage(used)]
            yield self._reading(family, values)

    # External ------------------------------------------------------------------------------------------------------

    def _reclaimable(self) -> Iterator[MetricReading]:
        forecast = self._reports.predictor.forecast(self._node_watcher.node)
        good = isinstance(forecast, Reclaimable)
        status = [(("koord-prod",), 0.0 if good else 1.0)]
        yield self._reading(RECLAIMABLE_STATUS, status)
        if isinstance(forecast, Reclaimable):
            result: PeakPrediction = forecast.result
            yield self._reading(
                RECLAIMABLE,
                [(("koord-prod", *labels), value) for labels, value in _amounts(result.reclaimable)],
            )

    def _pressure(self) -> Iterator[MetricReading]:
        pods = self._by_uid()
        of_pods: list[tuple[tuple[str, ...], float]] = []
        of_containers: list[tuple[tuple[str, ...], float]] = []
        for (uid, container), by_resource in self._control_loop.collectors.pressure.items():
            pod = pods.get(uid)
            if pod is None:
                continue
            names = {one.id: one.name for one in pod.containers}
            for resource, found in by_resource.items():
                supported = "true" if by_resource["cpu"].full_supported else "false"
                degrees = [("some", found.some), *([("full", found.full)] if found.full_supported else [])]
                for degree, line in degrees:
                    for precision, value in _precisions(line):
                        labels = (uid, pod.name, pod.namespace, resource, precision, degree, supported)
                        if container:
                            of_containers.append(((container, names.get(container, ""), *labels), value))
                        else:
                            of_pods.append((labels, value))
        yield self._reading(POD_PSI, of_pods)
        yield self._reading(CONTAINER_PSI, of_containers)

    def _cycles(self) -> MetricReading:
        values: list[tuple[tuple[str, ...], float]] = []
        for pod in self._by_uid().values():
            for one in pod.containers:
                for series, field in _FIELDS.items():
                    key = (metric_kind.CONTAINER_CPI, one.id, series)
                    last = self._store.window(key, self._clock.time(), _CPI_LOOK_BACK_S).last if one.id else None
                    if last is not None:
                        values.append(((one.id, one.name, pod.uid, pod.name, pod.namespace, field), last))
        return self._reading(CONTAINER_CPI, values)

    def _caches(self) -> Iterator[MetricReading]:
        monitors = self._control_loop.collectors.cache_monitors
        held = [((str(one.cache), qos), float(one.llc_bytes)) for qos, found in monitors.items() for one in found]
        moved = [
            ((str(one.cache), qos, name), float(getattr(one, name)))
            for qos, found in monitors.items()
            for one in found
            for name in ("mbm_local_bytes", "mbm_total_bytes")
        ]
        yield self._reading(LLC_OCCUPANCY, held)
        yield self._reading(MEMORY_BANDWIDTH, moved)

    def _interference(self) -> Iterator[MetricReading]:
        state = self._control_loop.strategy_runner.state_of(interference_view.OWNER)
        if not isinstance(state, InterferenceState):
            return
        disturbed = [
            (
                (one.uid, one.pod, one.namespace, one.container, one.metric, one.culprit),
                (one.value - one.mean) / one.deviation,
            )
            for one in state.incidents.values()
        ]
        yield self._reading(INTERFERENCE, disturbed)
        counted = [(key, float(count)) for key, count in state.counts.items()]
        yield self._reading(INTERFERENCE_ACTIONS, counted)

    def _by_uid(self) -> Mapping[str, PodMeta]:
        return {pod.uid: pod for pod in self._pods.pods or ()}

    def _reading(
        self, declaration: MetricDeclaration, values: Sequence[tuple[tuple[str, ...], float]]
    ) -> MetricReading:
        return declaration.reading([((self._node, *rest), value) for rest, value in values])


def _amounts(amount: ResourceAmount) -> list[tuple[tuple[str, ...], float]]:
    return [((CPU, "core"), amount.cpu_milli / 1000), ((MEMORY, "byte"), float(amount.memory_bytes))]


def _usage(usage: ResourceMap) -> Iterator[tuple[tuple[str, ...], float]]:
    for name, unit in ((CPU, "core"), (MEMORY, "byte")):
        text = usage.resources.get(name)
        if text is not None:
            yield (name, unit), Quantity.parse(text).milli_value() / 1000


def _precisions(line: PressureLine) -> tuple[tuple[str, float], ...]:
    return ("avg10", line.avg10), ("avg60", line.avg60), ("avg300", line.avg300)
