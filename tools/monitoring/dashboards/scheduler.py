"""The dashboard for who develops the scheduler."""

from __future__ import annotations

from tools.monitoring.dashboard import Dashboard, Panel, Query, Row
from tools.monitoring.dashboards.panels import SCHEDULER_JOB, quantiles

SCHEDULER = Dashboard(
    uid="koord-scheduler",
    title="koord / Scheduler",
    reader="For who develops the scheduler: where does the time go?",
    rows=(
        Row(
            "How fast is it?",
            (
                Panel(
                    title="Attempts by result",
                    question="How many pods are tried, and with which result?",
                    unit="ops",
                    queries=(
                        Query(
                            f"sum by (result) (rate(scheduler_schedule_attempts_total{{{SCHEDULER_JOB}}}"
                            "[$__rate_interval]))",
                            "{{result}}",
                        ),
                    ),
                ),
                Panel(
                    title="Time of an attempt",
                    question="Algorithm and binding.",
                    unit="s",
                    queries=quantiles("scheduler_scheduling_attempt_duration_seconds", SCHEDULER_JOB),
                ),
                Panel(
                    title="Time of the algorithm",
                    question="Without the binding.",
                    unit="s",
                    queries=quantiles("scheduler_scheduling_algorithm_duration_seconds", SCHEDULER_JOB),
                ),
                Panel(
                    title="Pods that enter queues",
                    question="Which events bring pods back?",
                    unit="ops",
                    queries=(
                        Query(
                            "sum by (queue, event) (rate(scheduler_queue_incoming_pods_total"
                            f"{{{SCHEDULER_JOB}}}[$__rate_interval]))",
                            "{{queue}} {{event}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Where does the time go?",
            (
                Panel(
                    title="Extension points p99",
                    question="Which extension point is slow?",
                    unit="s",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le, extension_point) (rate("
                            f"scheduler_framework_extension_point_duration_seconds_bucket{{{SCHEDULER_JOB}}}[$__rate_interval])))",
                            "{{extension_point}}",
                        ),
                    ),
                ),
                Panel(
                    title="Time in extension points",
                    question="Seconds of each second.",
                    unit="s",
                    queries=(
                        Query(
                            "sum by (extension_point) (rate("
                            f"scheduler_framework_extension_point_duration_seconds_sum{{{SCHEDULER_JOB}}}[$__rate_interval]))",
                            "{{extension_point}}",
                        ),
                    ),
                ),
                Panel(
                    title="Plugins p99, the ten slowest",
                    question="Which plugin is slow?",
                    unit="s",
                    queries=(
                        Query(
                            "topk(10, histogram_quantile(0.99, sum by (le, plugin, extension_point) (rate("
                            f"scheduler_plugin_execution_duration_seconds_bucket{{{SCHEDULER_JOB}}}[$__rate_interval]))))",
                            "{{plugin}} {{extension_point}}",
                        ),
                    ),
                ),
                Panel(
                    title="Evaluations by plugin",
                    question="Which plugins take part?",
                    unit="ops",
                    queries=(
                        Query(
                            "topk(20, sum by (plugin, extension_point) (rate(scheduler_plugin_evaluation_total"
                            f"{{{SCHEDULER_JOB}}}[$__rate_interval])))",
                            "{{plugin}} {{extension_point}}",
                        ),
                    ),
                ),
                Panel(
                    title="Queueing hints p99",
                    question="What do hints cost?",
                    unit="s",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le, plugin) (rate("
                            f"scheduler_queueing_hint_execution_duration_seconds_bucket{{{SCHEDULER_JOB}}}[$__rate_interval])))",
                            "{{plugin}}",
                        ),
                    ),
                ),
                Panel(
                    title="Event handling p99",
                    question="What do events cost?",
                    unit="s",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le, event) (rate("
                            f"scheduler_event_handling_duration_seconds_bucket{{{SCHEDULER_JOB}}}[$__rate_interval])))",
                            "{{event}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "What does it look at?",
            (
                Panel(
                    title="Nodes for a pod",
                    question="How many nodes are filtered, and how many fit?",
                    queries=(
                        *quantiles("scheduler_pod_scheduling_evaluated_nodes", SCHEDULER_JOB, legend="evaluated "),
                        *quantiles("scheduler_pod_scheduling_feasible_nodes", SCHEDULER_JOB, legend="feasible "),
                    ),
                ),
                Panel(
                    title="Cache",
                    question="How large is the cluster that it sees?",
                    queries=(Query(f"max by (type) (scheduler_cache_size{{{SCHEDULER_JOB}}})", "{{type}}"),),
                ),
                Panel(
                    title="Waiting at Permit",
                    question="How long do pods wait for others?",
                    unit="s",
                    queries=quantiles("scheduler_permit_wait_duration_seconds", SCHEDULER_JOB),
                ),
                Panel(
                    title="Preemption",
                    question="How often, and how many victims?",
                    unit="ops",
                    queries=(
                        Query(
                            f"sum(rate(scheduler_preemption_attempts_total{{{SCHEDULER_JOB}}}[$__rate_interval]))",
                            "attempts",
                        ),
                        Query(
                            f"sum(rate(scheduler_preemption_victims_sum{{{SCHEDULER_JOB}}}[$__rate_interval]))",
                            "victims",
                        ),
                    ),
                ),
                Panel(
                    title="Quota operations p99",
                    question="What do quotas cost?",
                    unit="s",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le, operation) (rate("
                            "scheduler_elastic_quota_process_latency_bucket[$__rate_interval])))",
                            "{{operation}}",
                        ),
                    ),
                ),
                Panel(
                    title="Binding cycles in progress",
                    question="Does binding keep up?",
                    queries=(
                        Query(f"max by (operation) (scheduler_goroutines{{{SCHEDULER_JOB}}})", "{{operation}}"),
                        Query(
                            f"sum(rate(scheduler_scheduling_timeout{{{SCHEDULER_JOB}}}[$__rate_interval]))", "timeouts"
                        ),
                    ),
                ),
            ),
        ),
    ),
)
