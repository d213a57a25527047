"""The dashboard for who runs the platform."""

from __future__ import annotations

from tools.monitoring.dashboard import Dashboard, Panel, Query, Row
from tools.monitoring.dashboards.panels import SCHEDULER_JOB, stat

_PROGRAMS = 'job=~"koord-(manager|scheduler|descheduler)|koordlet"'

HEALTH = Dashboard(
    uid="koord-health",
    title="koord / Health",
    reader="For who runs the platform: is it healthy, and if not, which part?",
    rows=(
        Row(
            "Is it healthy?",
            (
                stat(
                    "Nodes with stale NodeMetric",
                    "Which nodes report nothing?",
                    "count(time() - max by (node) (koord_manager_nodemetric_update_time_seconds) > 300) or vector(0)",
                    bad=1,
                ),
                stat(
                    "koordlets down",
                    "Where does no agent answer?",
                    'count(up{job="koordlet"} == 0) or vector(0)',
                    bad=1,
                ),
                stat(
                    "Schedulers that lead",
                    "Is there one, and only one?",
                    f"sum(leader_election_master_status{{{SCHEDULER_JOB}}})",
                ),
                stat(
                    "Webhooks not reachable",
                    "Do API servers reach koord-manager?",
                    "count(min by (path) (koord_manager_webhook_reachable) == 0) or vector(0)",
                    bad=1,
                ),
                stat(
                    "Certificate runs out in",
                    "Is rotation at work?",
                    "min(koord_manager_webhook_certificate_not_after_seconds) - time()",
                    "s",
                ),
                stat(
                    "Rejected documents",
                    "Is slo-controller-config in use as it is written?",
                    "sum(max by (key) (koord_manager_slo_config_rejected))",
                    bad=1,
                ),
            ),
        ),
        Row(
            "Control plane",
            (
                Panel(
                    title="Leaders",
                    question="Who leads?",
                    queries=(Query("leader_election_master_status", "{{job}} {{instance}}"),),
                ),
                Panel(
                    title="Webhook decisions p99",
                    question="Do requests wait for koord-manager?",
                    unit="ms",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le, object_type, operation) (rate("
                            "koord_manager_webhook_webhook_duration_milliseconds_bucket[$__rate_interval])))",
                            "{{object_type}} {{operation}}",
                        ),
                    ),
                ),
                Panel(
                    title="Webhook errors",
                    question="Does koord-manager fail to decide?",
                    unit="ops",
                    queries=(
                        Query(
                            "sum by (path) (rate(koord_manager_webhook_failed_decisions_total[$__rate_interval]))",
                            "failed {{path}}",
                        ),
                        Query(
                            "sum by (path) (rate(koord_manager_webhook_malformed_reviews_total[$__rate_interval]))",
                            "malformed {{path}}",
                        ),
                    ),
                ),
                Panel(
                    title="Reconciliations",
                    question="Does koord-manager write what nodes lend?",
                    unit="ops",
                    queries=(
                        Query(
                            "sum by (status, reason) (rate(slo_controller_node_resource_reconcile_count"
                            "[$__rate_interval]))",
                            "resources {{status}} {{reason}}",
                        ),
                        Query(
                            "sum by (status) (rate(slo_controller_nodeslo_reconcile_count[$__rate_interval]))",
                            "NodeSLO {{status}}",
                        ),
                        Query(
                            "sum by (status) (rate(slo_controller_nodemetric_reconcile_count[$__rate_interval]))",
                            "NodeMetric {{status}}",
                        ),
                    ),
                ),
                Panel(
                    title="Requests to the API server",
                    question="Is the API server the problem?",
                    unit="ops",
                    queries=(
                        Query(
                            f"sum by (job, code) (rate(rest_client_requests_total{{{_PROGRAMS}}}[$__rate_interval]))",
                            "{{job}} {{code}}",
                        ),
                    ),
                ),
                Panel(
                    title="Descheduler rounds",
                    question="Does it run, and without errors?",
                    unit="ops",
                    queries=(
                        Query("sum by (result) (rate(koord_descheduler_rounds_total[$__rate_interval]))", "{{result}}"),
                        Query(
                            "sum by (strategy, result) (rate(descheduler_pods_evicted[$__rate_interval]))",
                            "evictions {{strategy}} {{result}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Nodes",
            (
                Panel(
                    title="Age of NodeMetrics",
                    question="Which nodes are silent?",
                    unit="s",
                    queries=(
                        Query(
                            "topk(10, time() - max by (node) (koord_manager_nodemetric_update_time_seconds))",
                            "{{node}}",
                        ),
                    ),
                ),
                Panel(
                    title="Strategy errors",
                    question="Which strategies fail?",
                    unit="ops",
                    queries=(
                        Query(
                            "sum by (strategy) (rate(koordlet_strategy_errors_total[$__rate_interval]))", "{{strategy}}"
                        ),
                    ),
                ),
                Panel(
                    title="Failed writes of kernel files",
                    question="What does the kernel refuse?",
                    unit="ops",
                    queries=(
                        Query(
                            'sum by (type) (rate(koordlet_resource_update_duration_milliseconds_count{status="failed"}'
                            "[$__rate_interval]))",
                            "{{type}}",
                        ),
                    ),
                ),
                Panel(
                    title="Failed hooks",
                    question="Do containers start without what they should have?",
                    unit="ops",
                    queries=(
                        Query(
                            "sum by (hook, stage) (rate(koordlet_runtime_hook_invoked_duration_milliseconds_count"
                            '{status="failed"}[$__rate_interval]))',
                            "{{hook}} {{stage}}",
                        ),
                        Query(
                            "sum by (stage) (rate(koord_runtime_proxy_refused_calls_total[$__rate_interval]))",
                            "refused by the proxy {{stage}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Programs",
            (
                Panel(
                    title="CPU",
                    question="Is a program throttled?",
                    queries=(
                        Query(
                            f"rate(process_cpu_seconds_total{{{_PROGRAMS}}}[$__rate_interval])", "{{job}} {{instance}}"
                        ),
                    ),
                ),
                Panel(
                    title="Memory",
                    question="Does a program grow?",
                    unit="bytes",
                    queries=(Query(f"process_resident_memory_bytes{{{_PROGRAMS}}}", "{{job}} {{instance}}"),),
                ),
            ),
        ),
    ),
)
