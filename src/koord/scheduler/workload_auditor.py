"""Audit the way of each workload through the scheduler: record its events, measure the times between them, and warn.

A workload is a pod, or a whole gang group. Its record begins when it is queued and ends with its outcome, which is that
it was scheduled, or removed before that.

    create -> gatedByQueueAdmission -> admissionPassed -> gangMinMemberSatisfied
      -> scheduleFailure | preemptFailure | preemptNominated -> preemptVictimDeleting ... -> victimAllDeleted -> result
      -> gangAllPodsAlreadyAttempted -> scheduled

`WorkloadRecord` holds the rules and knows no clock; `WorkloadAuditor` finds the record and reports what it says.

Serve the metrics of the workload auditor under Koordinator's names.

Every family has the label `priority` and one label for each key of pod labels that the operator asked for.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum

import msgspec

from koord.kube.rate_limit import RateLimitedLog
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.attempt import AttemptFailure
from koord.scheduler.framework.decision import Decision, Unschedulable
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import Histogram, MetricFamily, MetricRegistry, exponential_buckets

_SECONDS = exponential_buckets(0.01, 2, 20)  # 10 ms to 1.5 h
_COUNTS = exponential_buckets(1, 2, 12)
_METHOD_SECONDS = exponential_buckets(1e-6, 2, 20)
_NO_LABEL_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")
PRIORITY_LABEL = "priority"
_RESERVED = frozenset({PRIORITY_LABEL, "event_type", "outcome", "method", "le"})


def metric_label_keys(text: str) -> tuple[str, ...] | str:
    """Return the keys of pod labels in a list with commas, or what is wrong with them."""
    keys = tuple(key for part in text.split(",") if (key := part.strip()))
    names: dict[str, str] = {}
    for key in keys:
        name = metric_label_name(key)
        if name in _RESERVED:
            return f"{key!r} would be the metric label {name!r}, which the auditor sets itself"
        if name in names:
            return f"{names[name]!r} and {key!r} would both be the metric label {name!r}"
        names[name] = key
    return keys


def metric_label_name(key: str) -> str:
    """Return the metric label of a pod label: `app.kubernetes.io/name` becomes `app_kubernetes_io_name`."""
    name = _NO_LABEL_CHARACTER.sub("_", key)
    return f"_{name}" if name[:1].isdigit() else name


class WorkloadAuditorMetrics:
    def __init__(self, registry: MetricRegistry, keys: Sequence[str] = ()) -> None:
        """Register the families; `keys` are pod labels whose values become labels of every series."""
        self._keys = tuple(keys)
        labels = (PRIORITY_LABEL, *(metric_label_name(key) for key in keys))
        prefix = "scheduler_workload_auditor_"
        self.repeated_preemptions = registry.counter(
            f"{prefix}repeated_preemptions_total",
            "Preemptions for a workload that had preempted before.",
            labels,
        )
        self.preemption_invalidations = registry.counter(
            f"{prefix}preemption_invalidations_total",
            "Nominations by preemption after which the workload failed, or was nominated anew.",
            labels,
        )
        self.victim_reschedule_s = registry.histogram(
            f"{prefix}victim_reschedule_duration_seconds",
            "From the end of the last victim to the next result of the preemptor.",
            labels,
            _SECONDS,
        )
        self.victim_deleting_retries = registry.histogram(
            f"{prefix}preemption_victim_deleting_retries",
            "Attempts of a preemptor that found its victims still there, for each preemption.",
            labels,
            _COUNTS,
        )
        self.victim_deleted_s = registry.histogram(
            f"{prefix}preemption_to_victim_deleted_seconds",
            "From a preemption to the end of its last victim.",
            labels,
            _SECONDS,
        )
        self.cycle_interrupted_s = registry.histogram(
            f"{prefix}preemption_cycle_interrupted_seconds",
            "From a preemption to the failure or the nomination that made it void.",
            labels,
            _SECONDS,
        )
        self.events_before_outcome = registry.histogram(
            f"{prefix}scheduling_events_before_outcome",
            "Events of a workload, by type, before it was scheduled or removed.",
            (*labels, "event_type", "outcome"),
            _COUNTS,
        )
        self.event_interval_s = registry.histogram(
            f"{prefix}scheduling_event_interval_seconds",
            "Time between two events of a workload that waits.",
            labels,
            _SECONDS,
        )
        self.record_method_s = registry.histogram(
            f"{prefix}record_method_duration_seconds",
            "Time that the auditor itself takes to record something.",
            (*labels, "method"),
            _METHOD_SECONDS,
        )

    def label_values(self, priority: int, pod_labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the values of the common labels for a workload with this priority and these labels of its pod."""
        return (str(priority), *(pod_labels.get(key, "") for key in self._keys))


_LOG = logging.getLogger(__name__)

SCHEDULED, REMOVED = "scheduled", "removed"  # outcomes
_SCHEDULING_GATES = "SchedulingGates"  # the plugin by which a queue of jobs holds pods back
_MAX_KEPT_EVENTS = 32  # of one workload, for the warnings: the youngest


class WorkloadEvent(StrEnum):
    CREATE = "create"
    GATED = "gatedByQueueAdmission"
    ADMISSION_PASSED = "admissionPassed"
    GANG_MIN_MEMBER = "gangMinMemberSatisfied"
    PREEMPT_NOMINATED = "preemptNominated"
    VICTIM_DELETING = "preemptVictimDeleting"
    PREEMPT_FAILURE = "preemptFailure"
    SCHEDULE_FAILURE = "scheduleFailure"
    ALL_ATTEMPTED = "gangAllPodsAlreadyAttempted"
    VICTIMS_DELETED = "victimAllDeleted"
    SCHEDULED = "scheduled"


_RESULTS = frozenset(
    {
        WorkloadEvent.PREEMPT_NOMINATED,
        WorkloadEvent.PREEMPT_FAILURE,
        WorkloadEvent.SCHEDULE_FAILURE,
        WorkloadEvent.SCHEDULED,
    }
)
_VOIDS_NOMINATION = _RESULTS - {WorkloadEvent.SCHEDULED}


class WorkloadAuditorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of the auditor: what becomes a label of its metrics, and from when on it warns."""

    metric_labels: tuple[str, ...] = ()  # keys of pod labels
    victim_reschedule_s: float = 10.0
    victim_deletion_s: float = 30.0
    victim_deleting_retries: int = 3
    scheduling_event_interval_s: float = 300.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the times, in seconds, that an event of a workload ends, None for those that it does not; and warnings."""

    interval_s: float | None = None
    repeated: bool = False
    interrupted_s: float | None = None
    victims_deleted_s: float | None = None
    retries: int | None = None  # of a preemption that ended with this event
    rescheduled_s: float | None = None
    warnings: tuple[str, ...] = ()


class WorkloadRecord:
    """The events of one workload so far, and the preemption that is under way for it."""

    __slots__ = ("_deleted_at", "_last_at", "_nominated_at", "_retries", "counts", "labels", "recent", "victims")

    def __init__(self, labels: tuple[str, ...]) -> None:
        self.labels = labels
        self.counts: dict[WorkloadEvent, int] = {}
        self.recent: list[tuple[float, WorkloadEvent]] = []
        self.victims: set[str] = set()  # uids of those that are still there
        self._last_at: float | None = None
        self._nominated_at: float | None = None  # of a nomination that nothing has made void yet
        self._deleted_at: float | None = None  # when the last victim ended, until a result follows
        self._retries = 0

    @property
    def waits_for_victims(self) -> bool:
        return self._nominated_at is not None and bool(self.victims)

    def add(
        self, event: WorkloadEvent, at: float, settings: WorkloadAuditorSettings, victims: Iterable[str] = ()
    ) -> Measured:
        """Add an event and return what it says."""
        warnings: list[str] = []
        interval = None if self._last_at is None else at - self._last_at
        if interval is not None and interval > settings.scheduling_event_interval_s:
            warnings.append(f"nothing happened to it for {interval:.1f} s")
        rescheduled = self._end_of_reschedule(event, at)
        if rescheduled is not None and rescheduled > settings.victim_reschedule_s:
            warnings.append(f"its next result came {rescheduled:.1f} s after its victims were gone")
        interrupted = retries = deleted = None
        if self._nominated_at is not None and event in _VOIDS_NOMINATION:
            interrupted = at - self._nominated_at
            warnings.append(f"its preemption became void after {interrupted:.1f} s")
            if self.victims:
                retries = self._retries
            self._nominated_at = None
            self.victims.clear()
        elif event is WorkloadEvent.SCHEDULED:
            self._nominated_at = None
        if event is WorkloadEvent.VICTIM_DELETING:
            self._retries += 1
            if self._retries == settings.victim_deleting_retries + 1:
                warnings.append(f"it was tried {self._retries} times while its victims were still there")
        elif event is WorkloadEvent.VICTIMS_DELETED and self._nominated_at is not None:
            deleted, retries, self._deleted_at = at - self._nominated_at, self._retries, at
            self.victims.clear()
            if deleted > settings.victim_deletion_s:
                warnings.append(f"its victims took {deleted:.1f} s to go")
        repeated = event is WorkloadEvent.PREEMPT_NOMINATED and event in self.counts
        if event is WorkloadEvent.PREEMPT_NOMINATED:
            self._nominated_at, self._retries, self.victims = at, 0, set(victims)
            if repeated:
                warnings.append(f"it preempts again, {self.counts[event] + 1} times by now")
        self._note(event, at)
        return Measured(
            interval_s=interval,
            repeated=repeated,
            interrupted_s=interrupted,
            victims_deleted_s=deleted,
            retries=retries,
            rescheduled_s=rescheduled,
            warnings=tuple(warnings),
        )

    def _end_of_reschedule(self, event: WorkloadEvent, at: float) -> float | None:
        """Return the time since the victims ended if the event is the first result after that."""
        if self._deleted_at is None or event not in _RESULTS:
            return None
        took, self._deleted_at = at - self._deleted_at, None
        return took

    def _note(self, event: WorkloadEvent, at: float) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1
        self._last_at = at
        self.recent.append((at, event))
        del self.recent[:-_MAX_KEPT_EVENTS]

    def history(self, now: float) -> str:
        """Return the youngest events with how long ago they were."""
        return ", ".join(f"{event} {now - at:.1f} s ago" for at, event in self.recent)


class WorkloadAuditor:
    """Keep the records of all workloads that wait. The scheduling loop, the queue and gangs tell it what happens."""

    def __init__(
        self,
        metrics: WorkloadAuditorMetrics,
        clock: Clock,
        settings: WorkloadAuditorSettings,
        *,
        gang_group_of: Callable[[str], str | None],
        has_waiting_members: Callable[[str], bool],
    ) -> None:
        """Take the parts. `gang_group_of` returns the group of a pod by its UID, `has_waiting_members` whether a group
        has members without a node.
        """
        self._metrics = metrics
        self._clock = clock
        self._settings = settings
        self._gang_group_of = gang_group_of
        self._has_waiting_members = has_waiting_members
        self._records: dict[str, WorkloadRecord] = {}
        self._keys: dict[str, str] = {}  # uid of a pod -> its workload
        self._preemptors: dict[str, set[str]] = {}  # uid of a victim -> the workloads that wait for its end
        self._gated: set[str] = set()  # uids
        self._quiet = RateLimitedLog(_LOG, clock)

    @property
    def records(self) -> Mapping[str, WorkloadRecord]:
        """Return the records by workload: `namespace/name/uid` of a pod, or the ID of a gang group."""
        return self._records

    # The queue ---------------------------------------------------------------------------------------------------

    def pod_added(self, pod: PodInfo) -> None:
        """Begin the record of a workload with its first pod."""
        group = self._gang_group_of(pod.uid)
        key = group if group is not None else f"{pod.key}/{pod.uid}"
        self._keys[pod.uid] = key
        if key not in self._records:
            self._records[key] = WorkloadRecord(self._metrics.label_values(pod.priority, pod.labels))
            self._record(key, WorkloadEvent.CREATE, "pod_added")

    def pod_checked(self, pod: PodInfo, gate: str) -> None:
        """Record whether scheduling gates hold the pod; `gate` is the plugin that does at PreEnqueue, or empty."""
        if gate == _SCHEDULING_GATES:
            if pod.uid not in self._gated:
                self._gated.add(pod.uid)
                self._record(self._keys.get(pod.uid), WorkloadEvent.GATED, "pod_checked")
        elif pod.uid in self._gated:
            self._gated.discard(pod.uid)
            self._record(self._keys.get(pod.uid), WorkloadEvent.ADMISSION_PASSED, "pod_checked")

    def pod_removed(self, uid: str) -> None:
        """End the record of a pod that left the queue without this scheduler: deleted, or bound by another."""
        self._gated.discard(uid)
        key = self._keys.pop(uid, None)
        if key is not None and not self._has_waiting_members(key):
            self._end(key, REMOVED)

    # Attempts ----------------------------------------------------------------------------------------------------

    def attempt_ended(self, pod: PodInfo, decision: Decision | None, failure: AttemptFailure | None) -> None:
        """Record what came of an attempt that did not get a node, or lost it at Reserve, Permit or binding."""
        key = self._keys.get(pod.uid)
        record = self._records.get(key) if key is not None else None
        if record is None or failure is None:
            return
        plan = decision.preempt if isinstance(decision, Unschedulable) else None
        if plan is not None:
            victims = [victim.uid for victim in plan.victims]
            self._record(key, WorkloadEvent.PREEMPT_NOMINATED, "attempt_ended", victims)
        elif record.waits_for_victims and failure.nominate is None:
            self._record(key, WorkloadEvent.VICTIM_DELETING, "attempt_ended")
        elif isinstance(decision, Unschedulable) and decision.searches:
            self._record(key, WorkloadEvent.PREEMPT_FAILURE, "attempt_ended")
        else:
            self._record(key, WorkloadEvent.SCHEDULE_FAILURE, "attempt_ended")

    def pod_bound(self, pod: PodInfo) -> None:
        """End the record of a pod, or of a gang with its last member."""
        key = self._keys.pop(pod.uid, None)
        self._gated.discard(pod.uid)
        if key is not None and not self._has_waiting_members(key):
            self._record(key, WorkloadEvent.SCHEDULED, "pod_bound")
            self._end(key, SCHEDULED)

    def pod_gone(self, uid: str) -> None:
        """Record the end of a pod for those that preempted it."""
        for key in sorted(self._preemptors.pop(uid, ())):
            record = self._records.get(key)
            if record is None or uid not in record.victims:
                continue
            record.victims.discard(uid)
            if not record.victims:
                self._record(key, WorkloadEvent.VICTIMS_DELETED, "pod_gone")

    # Gangs -------------------------------------------------------------------------------------------------------

    def gang_ready(self, group: str) -> None:
        """Record that a gang group has as many members as it needs."""
        record = self._records.get(group)
        if record is not None and WorkloadEvent.GANG_MIN_MEMBER not in record.counts:
            self._record(group, WorkloadEvent.GANG_MIN_MEMBER, "gang_ready")

    def gang_round_ended(self, group: str, *, all_attempted: bool) -> None:
        """Record that a round ended because every pending member was tried and they were still too few."""
        if all_attempted:
            self._record(group, WorkloadEvent.ALL_ATTEMPTED, "gang_round_ended")

    def gang_preemption_searched(self, group: str, *, found: bool) -> None:
        """Record a search for victims of a whole gang that found none; one that did is told by the attempt."""
        if not found:
            self._record(group, WorkloadEvent.PREEMPT_FAILURE, "gang_preemption_searched")

    def gang_removed(self, group: str) -> None:
        self._end(group, REMOVED)

    # -------------------------------------------------------------------------------------------------------------

    def _record(self, key: str | None, event: WorkloadEvent, method: str, victims: Sequence[str] = ()) -> None:
        record = self._records.get(key) if key is not None else None
        if record is None or key is None:
            return
        with self._timed(record, method) as now:
            said = record.add(event, now, self._settings, victims)
            for uid in victims:
                self._preemptors.setdefault(uid, set()).add(key)
            self._report(record, said)
            for words in said.warnings:
                self._quiet.warning("workload %s: %s (%s)", key, words, record.history(now))

    def _report(self, record: WorkloadRecord, said: Measured) -> None:
        metrics, labels = self._metrics, record.labels
        if said.repeated:
            metrics.repeated_preemptions.labels(*labels).inc()
        if said.interrupted_s is not None:
            metrics.preemption_invalidations.labels(*labels).inc()
        for family, value in (
            (metrics.event_interval_s, said.interval_s),
            (metrics.cycle_interrupted_s, said.interrupted_s),
            (metrics.victim_deleted_s, said.victims_deleted_s),
            (metrics.victim_deleting_retries, said.retries),
            (metrics.victim_reschedule_s, said.rescheduled_s),
        ):
            _observe(family, labels, value)

    def _end(self, key: str, outcome: str) -> None:
        record = self._records.pop(key, None)
        if record is None:
            return
        for event, count in record.counts.items():
            self._metrics.events_before_outcome.labels(*record.labels, str(event), outcome).observe(count)
        for uid in record.victims:
            if (waiting := self._preemptors.get(uid)) is not None:
                waiting.discard(key)
                if not waiting:
                    del self._preemptors[uid]

    @contextmanager
    def _timed(self, record: WorkloadRecord, method: str) -> Iterator[float]:
        began = self._clock.monotonic()
        yield began
        self._metrics.record_method_s.labels(*record.labels, method).observe(self._clock.monotonic() - began)


def _observe(family: MetricFamily[Histogram], labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.labels(*labels).observe(value)
