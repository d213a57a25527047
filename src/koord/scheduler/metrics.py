"""Serve kube-scheduler's and Koordinator's metrics under their names, labels and buckets.

What the queue and the cluster state count anyway is read when metrics are served (`serve_sources`), and costs nothing
in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from koord.telemetry.metrics.buckets import exponential
from koord.telemetry.metrics.registry import Reading, Registry

_MANY_ATTEMPTS = 15  # from here on the number of attempts is told as "15+"
_SHORT = exponential(0.0001, 2, 12)
_LONG = exponential(0.001, 2, 15)
_PLUGIN = exponential(0.00001, 1.5, 20)


class Queue(Protocol):
    """Show the counts of the scheduling queue."""

    @property
    def tally(self) -> Tally: ...

    def counts(self) -> Mapping[str, int]: ...

    def in_flight_events(self) -> Mapping[str, int]: ...


class Tally(Protocol):
    @property
    def incoming(self) -> Mapping[tuple[str, str], int]: ...

    @property
    def refused(self) -> Mapping[tuple[str, str], int]: ...


class State(Protocol):
    def cache_size(self) -> Mapping[str, int]: ...


class SchedulerMetrics:
    def __init__(self, registry: Registry) -> None:
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
            _LONG,
        )
        self._algorithm_s = registry.histogram(
            "scheduler_scheduling_algorithm_duration_seconds", "Time of deciding.", (), _LONG
        ).labels()
        # Koordinator's
        self._evaluated = registry.histogram(
            "scheduler_pod_scheduling_evaluated_nodes", "Nodes judged for a pod.", (), exponential(1, 2, 24)
        ).labels()
        self._feasible = registry.histogram(
            "scheduler_pod_scheduling_feasible_nodes", "Nodes that fit a pod.", (), exponential(1, 2, 24)
        ).labels()
        self._event_s = registry.histogram(
            "scheduler_event_handling_duration_seconds", "Time of taking in an event.", ("event",), _SHORT
        )
        self._victims = registry.histogram(
            "scheduler_preemption_victims", "Victims that were chosen at once.", (), exponential(1, 2, 7)
        ).labels()
        self._preemptions = registry.counter(
            "scheduler_preemption_attempts_total", "Times that victims were looked for."
        ).labels()
        self._sli_s = registry.histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From a pod's first attempt to its binding, gates and earlier failures included.",
            ("attempts",),
            exponential(0.01, 2, 20),
        )
        self._pod_attempts = registry.histogram(
            "scheduler_pod_scheduling_attempts", "Attempts that a bound pod took.", (), exponential(1, 2, 5)
        ).labels()
        self._point_s = registry.histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Time of all plugins of an extension point.",
            ("extension_point", "status", "profile"),
            _SHORT,
        )
        self._plugin_s = registry.histogram(
            "scheduler_plugin_execution_duration_seconds",
            "Time of one plugin at an extension point.",
            ("plugin", "extension_point", "status"),
            _PLUGIN,
        )
        self._hint_s = registry.histogram(
            "scheduler_queueing_hint_execution_duration_seconds",
            "Time of asking a plugin whether an event helps a pod.",
            ("plugin", "event", "hint"),
            _PLUGIN,
        )
        self._permit_s = registry.histogram(
            "scheduler_permit_wait_duration_seconds", "Time that pods waited for permission.", ("result",), _LONG
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
            exponential(0.01, 2, 20),
        )
        self._evictions = registry.counter(
            "scheduler_preemption_goroutines_execution_total", "Sets of victims asked to end.", ("result",)
        )

    # Attempts --------------------------------------------------------------------------------------------------------

    def decided(self, profile: str, result: str, seconds: float) -> None:
        """Record a decision; one that goes on to binding becomes an attempt when that ends."""
        self._algorithm_s.observe(seconds)
        if result != "scheduled":
            self.attempt(result, profile, seconds)

    def found(self, evaluated: int, feasible: int) -> None:
        self._evaluated.observe(evaluated)
        self._feasible.observe(feasible)

    def bound(self, profile: str, seconds: float, since_queued_s: float, attempts: int) -> None:
        self.attempt("scheduled", profile, seconds)
        self._pod_attempts.observe(attempts)
        label = str(attempts) if attempts < _MANY_ATTEMPTS else f"{_MANY_ATTEMPTS}+"
        self._sli_s.labels(label).observe(since_queued_s)

    def undone(self, profile: str, result: str, seconds: float) -> None:
        self.attempt(result, profile, seconds)

    def attempt(self, result: str, profile: str, seconds: float) -> None:
        self._attempts.labels(profile, result).inc()
        self._attempt_s.labels(profile, result).observe(seconds)

    # Parts of an attempt ---------------------------------------------------------------------------------------------

    def point(self, profile: str, point: str, seconds: float) -> None:
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

    def preempted(self, victims: int) -> None:
        """Record a search for victims; one that found none is an attempt all the same."""
        self._preemptions.inc()
        if victims:
            self._victims.observe(victims)

    def victims_ended(self, result: str, seconds: float) -> None:
        self._evictions.labels(result).inc()
        self._eviction_s.labels(result).observe(seconds)

    # Numbers that others hold ----------------------------------------------------------------------------------------

    def watch(self, queue: Queue, state: State, binding: Callable[[], int]) -> None:
        """Serve the numbers of the queue and the cluster state too; `binding` counts binding cycles in progress."""

        def read() -> Iterator[Reading]:
            yield _gauge("scheduler_pending_pods", "Pods that wait, by queue.", "queue", queue.counts())
            yield _gauge(
                "scheduler_inflight_events", "Events kept for pods being tried.", "event", queue.in_flight_events()
            )
            yield _gauge("scheduler_cache_size", "Nodes, pods and assumed pods held.", "type", state.cache_size())
            yield _gauge("scheduler_goroutines", "Work under way.", "operation", {"binding": binding()})
            incoming = {(event, part): n for (part, event), n in queue.tally.incoming.items()}
            yield Reading(
                "scheduler_queue_incoming_pods_total",
                "Pods that entered a queue, by event.",
                "counter",
                ("event", "queue"),
                _sorted(incoming),
            )
            yield Reading(
                "scheduler_unschedulable_pods",
                "Pods that a plugin refuses; a pod counts for each of them.",
                "gauge",
                ("plugin", "profile"),
                _sorted(queue.tally.refused),
            )

        self._registry.source(read)


def _gauge(name: str, help: str, label: str, values: Mapping[str, int]) -> Reading:
    return Reading(name, help, "gauge", (label,), _sorted({(key,): n for key, n in values.items()}))


def _sorted(values: Mapping[Any, int]) -> list[tuple[tuple[str, ...], float]]:
    return [(key, float(values[key])) for key in sorted(values)]
