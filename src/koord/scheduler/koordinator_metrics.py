"""Define the metric families that Koordinator adds to kube-scheduler's; plugins set their values."""

from __future__ import annotations

from koord.telemetry.metrics.buckets import exponential
from koord.telemetry.metrics.registry import Registry

_GANG_CYCLE = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)
_QUOTA_LABELS = ("name", "resource", "tree", "is_parent", "parent", "field")


class KoordinatorMetrics:
    def __init__(self, registry: Registry) -> None:
        counter, gauge, histogram = registry.counter, registry.gauge, registry.histogram
        self.timeout = counter(
            "scheduler_scheduling_timeout", "Looks that found a pod's attempt lasting too long.", ("profile",)
        )
        self.next_pod_s = histogram(
            "scheduler_next_pod_delete_from_queue_latency",
            "Time of taking a plugin's next pod out of the queue.",
            (),
            exponential(1e-5, 2, 24),
        ).labels()
        # Reservations
        self.index_queries = counter(
            "scheduler_reservation_selector_index_query_total", "Look-ups by selector.", ("result",)
        )
        self.index_candidates = histogram(
            "scheduler_reservation_selector_index_candidates_count", "What they found.", (), exponential(1, 2, 16)
        ).labels()
        # Quotas
        self.quota_s = histogram(
            "scheduler_elastic_quota_process_latency",
            "Time of an operation on quotas.",
            ("operation",),
            exponential(1e-5, 2, 24),
        )
        self.quota_hook_s = histogram(
            "scheduler_elastic_quota_hook_plugin_latency",
            "Time of a hook of quotas.",
            ("plugin", "operation"),
            exponential(1e-6, 2, 24),
        )
        self.quota_spec = gauge("scheduler_elastic_quota_spec", "What a quota asks for.", _QUOTA_LABELS)
        self.quota_status_s = histogram(
            "scheduler_update_elastic_quota_status_duration_seconds",
            "Time of writing a quota's status.",
            (),
            exponential(0.001, 2, 15),
        ).labels()
        # Devices and gangs
        self.unplanned_secondary = gauge(
            "scheduler_secondary_device_not_well_planned", "Nodes with such devices.", ("node_name",)
        )
        self.gang_cycle_s = histogram(
            "scheduler_gang_schedule_cycle_duration_seconds",
            "Time of trying a whole gang.",
            ("reason", "job_size"),
            _GANG_CYCLE,
        )
        self.job_preemption_s = histogram(
            "scheduler_job_preemption_duration_seconds",
            "Time of finding victims for a job.",
            ("jobName", "result"),
            exponential(0.001, 2, 20),
        )
        # Batches
        self.batch_s = histogram(
            "scheduler_inline_batch_schedule_duration_seconds",
            "Time of scheduling a job at once.",
            ("result",),
            exponential(0.001, 2, 15),
        )
        self.batch_by_node_s = histogram(
            "scheduler_batch_algorithm_by_node_duration_seconds", "Its share per node.", (), exponential(0.001, 2, 15)
        ).labels()
        self.batch_by_pod_s = histogram(
            "scheduler_batch_algorithm_by_pod_duration_seconds", "Its share per pod.", (), exponential(0.001, 2, 15)
        ).labels()
        self.partial_jobs = counter("scheduler_batch_partial_bind_jobs_total", "Jobs bound in part.").labels()
        self.partial_pods = counter("scheduler_batch_partial_bind_pods_total", "Their pods.", ("status",))
        self.bind_failures = counter(
            "scheduler_batch_bind_failures_total", "Pods of jobs that were not bound.", ("reason", "phase")
        )
        self.cleanups = counter("scheduler_batch_assumed_pods_cleanup_total", "Promises taken back.", ("reason",))


def job_size(members: int) -> str:
    """Return a gang's size as a label: 0, 1-100, 101-200 ... 901-1000, 1000+."""
    if members <= 0:
        return "0"
    if members > 1000:
        return "1000+"
    first = (members - 1) // 100 * 100 + 1
    return f"{first}-{first + 99}"
