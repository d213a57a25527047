"""The dashboard for who owns capacity."""

from __future__ import annotations

from tools.monitoring.dashboard import Dashboard, Panel, Query, Row, Variable
from tools.monitoring.dashboards.panels import stat

_NODE = 'node=~"$node"'
_BATCH_CPU = 'resource="kubernetes.io/batch-cpu"'
_BATCH_MEMORY = 'resource="kubernetes.io/batch-memory"'

CAPACITY = Dashboard(
    uid="koord-capacity",
    title="koord / Capacity",
    reader="For who owns capacity: how much is reclaimed, and who borrows it?",
    variables=(
        Variable("node", "koordlet_node_resource_allocatable", "node"),
        Variable("quota", "scheduler_elastic_quota_spec", "name"),
    ),
    rows=(
        Row(
            "What is reclaimed?",
            (
                stat(
                    "Reclaimed cores",
                    "How many cores do nodes lend to batch pods?",
                    f"sum(koordlet_node_resource_allocatable{{{_BATCH_CPU},{_NODE}}}) / 1000",
                ),
                stat(
                    "Reclaimed cores in use",
                    "How many of them are requested?",
                    f"sum(koordlet_container_resource_requests{{{_BATCH_CPU},{_NODE}}}) / 1000",
                ),
                stat(
                    "Share in use",
                    "Is more reclaimed than is wanted?",
                    f"sum(koordlet_container_resource_requests{{{_BATCH_CPU},{_NODE}}})"
                    f" / sum(koordlet_node_resource_allocatable{{{_BATCH_CPU},{_NODE}}})",
                    "percentunit",
                ),
                stat(
                    "Reclaimed memory",
                    "How much memory do nodes lend?",
                    f"sum(koordlet_node_resource_allocatable{{{_BATCH_MEMORY},{_NODE}}})",
                    "bytes",
                ),
                stat("CPU in use", "How much do all pods use?", f"sum(koordlet_node_used_cpu_cores{{{_NODE}}})"),
                stat(
                    "CPU used by BE pods",
                    "How much of it is batch work?",
                    f"sum(koordlet_be_suppress_be_used_cpu_cores{{{_NODE}}})",
                ),
                Panel(
                    title="Batch cores lent and requested",
                    question="Does what is lent follow the day?",
                    queries=(
                        Query(f"sum(koordlet_node_resource_allocatable{{{_BATCH_CPU},{_NODE}}}) / 1000", "lent"),
                        Query(f"sum(koordlet_container_resource_requests{{{_BATCH_CPU},{_NODE}}}) / 1000", "requested"),
                        Query(f"sum(koordlet_be_suppress_be_used_cpu_cores{{{_NODE}}})", "used"),
                    ),
                ),
                Panel(
                    title="Batch memory lent and requested",
                    question="Is memory the bound?",
                    unit="bytes",
                    queries=(
                        Query(f"sum(koordlet_node_resource_allocatable{{{_BATCH_MEMORY},{_NODE}}})", "lent"),
                        Query(f"sum(koordlet_container_resource_requests{{{_BATCH_MEMORY},{_NODE}}})", "requested"),
                    ),
                ),
                Panel(
                    title="Predicted to stay unused by prod pods",
                    question="Could mid pods have more?",
                    queries=(
                        Query(f'sum(koordlet_node_priority_resource_reclaimable{{resource="cpu",{_NODE}}})', "cores"),
                    ),
                ),
                Panel(
                    title="Extended resources that koord-manager computed",
                    question="Which nodes lend?",
                    queries=(
                        Query(
                            "topk(20, sum by (node) (slo_controller_node_extended_resource_allocatable_internal"
                            f"{{{_BATCH_CPU},{_NODE}}}))",
                            "{{node}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Who borrows it?",
            (
                Panel(
                    title="Batch cores by namespace",
                    question="Who borrowed?",
                    kind="bargauge",
                    queries=(
                        Query(
                            "topk(20, sum by (pod_namespace) (koordlet_container_resource_requests"
                            f"{{{_BATCH_CPU},{_NODE}}}) / 1000)",
                            "{{pod_namespace}}",
                        ),
                    ),
                ),
                Panel(
                    title="Quota: used over min",
                    question="Which quotas borrow from others?",
                    kind="bargauge",
                    queries=(
                        Query(
                            'topk(20, scheduler_elastic_quota_status{name=~"$quota",field="used",resource="cpu"}'
                            ' - ignoring (field) scheduler_elastic_quota_status{name=~"$quota",field="min",'
                            'resource="cpu"} > 0)',
                            "{{name}}",
                        ),
                    ),
                ),
                Panel(
                    title="Quota: used, runtime, max (cpu, thousandths)",
                    question="How close is a quota to its bounds?",
                    width=24,
                    queries=(
                        Query(
                            'scheduler_elastic_quota_status{name=~"$quota",field=~"used|runtime|max",resource="cpu"}',
                            "{{name}} {{field}}",
                        ),
                    ),
                ),
                Panel(
                    title="Reservations in use",
                    question="Is reserved room used?",
                    unit="percentunit",
                    width=24,
                    queries=(Query('scheduler_reservation_resource{type="utilization"}', "{{name}} {{resource}}"),),
                ),
            ),
        ),
    ),
)
