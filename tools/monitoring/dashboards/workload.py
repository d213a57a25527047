"""The dashboard for who owns pods."""

from __future__ import annotations

from tools.monitoring.dashboard import Dashboard, Panel, Query, Row, Variable
from tools.monitoring.dashboards.panels import SCHEDULER_JOB, quantiles

_POD = 'pod_namespace=~"$namespace",pod_name=~"$pod"'

WORKLOAD = Dashboard(
    uid="koord-workload",
    title="koord / My pods",
    reader="For who owns pods: why are they pending, throttled or evicted?",
    variables=(
        Variable("namespace", "koordlet_pod_psi", "pod_namespace"),
        Variable("pod", "koordlet_pod_psi", "pod_name"),
    ),
    rows=(
        Row(
            "Why pending?",
            (
                Panel(
                    title="Waiting pods by plugin",
                    question="Which plugin refuses them?",
                    queries=(
                        Query(f"max by (plugin) (scheduler_unschedulable_pods{{{SCHEDULER_JOB}}})", "{{plugin}}"),
                    ),
                ),
                Panel(
                    title="Waiting pods by queue",
                    question="Are they tried, or do they wait for a change?",
                    queries=(Query(f"max by (queue) (scheduler_pending_pods{{{SCHEDULER_JOB}}})", "{{queue}}"),),
                ),
                Panel(
                    title="Gang groups that wait",
                    question="Do pods wait for their gang?",
                    queries=(Query("max(scheduler_waiting_gang_group_number)", "groups"),),
                ),
                Panel(
                    title="From the queue to the binding",
                    question="How long does it take?",
                    unit="s",
                    queries=quantiles("scheduler_pod_scheduling_sli_duration_seconds", SCHEDULER_JOB),
                ),
            ),
        ),
        Row(
            "Why slow?",
            (
                Panel(
                    title="CPU pressure of pods",
                    question="Do my pods wait for CPU?",
                    unit="percent",
                    queries=(
                        Query(
                            f'koordlet_pod_psi{{{_POD},psi_resource_type="cpu",psi_precision="avg60",psi_degree="some"}}',
                            "{{pod_namespace}}/{{pod_name}}",
                        ),
                    ),
                ),
                Panel(
                    title="Memory pressure of pods",
                    question="Do my pods wait for memory?",
                    unit="percent",
                    queries=(
                        Query(
                            f'koordlet_pod_psi{{{_POD},psi_resource_type="mem",psi_precision="avg60",psi_degree="some"}}',
                            "{{pod_namespace}}/{{pod_name}}",
                        ),
                    ),
                ),
                Panel(
                    title="CPU quota given by CPU burst",
                    question="Was the limit raised?",
                    unit="µs",
                    queries=(
                        Query(f"koordlet_container_scaled_cfs_quota_us{{{_POD}}}", "{{pod_name}} {{container_name}}"),
                    ),
                ),
                Panel(
                    title="Cycles per instruction",
                    question="Do neighbours disturb my containers?",
                    queries=(Query(f"koordlet:container_cpi:ratio{{{_POD}}}", "{{pod_name}} {{container_name}}"),),
                ),
                Panel(
                    title="CPU that BE pods of a node may use",
                    question="Is my batch pod suppressed?",
                    queries=(Query("koordlet_be_suppress_cpu_cores", "{{node}}"),),
                ),
            ),
        ),
        Row(
            "Why gone?",
            (
                Panel(
                    title="Evictions by koordlet",
                    question="Was my pod evicted in the last minutes, and why?",
                    kind="table",
                    queries=(
                        Query(
                            "sum by (pod_namespace, pod_name, node, reason) (koordlet_pod_eviction_detail"
                            '{pod_namespace=~"$namespace"})'
                        ),
                    ),
                ),
                Panel(
                    title="Evictions by reason",
                    question="Is it only me?",
                    unit="ops",
                    queries=(
                        Query("sum by (reason) (rate(koordlet_pod_eviction[$__rate_interval]))", "koordlet {{reason}}"),
                        Query(
                            'sum by (strategy) (rate(descheduler_pods_evicted{namespace=~"$namespace"}'
                            "[$__rate_interval]))",
                            "descheduler {{strategy}}",
                        ),
                        Query(
                            f"sum(rate(scheduler_preemption_victims_sum{{{SCHEDULER_JOB}}}[$__rate_interval]))",
                            "preemption",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
