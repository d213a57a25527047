"""Serve kube-scheduler's and Koordinator's metrics under their names, labels and buckets.

What the queue and the cluster state count anyway is read when metrics are served (`serve_sources`), and costs nothing
in between. The extension points and plugins of sampled attempts are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ObjectEvent
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.plugin_timing import status_name
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import MetricDeclaration, MetricReading, MetricRegistry, exponential_buckets

_MAX_ATTEMPTS_LABEL = 15  # from here on the number of attempts is told as "15+"
_SHORT_BUCKETS = exponential_buckets(0.0001, 2, 12)
_LONG_BUCKETS = exponential_buckets(0.001, 2, 15)
_PLUGIN_BUCKETS = exponential_buckets(0.00001, 1.5, 20)
PENDING_PODS = MetricDeclaration(
    "scheduler_pending_pods", "Pods that wait, by queue: active, backoff, unschedulable, gated.", "gauge", ("queue",)
)
INFLIGHT_EVENTS = MetricDeclaration(
    "scheduler_inflight_events", "Events that are kept for pods whose attempt is in progress.", "gauge", ("event",)
)
CACHE_SIZE = MetricDeclaration(
    "scheduler_cache_size", "Nodes, pods and assumed pods in the scheduler's cache.", "gauge", ("type",)
)
GOROUTINES = MetricDeclaration(
    "scheduler_goroutines", "Concurrent operations in progress: binding cycles.", "gauge", ("operation",)
)
INCOMING_PODS = MetricDeclaration(
    "scheduler_queue_incoming_pods_total",
    "Pods that were added to a queue, by queue and by the event that did it.",
    "counter",
    ("event", "queue"),
)
UNSCHEDULABLE_PODS = MetricDeclaration(
    "scheduler_unschedulable_pods",
    "Pods that wait because a plugin refused them; a pod counts for each plugin that did.",
    "gauge",
    ("plugin", "profile"),
)
PLUGIN_EVALUATIONS = MetricDeclaration(
    "scheduler_plugin_evaluation_total",
    "Attempts in which a plugin was evaluated at PreFilter, Filter, PreScore or Score, and did not skip the pod.",
    "counter",
    ("plugin", "extension_point", "profile"),
)
SCHEDULER_READINGS = (
    PENDING_PODS,
    INFLIGHT_EVENTS,
    CACHE_SIZE,
    GOROUTINES,
    INCOMING_PODS,
    UNSCHEDULABLE_PODS,
    PLUGIN_EVALUATIONS,
)


class MetricsRecorder:
    """Receive the numbers of the scheduling loop; this one records nothing."""

    def decision_made(
        self, profile: str, result: Literal["scheduled", "unschedulable", "error"], seconds: float
    ) -> None:
        """Record that a decision was made; binding comes later."""

    def nodes_evaluated(self, evaluated: int, feasible: int) -> None:
        """Record how many nodes were evaluated and how many were feasible when a node was chosen."""

    def pod_bound(self, profile: str, seconds: float, since_queued_s: float, attempts: int) -> None:
        """Record a bound pod: the time of this attempt, the time since it was queued, and the number of attempts."""

    def binding_failed(self, profile: str, result: Literal["unschedulable", "error"], seconds: float) -> None:
        """Record that a pod with a chosen node failed at Reserve, Permit or binding."""

    def victims_searched(self, victims: int) -> None:
        """Record a search for victims and how many were chosen; 0 when preemption does not help."""

    def permit_waited(self, result: str, seconds: float) -> None:
        """Record the end of a wait at Permit; the result is Kubernetes' name of it."""

    def point_took(self, profile: str, point: str, seconds: float) -> None:
        """Record how long an extension point took in a sampled attempt."""

    def plugin_took(self, plugin: str, point: str, status: str, seconds: float) -> None:
        """Record how long a plugin took at an extension point in a sampled attempt; the status is Kubernetes' name."""

    def hint_took(self, plugin: str, event: str, hint: Literal["Queue", "QueueSkip"], seconds: float) -> None:
        """Record how long a queueing hint took."""

    def event_handled(self, event: str, seconds: float) -> None:
        """Record how long it took to bring the cluster state and the queue up to date with an event of the watch."""

    def victims_ended(self, result: Literal["success", "error"], seconds: float) -> None:
        """Record that the deletion of all victims of a preemption was requested, or failed."""


SAMPLE_EVERY = 10


class PluginTimer:
    """Time the calls of plugins in a sampled attempt or binding cycle; see `AttemptTimer`."""

    def __init__(self, recorder: MetricsRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._lap = 0.0

    def point_ended(self, point: str) -> None:
        """Do nothing: binding cycles time their points themselves."""

    def lap(self) -> None:
        self._lap = self._clock.monotonic()

    def plugin_ended(self, plugin: str, point: str, answer: object) -> None:
        now = self._clock.monotonic()
        self._recorder.plugin_took(plugin, point, status_name(answer), now - self._lap)
        self._lap = now


class PointTimer(PluginTimer):
    """Time the extension points and plugins of one attempt in ten, because timing costs as much as a quick decision."""

    def __init__(self, recorder: MetricsRecorder, clock: Clock) -> None:
        super().__init__(recorder, clock)
        self._count = 0
        self._profile = ""
        self._since = 0.0

    def start_if_sampled(self, profile: str, now: float) -> bool:
        """Return whether this attempt is sampled; if it is, its time starts now."""
        self._count += 1
        if self._count % SAMPLE_EVERY != 1:
            return False
        self._profile, self._since = profile, now
        return True

    def for_binding_cycle(self) -> PluginTimer:
        """Return a timer for the binding cycle of the attempt, which runs beside other attempts."""
        return PluginTimer(self._recorder, self._clock)

    def point_ended(self, point: str) -> None:
        now = self._clock.monotonic()
        self._recorder.point_took(self._profile, point, now - self._since)
        self._since = now


class QueueingHintTimer:
    """Ask the queueing hints of plugins and time them: all of them, as hints are asked for pods that wait alone."""

    def __init__(self, recorder: MetricsRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock

    def __call__(self, plugin: Plugin, pod: PodInfo, object_event: ObjectEvent) -> bool:
        began = self._clock.monotonic()
        helps = plugin.queueing_hint(pod, object_event)
        took = self._clock.monotonic() - began
        self._recorder.hint_took(plugin.name, object_event.metric_label, "Queue" if helps else "QueueSkip", took)
        return helps


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
            "Time of an attempt to schedule a pod: algorithm and binding.",
            ("profile", "result"),
            _LONG_BUCKETS,
        )
        self._algorithm_s = registry.histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Time of the scheduling algorithm: choosing a node for a pod.",
            (),
            _LONG_BUCKETS,
        ).labels()
        # Koordinator's
        self._evaluated = registry.histogram(
            "scheduler_pod_scheduling_evaluated_nodes",
            "Nodes that were filtered for a pod, where a node was found.",
            (),
            exponential_buckets(1, 2, 24),
        ).labels()
        self._feasible = registry.histogram(
            "scheduler_pod_scheduling_feasible_nodes",
            "Nodes that passed all filters for a pod, where a node was found.",
            (),
            exponential_buckets(1, 2, 24),
        ).labels()
        self._event_s = registry.histogram(
            "scheduler_event_handling_duration_seconds",
            "Time of handling an event of the cluster: cache and queue.",
            ("event",),
            _SHORT_BUCKETS,
        )
        self._victims = registry.histogram(
            "scheduler_preemption_victims", "Victims of one preemption.", (), exponential_buckets(1, 2, 7)
        ).labels()
        self._preemptions = registry.counter(
            "scheduler_preemption_attempts_total", "Preemptions that were tried, with or without victims."
        ).labels()
        self._sli_s = registry.histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From a pod's first attempt to its binding, gates and earlier failures included.",
            ("attempts",),
            exponential_buckets(0.01, 2, 20),
        )
        self._pod_attempts = registry.histogram(
            "scheduler_pod_scheduling_attempts",
            "Attempts that it took to bind a pod.",
            (),
            exponential_buckets(1, 2, 5),
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
            "Time of a plugin's queueing hint, which says whether an event can make a pod schedulable.",
            ("plugin", "event", "hint"),
            _PLUGIN_BUCKETS,
        )
        self._permit_s = registry.histogram(
            "scheduler_permit_wait_duration_seconds",
            "Time that pods waited at the Permit extension point.",
            ("result",),
            _LONG_BUCKETS,
        )
        self._eviction_s = registry.histogram(
            "scheduler_preemption_goroutines_duration_seconds",
            "Time from the choice of victims to the requests that delete them.",
            ("result",),
            exponential_buckets(0.01, 2, 20),
        )
        self._evictions = registry.counter(
            "scheduler_preemption_goroutines_execution_total",
            "Sets of victims whose deletion was requested.",
            ("result",),
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

    def plugin_took(self, plugin: str, point: str, status: str, seconds: float) -> None:
        self._plugin_s.labels(plugin, point, status).observe(seconds)

    def hint_took(self, plugin: str, event: str, hint: str, seconds: float) -> None:
        self._hint_s.labels(plugin, event, hint).observe(seconds)

    def permit_waited(self, result: str, seconds: float) -> None:
        self._permit_s.labels(result).observe(seconds)

    def event_handled(self, event: str, seconds: float) -> None:
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

    def serve_sources(
        self,
        queue: QueueMetricsSource,
        state: CacheMetricsSource,
        binding: Callable[[], int],
        evaluations: Mapping[str, Callable[[], Mapping[tuple[str, str], int]]],
    ) -> None:
        """Serve the numbers of the queue and the cluster state too.

        `binding` counts binding cycles in progress, `evaluations` by profile the attempts by plugin and point.
        """

        def read() -> Iterator[MetricReading]:
            yield PENDING_PODS.reading(_by_label(queue.counts()))
            yield INFLIGHT_EVENTS.reading(_by_label(queue.in_flight_events()))
            yield CACHE_SIZE.reading(_by_label(state.cache_size()))
            yield GOROUTINES.reading(_by_label({"binding": binding()}))
            incoming = {(event, part): n for (part, event), n in queue.counters.incoming.items()}
            yield INCOMING_PODS.reading(_sorted(incoming))
            yield UNSCHEDULABLE_PODS.reading(_sorted(queue.counters.unschedulable))
            evaluated = {(*key, profile): n for profile, count in evaluations.items() for key, n in count().items()}
            yield PLUGIN_EVALUATIONS.reading(_sorted(evaluated))

        self._registry.source(read)


def _by_label(values: Mapping[str, int]) -> list[tuple[tuple[str, ...], float]]:
    return _sorted({(key,): n for key, n in values.items()})


def _sorted(values: Mapping[Any, int]) -> list[tuple[tuple[str, ...], float]]:
    return [(key, float(values[key])) for key in sorted(values)]


_GANG_CYCLE_BUCKETS = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)


class KoordinatorMetrics:
    """The metrics that Koordinator adds to those of kube-scheduler. Those that nothing here would fill are left out."""

    def __init__(self, registry: MetricRegistry) -> None:
        counter, histogram = registry.counter, registry.histogram
        self.timeout = counter(
            "scheduler_scheduling_timeout",
            "Checks that found an attempt lasting longer than the timeout.",
            ("profile",),
        )
        self.next_pod_s = histogram(
            "scheduler_next_pod_delete_from_queue_latency",
            "Time of removing the pod that a NextPod plugin chose from the queue.",
            (),
            exponential_buckets(1e-5, 2, 24),
        ).labels()
        # Quotas
        self.quota_s = histogram(
            "scheduler_elastic_quota_process_latency",
            "Time of an operation on the quota trees.",
            ("operation",),
            exponential_buckets(1e-5, 2, 24),
        )
        self.quota_status_s = histogram(
            "scheduler_update_elastic_quota_status_duration_seconds",
            "Time of writing the status of an ElasticQuota.",
            (),
            exponential_buckets(0.001, 2, 15),
        ).labels()
        # Gangs
        self.gang_cycle_s = histogram(
            "scheduler_gang_schedule_cycle_duration_seconds",
            "Time of a scheduling cycle of a gang, by the reason of its end.",
            ("reason", "job_size"),
            _GANG_CYCLE_BUCKETS,
        )
        self.job_preemption_s = histogram(
            "scheduler_job_preemption_duration_seconds",
            "Time of finding the victims of a job's preemption.",
            ("jobName", "result"),
            exponential_buckets(0.001, 2, 20),
        )
        self.batch_s = histogram(
            "scheduler_inline_batch_schedule_duration_seconds",
            "Time of scheduling all pods of a job in one batch.",
            ("result",),
            exponential_buckets(0.001, 2, 15),
        )


def gang_size_label(members: int) -> str:
    """Return a gang's size as a label: 0, 1-100, 101-200 ... 901-1000, 1000+."""
    if members <= 0:
        return "0"
    if members > 1000:
        return "1000+"
    first = (members - 1) // 100 * 100 + 1
    return f"{first}-{first + 99}"
