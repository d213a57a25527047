"""The metrics of each program, asked from the declarations beside its code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from koord.descheduler.context import DeschedulerMetrics
from koord.embedded.apiserver.server import SERVER_METRICS
from koord.koordlet import gpu_shares, scrape_metrics
from koord.koordlet.metrics import KoordletMetrics
from koord.kube.controller.process import RestMetrics, leader_status
from koord.manager.configuration.watcher import SLO_CONFIG_METRICS
from koord.manager.controllers.noderesource import NODERESOURCE_METRICS
from koord.manager.controllers.per_node_object import NODEMETRIC_METRICS, NODESLO_METRICS
from koord.manager.controllers.webhook_bypass import WEBHOOK_BYPASS_METRICS
from koord.manager.program import IS_LEADER
from koord.manager.quota_topology_cache import SHARED_WEIGHT
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.runtimeproxy.metrics import CHECKPOINT_RECORDS, RuntimeProxyMetrics
from koord.scheduler import resource_metrics
from koord.scheduler.metrics import SCHEDULER_READINGS, KoordinatorMetrics, SchedulerMetrics
from koord.scheduler.plugins.coscheduling.metrics import WAITING_GANG_GROUPS
from koord.scheduler.plugins.elastic_quota.metrics import QUOTA_SPEC, QUOTA_STATUS
from koord.scheduler.plugins.reservation.metrics import RESERVATION_PHASE, RESERVATION_RESOURCE
from koord.scheduler.workload_auditor import WorkloadAuditorMetrics
from koord.telemetry.component_server import health_check_metrics
from koord.telemetry.metrics import MetricDeclaration, MetricRegistry
from koord.telemetry.process import PROCESS_METRICS
from koord.yarn.copilot.program import CopilotMetrics
from koord.yarn.operator import YARN_OPERATOR_METRICS


class Program(msgspec.Struct, frozen=True):
    """One program that serves metrics: where, and which."""

    name: str
    endpoints: str
    metrics: tuple[MetricDeclaration, ...]


def programs() -> tuple[Program, ...]:
    """Return every program with its own metrics; those that programs have in common are in `shared_metrics`."""
    return (
        Program("koord-scheduler", "`:10251/metrics`; `kube_pod_*` at `/metrics/resources`", tuple(_scheduler())),
        Program(
            "koord-manager",
            "`:8080/metrics`, `/internal-metrics`, `/external-metrics` and `/all-metrics`, which are the same",
            tuple(_manager()),
        ),
        Program("koord-descheduler", "`:10251/metrics`", tuple(_descheduler())),
        Program(
            "koordlet", "`:9316/metrics`; `/internal-metrics` and `/external-metrics` are parts of it", _koordlet()
        ),
        Program("koord-runtime-proxy", "`/metrics` at `--addr`", tuple(_runtime_proxy())),
        Program("koord-yarn-copilot", "`:9319/metrics`", tuple(CopilotMetrics().registry.declarations())),
        Program("koord-yarn-operator", "`:8080/metrics`", YARN_OPERATOR_METRICS),
        Program(
            "koord up",
            "`/metrics` of its API server; `/koord/PROGRAM/metrics` of koord-scheduler, koord-manager and"
            " koord-descheduler in the process; `/koord/koordlet/nodes/NODE/metrics` with simulated agents",
            SERVER_METRICS,
        ),
    )


def shared_metrics() -> tuple[tuple[str, tuple[MetricDeclaration, ...]], ...]:
    """Return what programs have in common, with the words that say which programs those are."""
    registry = MetricRegistry()
    RestMetrics(registry)
    leader_status(registry)
    slis = MetricRegistry()
    health_check_metrics(slis)
    return (
        (
            "koord-scheduler, koord-manager, koord-descheduler and koord-yarn-operator as processes of their own",
            tuple(registry.declarations()),
        ),
        ("koord-scheduler at `/metrics/slis`", tuple(slis.declarations())),
        ("Every process", PROCESS_METRICS),
    )


def declared() -> dict[str, MetricDeclaration]:
    """Return every metric by its name."""
    groups = (*(one.metrics for one in programs()), *(metrics for _, metrics in shared_metrics()))
    return {one.name: one for metrics in groups for one in metrics}


def series_labels(metrics: Iterable[MetricDeclaration]) -> dict[str, frozenset[str]]:
    """Return the labels of each series as a query names it: a histogram has three."""
    found: dict[str, frozenset[str]] = {}
    for one in metrics:
        labels = frozenset(one.label_names)
        if one.kind == "histogram":
            found |= {f"{one.name}_sum": labels, f"{one.name}_count": labels, f"{one.name}_bucket": labels | {"le"}}
        else:
            found[one.name] = labels
    return found


def _scheduler() -> Iterator[MetricDeclaration]:
    registry = MetricRegistry()
    SchedulerMetrics(registry)
    KoordinatorMetrics(registry)
    WorkloadAuditorMetrics(registry)
    yield from registry.declarations()
    yield from SCHEDULER_READINGS
    yield from (WAITING_GANG_GROUPS, QUOTA_SPEC, QUOTA_STATUS, RESERVATION_PHASE, RESERVATION_RESOURCE)
    yield from (resource_metrics.REQUEST, resource_metrics.LIMIT)


def _manager() -> Iterator[MetricDeclaration]:
    registry = MetricRegistry()
    WebhookMetrics(registry)
    yield from registry.declarations()
    yield from (IS_LEADER, SHARED_WEIGHT, *SLO_CONFIG_METRICS, *WEBHOOK_BYPASS_METRICS)
    yield from (*NODEMETRIC_METRICS, *NODERESOURCE_METRICS, *NODESLO_METRICS)


def _descheduler() -> Iterator[MetricDeclaration]:
    registry = MetricRegistry()
    DeschedulerMetrics(registry)
    return registry.declarations()


def _koordlet() -> tuple[MetricDeclaration, ...]:
    counted = KoordletMetrics("")
    return (
        *counted.internal.declarations(),
        *scrape_metrics.INTERNAL,
        *counted.external.declarations(),
        *scrape_metrics.EXTERNAL,
        *gpu_shares.DECLARATIONS,
    )


def _runtime_proxy() -> Iterator[MetricDeclaration]:
    yield from RuntimeProxyMetrics().registry.declarations()
    yield CHECKPOINT_RECORDS
