"""Serve the metrics of the workload auditor under Koordinator's names.

Every family has the label `priority` and one label for each key of pod labels that the operator asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from koord.telemetry.metrics import MetricRegistry, exponential_buckets

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
