"""The dashboard for who runs GPUs."""

from __future__ import annotations

from tools.monitoring.dashboard import Dashboard, Panel, Query, Row, Variable
from tools.monitoring.dashboards.panels import SCHEDULER_JOB, stat

GPU = Dashboard(
    uid="koord-gpu",
    title="koord / GPUs and other devices",
    reader="For who runs GPUs: are devices requested, placed and shared as planned?",
    variables=(Variable("quota", "scheduler_elastic_quota_spec", "name"),),
    rows=(
        Row(
            "Do pods get devices?",
            (
                stat(
                    "Pods that DeviceShare refuses",
                    "How many pods wait for a device?",
                    f'sum(max by (profile) (scheduler_unschedulable_pods{{{SCHEDULER_JOB},plugin="DeviceShare"}}))'
                    " or vector(0)",
                ),
                stat(
                    "Reservations of devices",
                    "How many reservations keep devices?",
                    'count(scheduler_reservation_resource{type="allocatable",resource=~".*gpu.*"}) or vector(0)',
                ),
                Panel(
                    title="Pods refused by DeviceShare and NodeNUMAResource",
                    question="Is topology the reason?",
                    queries=(
                        Query(
                            f"max by (plugin) (scheduler_unschedulable_pods{{{SCHEDULER_JOB},"
                            'plugin=~"DeviceShare|NodeNUMAResource|Reservation|Coscheduling"})',
                            "{{plugin}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Who has them?",
            (
                Panel(
                    title="Quota of GPUs: used, runtime, max",
                    question="Which team uses its GPUs?",
                    width=24,
                    queries=(
                        Query(
                            'scheduler_elastic_quota_status{name=~"$quota",field=~"used|runtime|max",'
                            'resource=~".*(gpu|npu|rdma|fpga).*"}',
                            "{{name}} {{resource}} {{field}}",
                        ),
                    ),
                ),
                Panel(
                    title="Reserved devices",
                    question="Is reserved room used?",
                    unit="percentunit",
                    width=24,
                    queries=(
                        Query(
                            'scheduler_reservation_resource{type="utilization",resource=~".*(gpu|npu|rdma|fpga).*"}',
                            "{{name}} {{resource}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Do jobs start whole?",
            (
                Panel(
                    title="Gang groups that wait",
                    question="Do jobs wait for their last pod?",
                    queries=(Query("max(scheduler_waiting_gang_group_number)", "groups"),),
                ),
                Panel(
                    title="Time of a gang's cycle",
                    question="How long is a job tried, and how does it end?",
                    unit="s",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le, reason) (rate("
                            "scheduler_gang_schedule_cycle_duration_seconds_bucket[$__rate_interval])))",
                            "{{reason}}",
                        ),
                    ),
                ),
                Panel(
                    title="Preemption for jobs",
                    question="How long does the search for victims take?",
                    unit="s",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le, result) (rate("
                            "scheduler_job_preemption_duration_seconds_bucket[$__rate_interval])))",
                            "{{result}}",
                        ),
                    ),
                ),
                Panel(
                    title="Hooks that inject devices",
                    question="Do containers get their devices at the start?",
                    unit="ops",
                    queries=(
                        Query(
                            "sum by (hook, status) (rate(koordlet_runtime_hook_invoked_duration_milliseconds_count"
                            '{hook=~"GPU.*|RDMA.*"}[$__rate_interval]))',
                            "{{hook}} {{status}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
