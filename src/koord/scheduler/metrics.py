"""Serve kube-scheduler's and Koordinator's metrics under their names, labels and buckets.

What the queue and the cluster state count anyway is read when metrics are served (`serve_sources`), and costs nothing
in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from koord.scheduler.metrics_recorder import MetricsRecorder
from koord.telemetry.metrics import MetricReading, MetricRegistry, exponential_buckets

_MAX_ATTEMPTS_LABEL = 15  # from here on the number of attempts is told as "15+"
_SHORT_BUCKETS = exponential_buckets(0.0001, 2, 12)
_LONG_BUCKETS = exponential_buckets(0.001, 2, 15)
_PLUGIN_BUCKETS = exponential_buckets(0.00001, 1.5, 20)


class QueueMetricsSource(Protocol):
    """Show the counts of the scheduling queue."""

    @property
    def counters(self) -> QueueCountersSource: ...

    def counts(self) -> Mapping[str, int]: ...

    def in_flight_events(self) -> Mapping[str, int]: ...


class QueueCountersSource(Protocol):
    @property
    def incoming(self) -> Mapping[tuple[str, str], int]: ...

    @property
    def unschedulable(self) -> Mapping[tuple[str, str], int]: ...


class CacheMetricsSource(Protocol):
    def cache_size(self) -> Mapping[str, int]: ...


class SchedulerMetrics(MetricsRecorder):
    def __init__(self, registry: MetricRegistry) -> None:
        self._registry = registry
        self._attempts = registry.counter(
            "scheduler_schedule_attempts_total",
            "Attempts to schedule pods by result: 'unschedulable' found no node, 'error' is the scheduler's own.",
            ("profile", "result"),
        )
        self._attempt_s = registry.histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Time of an attempt: deciding and binding.",
            ("profile", "result"),
            _LONG_BUCKETS,
        )
        self._algorithm_s = registry.histogram(
            "scheduler_scheduling_algorithm_duration_seconds", "Time of deciding.", (), _LONG_BUCKETS
        ).labels()
        # Koordinator's
        self._evaluated = registry.histogram(
            "scheduler_pod_scheduling_evaluated_nodes", "Nodes judged for a pod.", (), exponential_buckets(1, 2, 24)
        ).labels()
        self._feasible = registry.histogram(
            "scheduler_pod_scheduling_feasible_nodes", "Nodes that fit a pod.", (), exponential_buckets(1, 2, 24)
        ).labels()
        self._event_s = registry.histogram(
            "scheduler_event_handling_duration_seconds", "Time of taking in an event.", ("event",), _SHORT_BUCKETS
        )
        self._victims = registry.histogram(
            "scheduler_preemption_victims", "Victims that were chosen at once.", (), exponential_buckets(1, 2, 7)
        ).labels()
        self._preemptions = registry.counter(
            "scheduler_preemption_attempts_total", "Times that victims were looked for."
        ).labels()
        self._sli_s = registry.histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From a pod's first attempt to its binding, gates and earlier failures included.",
            ("attempts",),
            exponential_buckets(0.01, 2, 20),
        )
        self._pod_attempts = registry.histogram(
            "scheduler_pod_scheduling_attempts", "Attempts that a bound pod took.", (), exponential_buckets(1, 2, 5)
        ).labels()
        self._point_s = registry.histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Time of all plugins of an extension point.",
            ("extension_point", "status", "profile"),
            _SHORT_BUCKETS,
        )
        self._plugin_s = registry.histogram(
            "scheduler_plugin_execution_duration_seconds",
            "Time of one plugin at an extension point.",
            ("plugin", "extension_point", "status"),
            _PLUGIN_BUCKETS,
        )
        self._hint_s = registry.histogram(
            "scheduler_queueing_hint_execution_duration_seconds",
            "Time of asking a plugin whether an event helps a pod.",
            ("plugin", "event", "hint"),
            _PLUGIN_BUCKETS,
        )
        self._permit_s = registry.histogram(
            "scheduler_permit_wait_duration_seconds",
            "Time that pods waited for permission.",
            ("result",),
            _LONG_BUCKETS,
        )
        self._evaluations = registry.counter(
            "scheduler_plugin_evaluation_total",
            "Attempts in which a plugin took part.",
            ("plugin", "extension_point", "profile"),
        )
        self._eviction_s = registry.histogram(
            "scheduler_preemption_goroutines_duration_seconds",
            "Time from choosing victims to having asked for their end.",
            ("result",),
            exponential_buckets(0.01, 2, 20),
        )
        self._evictions = registry.counter(
            "scheduler_preemption_goroutines_execution_total", "Sets of victims asked to end.", ("result",)
        )

    # Attempts --------------------------------------------------------------------------------------------------------

    def decision_made(self, profile: str, result: str, seconds: float) -> None:
        """Record a decision; one that goes on to binding becomes an attempt when that ends."""
        self._algorithm_s.observe(seconds)
        if result != "scheduled":
            self.attempt(result, profile, seconds)

    def nodes_evaluated(self, evaluated: int, feasible: int) -> None:
        self._evaluated.observe(evaluated)
        self._feasible.observe(feasible)

    def pod_bound(self, profile: str, seconds: float, since_queued_s: float, attempts: int) -> None:
        self.attempt("scheduled", profile, seconds)
        self._pod_attempts.observe(attempts)
        label = str(attempts) if attempts < _MAX_ATTEMPTS_LABEL else f"{_MAX_ATTEMPTS_LABEL}+"
        self._sli_s.labels(label).observe(since_queued_s)

    def binding_failed(self, profile: str, result: str, seconds: float) -> None:
        self.attempt(result, profile, seconds)

    def attempt(self, result: str, profile: str, seconds: float) -> None:
        self._attempts.labels(profile, result).inc()
        self._attempt_s.labels(profile, result).observe(seconds)

    # Parts of an attempt ---------------------------------------------------------------------------------------------

    def point_took(self, profile: str, point: str, seconds: float) -> None:
        self.extension_point(point, "Success", profile, seconds)

    def extension_point(self, point: str, status: str, profile: str, seconds: float) -> None:
        self._point_s.labels(point, status, profile).observe(seconds)

    def plugin(self, plugin: str, point: str, status: str, seconds: float) -> None:
        self._plugin_s.labels(plugin, point, status).observe(seconds)

    def evaluated(self, plugin: str, point: str, profile: str, times: int = 1) -> None:
        self._evaluations.labels(plugin, point, profile).inc(times)

    def hint(self, plugin: str, event: str, hint: str, seconds: float) -> None:
        self._hint_s.labels(plugin, event, hint).observe(seconds)

    def permit_waited(self, result: str, seconds: float) -> None:
        self._permit_s.labels(result).observe(seconds)

    def event(self, event: str, seconds: float) -> None:
        self._event_s.labels(event).observe(seconds)

    # Preemption ------------------------------------------------------------------------------------------------------

    def victims_searched(self, victims: int) -> None:
        """Record a search for victims; one that found none is an attempt all the same."""
        self._preemptions.inc()
        if victims:
            self._victims.observe(victims)

    def victims_ended(self, result: str, seconds: float) -> None:
        self._evictions.labels(result).inc()
        self._eviction_s.labels(result).observe(seconds)

    # Numbers that others hold ----------------------------------------------------------------------------------------

    def serve_sources(self, queue: QueueMetricsSource, state: CacheMetricsSource, binding: Callable[[], int]) -> None:
        """Serve the numbers of the queue and the cluster state too; `binding` counts binding cycles in progress."""

        def read() -> Iterator[MetricReading]:
            yield _gauge("scheduler_pending_pods", "Pods that wait, by queue.", "queue", queue.counts())
            yield _gauge(
                "scheduler_inflight_events", "Events kept for pods being tried.", "event", queue.in_flight_events()
            )
            yield _gauge("scheduler_cache_size", "Nodes, pods and assumed pods held.", "type", state.cache_size())
            yield _gauge("scheduler_goroutines", "Work under way.", "operation", {"binding": binding()})
            incoming = {(event, part): n for (part, event), n in queue.counters.incoming.items()}
            yield MetricReading(
                "scheduler_queue_incoming_pods_total",
                "Pods that entered a queue, by event.",
                "counter",
                ("event", "queue"),
                _sorted(incoming),
            )
            yield MetricReading(
                "scheduler_unschedulable_pods",
                "Pods that a plugin refuses; a pod counts for each of them.",
                "gauge",
                ("plugin", "profile"),
                _sorted(queue.counters.unschedulable),
            )

        self._registry.source(read)


def _gauge(name: str, help: str, label: str, values: Mapping[str, int]) -> MetricReading:
    return MetricReading(name, help, "gauge", (label,), _sorted({(key,): n for key, n in values.items()}))


def _sorted(values: Mapping[Any, int]) -> list[tuple[tuple[str, ...], float]]:
    return [(key, float(values[key])) for key in sorted(values)]


_GANG_CYCLE_BUCKETS = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)
_QUOTA_LABELS = ("name", "resource", "tree", "is_parent", "parent", "field")


class KoordinatorMetrics:
    def __init__(self, registry: MetricRegistry) -> None:
        counter, gauge, histogram = registry.counter, registry.gauge, registry.histogram
        self.timeout = counter(
            "scheduler_scheduling_timeout", "Looks that found a pod's attempt lasting too long.", ("profile",)
        )
        self.next_pod_s = histogram(
            "scheduler_next_pod_delete_from_queue_latency",
            "Time of taking a plugin's next pod out of the queue.",
            (),
            exponential_buckets(1e-5, 2, 24),
        ).labels()
        # Reservations
        self.index_queries = counter(
            "scheduler_reservation_selector_index_query_total", "Look-ups by selector.", ("result",)
        )
        self.index_candidates = histogram(
            "scheduler_reservation_selector_index_candidates_count",
            "What they found.",
            (),
            exponential_buckets(1, 2, 16),
        ).labels()
        # Quotas
        self.quota_s = histogram(
            "scheduler_elastic_quota_process_latency",
            "Time of an operation on quotas.",
            ("operation",),
            exponential_buckets(1e-5, 2, 24),
        )
        self.quota_hook_s = histogram(
            "scheduler_elastic_quota_hook_plugin_latency",
            "Time of a hook of quotas.",
            ("plugin", "operation"),
            exponential_buckets(1e-6, 2, 24),
        )
        self.quota_spec = gauge("scheduler_elastic_quota_spec", "What a quota asks for.", _QUOTA_LABELS)
        self.quota_status_s = histogram(
            "scheduler_update_elastic_quota_status_duration_seconds",
            "Time of writing a quota's status.",
            (),
            exponential_buckets(0.001, 2, 15),
        ).labels()
        # Devices and gangs
        self.unplanned_secondary = gauge(
            "scheduler_secondary_device_not_well_planned", "Nodes with such devices.", ("node_name",)
        )
        self.gang_cycle_s = histogram(
            "scheduler_gang_schedule_cycle_duration_seconds",
            "Time of trying a whole gang.",
            ("reason", "job_size"),
            _GANG_CYCLE_BUCKETS,
        )
        self.job_preemption_s = histogram(
            "scheduler_job_preemption_duration_seconds",
            "Time of finding victims for a job.",
            ("jobName", "result"),
            exponential_buckets(0.001, 2, 20),
        )
        # Batches
        self.batch_s = histogram(
            "scheduler_inline_batch_schedule_duration_seconds",
            "Time of scheduling a job at once.",
            ("result",),
            exponential_buckets(0.001, 2, 15),
        )
        self.batch_by_node_s = histogram(
            "scheduler_batch_algorithm_by_node_duration_seconds",
            "Its share per node.",
            (),
            exponential_buckets(0.001, 2, 15),
        ).labels()
        self.batch_by_pod_s = histogram(
            "scheduler_batch_algorithm_by_pod_duration_seconds",
            "Its share per pod.",
            (),
            exponential_buckets(0.001, 2, 15),
        ).labels()
        self.partial_jobs = counter("scheduler_batch_partial_bind_jobs_total", "Jobs bound in part.").labels()
        self.partial_pods = counter("scheduler_batch_partial_bind_pods_total", "Their pods.", ("status",))
        self.bind_failures = counter(
            "scheduler_batch_bind_failures_total", "Pods of jobs that were not bound.", ("reason", "phase")
        )
        self.cleanups = counter("scheduler_batch_assumed_pods_cleanup_total", "Promises taken back.", ("reason",))


def gang_size_label(members: int) -> str:
    """Return a gang's size as a label: 0, 1-100, 101-200 ... 901-1000, 1000+."""
    if members <= 0:
        return "0"
    if members > 1000:
        return "1000+"
    first = (members - 1) // 100 * 100 + 1
    return f"{first}-{first + 99}"
