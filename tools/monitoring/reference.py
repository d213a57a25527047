"""docs/reference/metrics.md: every metric of every program."""

from __future__ import annotations

from collections.abc import Iterable

from koord.telemetry.metrics import MetricDeclaration
from tools.monitoring.catalogue import programs, shared_metrics
from tools.monitoring.upstream import NOT_SERVED, UpstreamMetric, upstream_metrics

_INTRODUCTION = """\
# Metrics

Written by `make monitoring` from the declarations beside the code; do not edit. Alerts that use them are in
[alerts.md](alerts.md), dashboards in `charts/koord/dashboards`.

All are served as Prometheus text, and as OpenMetrics to clients that ask for it. A name has the origin Koordinator or
Kubernetes where upstream has it: then type and labels are upstream's too, so that dashboards and rules for it fit. The
others are koord's own. A metric without a value is not served: one of a feature that is off does not appear.

The chart makes a PodMonitor or ServiceMonitor for each program (`monitorEnabled`, `koordlet.enableServiceMonitor`). The
label `job` is then koord-scheduler, koord-manager, koord-descheduler or koordlet, and labels of the metrics win over
those of the target (`honorLabels`).
"""
_NOT_SERVED = """\
## Metrics of upstream that are not served

| name | why |
|---|---|
"""


def metrics_page() -> str:
    upstream = upstream_metrics()
    own = (f"## {one.name}\n\nServed at {one.endpoints}.\n\n{_table(one.metrics, upstream)}" for one in programs())
    shared = (f"## {who}\n\n{_table(metrics, upstream)}" for who, metrics in shared_metrics())
    left_out = _NOT_SERVED + "".join(f"| `{name}` | {why} |\n" for name, why in sorted(NOT_SERVED.items()))
    return "\n".join((_INTRODUCTION, *own, *shared, left_out))


def _table(metrics: Iterable[MetricDeclaration], upstream: dict[str, UpstreamMetric]) -> str:
    lines = ["| name | type | labels | meaning | origin |", "|---|---|---|---|---|"]
    for one in sorted(metrics, key=lambda one: one.name):
        labels = ", ".join(one.label_names)
        origin = upstream[one.name].origin if one.name in upstream else "koord"
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help} | {origin} |")
    return "\n".join(lines) + "\n"
