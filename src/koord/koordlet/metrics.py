"""The agent's metrics under Koordinator's names: one internal registry for operators of the agent, one external
registry for those of the cluster. Series of pods that are gone expire after five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.config.slo.defaults import CFS_QUOTA
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord.host.cgroup import knob
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.core_sched_manager import CoreSchedOutcome, CoreSchedResult
from koord.koordlet.inputs.node_inputs import NodeProperties
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.strategies import cpu_burst, cpu_suppress, runtime_hooks
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.runner import StrategyResult
from koord.telemetry.metrics import Gauge, MetricFamily, MetricRegistry, exponential_buckets

EXPIRE_S = 300.0
_UNITS = {BATCH_CPU: "integer", MID_CPU: "integer", BATCH_MEMORY: "byte", MID_MEMORY: "byte"}
_CONTAINER = ("pod_namespace", "pod_name", "container_id", "container_name")
_OWNED = ("pod_uid", "pod_name", "pod_namespace", "container_id", "container_name")
_CORE_SCHED = ("core_sched_group", "core_sched_cookie")
_CORE_SCHED_STATUS = {
    CoreSchedOutcome.ADDED: "succeeded",
    CoreSchedOutcome.ASSIGNED: "succeeded",
    CoreSchedOutcome.CLEARED: "succeeded",
    CoreSchedOutcome.FAILED: "failed",
}


class KoordletMetrics:
    """The counted metrics; those computed at scrape time are in `koord.koordlet.scrape_metrics`."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.internal = internal = MetricRegistry()
        self.external = external = MetricRegistry()
        p = "koordlet_"
        self.start_time = internal.gauge(
            f"{p}start_time", "Unix time at which koordlet started, in seconds.", ("node",)
        )
        self.info_status = {
            name: internal.counter(
                f"{p}collect_{name}_status", f"Outcomes of collecting {name.replace('_', ' ')}.", ("node", "status")
            )
            for name in ("node_cpu_info", "node_numa_info", "node_local_storage_info")
        }
        self.evictions = internal.counter(
            f"{p}pod_eviction", "Pods that koordlet evicted, by reason.", ("node", "reason")
        )
        self.eviction_details = internal.counter(
            f"{p}pod_eviction_detail",
            "Pods that koordlet evicted, by pod; a series ends five minutes after the eviction.",
            ("node", "pod_namespace", "pod_name", "reason"),
        )
        self.used_cpu = internal.gauge(f"{p}node_used_cpu_cores", "CPU that the node uses, in cores.", ("node",))
        self.used_memory = internal.gauge(
            f"{p}node_used_memory_bytes", "Memory that the node uses, in bytes.", ("node",)
        )
        self.suppressed = internal.gauge(
            f"{p}be_suppress_cpu_cores", "CPU that CPU suppression leaves to BE pods, in cores.", ("node", "type")
        )
        self.ls_used = internal.gauge(
            f"{p}be_suppress_ls_used_cpu_cores", "CPU that pods other than BE use, in cores.", ("node",)
        )
        self.be_used = internal.gauge(f"{p}be_suppress_be_used_cpu_cores", "CPU that BE pods use, in cores.", ("node",))
        self.burst = internal.gauge(
            f"{p}container_scaled_cfs_burst_us",
            "cpu.cfs_burst_us that CPU burst gave a container, in microseconds.",
            ("node", *_CONTAINER),
        )
        self.quota = internal.gauge(
            f"{p}container_scaled_cfs_quota_us",
            "cpu.cfs_quota_us that CPU burst gave a container, in microseconds.",
            ("node", *_CONTAINER),
        )
        self.update_ms = internal.histogram(
            f"{p}resource_update_duration_milliseconds",
            "Time of one write of a cgroup or resctrl file.",
            ("type", "status"),
            exponential_buckets(0.01, 4, 8),
        )
        self.kubelet_s = internal.histogram(
            f"{p}kubelet_request_duration_seconds",
            "Time of one request to the kubelet.",
            ("verb", "path", "code"),
            exponential_buckets(0.001, 4, 7),
        )
        self.hook_ms = internal.histogram(
            f"{p}runtime_hook_invoked_duration_milliseconds",
            "Time of one runtime hook for one pod or container.",
            ("node", "hook", "stage", "status"),
            exponential_buckets(0.01, 4, 8),
        )
        self.reconcile_ms = internal.histogram(
            f"{p}runtime_hook_reconciler_invoked_duration_milliseconds",
            "Time of one run of the reconciler, which applies all runtime hooks to all pods.",
            ("node", "level", "resource_type", "status"),
            exponential_buckets(0.01, 4, 8),
        )
        self.strategy_errors = internal.counter(
            f"{p}strategy_errors_total",
            "Unexpected errors in a strategy; each has a traceback in the log.",
            ("node", "strategy"),
        )
        self.journal_unwritable = internal.gauge(
            f"{p}journal_unwritable",
            "1 while koordlet writes no new values because its journal cannot be written.",
            ("node",),
        )
        self.core_sched_cookies = internal.gauge(
            f"{p}container_core_sched_cookie",
            "1 for the core scheduling cookie of a container.",
            ("node", "pod_name", "pod_namespace", "pod_uid", "container_name", "container_id", *_CORE_SCHED),
        )
        self.core_sched_status = internal.counter(
            f"{p}core_sched_cookie_manage_status",
            "Core scheduling cookies that were assigned or cleared, by outcome.",
            ("node", "core_sched_group", "status"),
        )
        self.allocatable = external.gauge(
            f"{p}node_resource_allocatable",
            "Batch and mid resources of the node: cpu in thousandths of a core, memory in bytes.",
            ("node", "resource", "unit"),
        )
        self.requests = external.gauge(
            f"{p}container_resource_requests",
            "Batch and mid resources that a container requests.",
            ("node", "resource", "unit", *_OWNED),
        )
        self.limits = external.gauge(
            f"{p}container_resource_limits",
            "Limits of batch and mid resources of a container.",
            ("node", "resource", "unit", *_OWNED),
        )
        self._details: dict[tuple[str, ...], float] = {}
        self._core_sched_groups: dict[tuple[str, ...], float] = {}

    def observe_write(self, kind_of_file: str, done: bool, seconds: float) -> None:
        """Observe the duration of one write; this is the executor's `measure` callback."""
        self.update_ms.labels(kind_of_file, "success" if done else "failed").observe(seconds * 1000)

    def observe_hook(self, hook: str, stage: str, done: bool, seconds: float) -> None:
        """Observe the duration of one call of a hook by a runtime."""
        self.hook_ms.labels(self.node, hook, stage, "success" if done else "failed").observe(seconds * 1000)

    def count_eviction(self, now_s: float, victim: EvictionRequest) -> None:
        labels = (self.node, victim.namespace, victim.name, victim.reason)
        self.evictions.labels(self.node, victim.reason).inc()
        self.eviction_details.labels(*labels).inc()
        self._details[labels] = now_s

    def set_usage(self, store: SeriesStore, now_s: float) -> None:
        """Set the gauges of what the node uses from the latest samples."""
        for family, key, scale in (
            (self.used_cpu, (metric_kind.NODE_CPU,), 1.0),
            (self.used_memory, (metric_kind.NODE_MEMORY,), 1.0),
            (self.be_used, (metric_kind.NODE_BE, metric_kind.BE_USAGE), 0.001),
        ):
            value = store.latest(key, now_s)
            if value is None:
                family.remove(self.node)  # an old number would be read as the present one
            else:
                family.labels(self.node).set(value * scale)

    def record_strategies(self, ran: Iterable[StrategyResult], pods: Iterable[PodMeta], policy: str) -> None:
        """Update the metrics of strategies from their results. `policy` is that of CPU suppression."""
        for one in ran:
            if one.error is not None:
                self.strategy_errors.labels(self.node, one.strategy).inc()
            elif one.strategy == cpu_suppress.OWNER:
                self._suppressed(one.plan.figures, policy)
            elif one.strategy == cpu_burst.OWNER:
                self._burst(one, pods)
            if one.strategy == runtime_hooks.NAME:
                status = "success" if one.error is None else "failed"
                self.reconcile_ms.labels(self.node, "allpods", "all", status).observe(one.seconds * 1000)

    def record_core_sched(self, results: Iterable[CoreSchedResult], now_s: float) -> None:
        """Show the cookies of all containers, and count what was changed or could not be."""
        self.core_sched_cookies.clear()
        for one in results:
            pod, container = one.container.pod, one.container
            if one.cookie:
                owner = (pod.name, pod.namespace, pod.uid, container.name, container.id)
                self.core_sched_cookies.labels(self.node, *owner, one.group, str(one.cookie)).set(1)
            status = _CORE_SCHED_STATUS.get(one.outcome)
            if status is not None:
                labels = (self.node, one.group, status)
                self.core_sched_status.labels(*labels).inc()
                self._core_sched_groups[labels] = now_s

    def count_info_collect(self, name: str, good: bool) -> None:
        self.info_status[name].labels(self.node, "succeeded" if good else "failed").inc()

    def expire(self, now_s: float) -> None:
        """Drop the series of pods that were evicted long ago, and of groups of core scheduling that rest."""
        for labels in [labels for labels, at_s in self._details.items() if not 0 <= now_s - at_s <= EXPIRE_S]:
            del self._details[labels]
            self.eviction_details.remove(*labels)
        groups = self._core_sched_groups
        for labels in [labels for labels, at_s in groups.items() if not 0 <= now_s - at_s <= EXPIRE_S]:
            del groups[labels]
            self.core_sched_status.remove(*labels)

    def node_changed(self, properties: NodeProperties) -> None:
        for name, unit in _UNITS.items():
            amount = properties.allocatable.get(name)
            if amount is None:
                self.allocatable.remove(self.node, name, unit)
            else:
                self.allocatable.labels(self.node, name, unit).set(amount)

    def pods_changed(self, pods: Iterable[PodMeta]) -> None:
        self.requests.clear()
        self.limits.clear()
        for pod in pods:
            for one in pod.containers:
                owner = (pod.uid, pod.name, pod.namespace, one.id, one.name)
                self._amounts(self.requests, one.requests, owner)
                self._amounts(self.limits, one.limits, owner)

    def _amounts(self, family: MetricFamily[Gauge], listed: Mapping[str, int], owner: tuple[str, ...]) -> None:
        for name, unit in _UNITS.items():
            if name in listed:
                family.labels(self.node, name, unit, *owner).set(listed[name])

    def _suppressed(self, figures: Mapping[str, float], policy: str) -> None:
        cores, used = figures.get("be_suppress_cpu_cores"), figures.get("be_suppress_ls_used_cpu_cores")
        self.suppressed.clear()
        if used is not None:
            self.ls_used.labels(self.node).set(used)
        if cores is not None:
            self.suppressed.labels(self.node, policy if policy == CFS_QUOTA else "cpuset").set(cores)

    def _burst(self, ran: StrategyResult, pods: Iterable[PodMeta]) -> None:
        names = {
            one.group: (pod.namespace, pod.name, one.id, one.name)
            for pod in pods
            for one in pod.containers
            if one.group
        }
        here = {(self.node, *labels) for labels in names.values()}
        for family in (self.burst, self.quota):
            for labels, _ in family:
                if labels not in here:
                    family.remove(*labels)
        for effect in ran.plan.effects:
            if isinstance(effect, WriteCgroup) and effect.group in names:
                family = self.burst if effect.file == knob.CPU_BURST else self.quota
                family.labels(self.node, *names[effect.group]).set(float(effect.value))
