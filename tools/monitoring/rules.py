"""The rule file of Prometheus, and the runbook of its alerts."""

from __future__ import annotations

from typing import Any

import yaml

from tools.monitoring.alert import Alert, AlertGroup, anchor
from tools.monitoring.catalogue import declared, series_labels
from tools.monitoring.control_plane_alerts import CONTROL_PLANE_GROUPS
from tools.monitoring.node_alerts import NODE_GROUPS
from tools.monitoring.program_alerts import PROGRAMS

GROUPS: tuple[AlertGroup, ...] = (*CONTROL_PLANE_GROUPS, *NODE_GROUPS, PROGRAMS)
_HEADER = """\
# Written by tools/monitoring: change the descriptions there and run `make monitoring`.
# A Prometheus without the operator loads this file by rule_files. docs/reference/alerts.md explains each alert.
"""
_INTRODUCTION = """\
# Alerts

Written by `make monitoring`; do not edit. The rules are `charts/koord/files/alerts.yaml`: a rule file of Prometheus,
and the PrometheusRule of the chart with `prometheusRule.enabled`. Metrics are explained in [metrics.md](metrics.md).

The rules select programs by the label `job`: koord-scheduler, koord-manager, koord-descheduler, koordlet. The chart's
PodMonitors and ServiceMonitor set it so; with other scrape configurations set it by relabelling. Thresholds of memory
and CPU are nine tenths of the limits in the chart's default values.

| severity | meaning |
|---|---|
| critical | pods do not start, are not protected, or soon will not: act now |
| warning | a part of the platform does not do its work: act today |
| info | the platform does what it was told; its users may not like it |
"""


def every_alert() -> tuple[Alert, ...]:
    return tuple(alert for group in GROUPS for alert in group.alerts)


def known_series() -> dict[str, frozenset[str]]:
    """Return the labels of every series that rules and dashboards may name."""
    recorded = {one.name: one.labels for group in GROUPS for one in group.recordings}
    return {**series_labels(declared().values()), **recorded, "up": frozenset()}


def rule_file() -> str:
    groups = [{"name": group.name, "rules": _rules(group)} for group in GROUPS]
    return _HEADER + yaml.safe_dump({"groups": groups}, sort_keys=False, width=160)


def _rules(group: AlertGroup) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = [{"record": one.name, "expr": one.expression} for one in group.recordings]
    return recorded + [
        {
            "alert": one.name,
            "expr": one.expression,
            "for": one.lasts,
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.summary, "description": one.description, "runbook": anchor(one)},
        }
        for one in group.alerts
    ]


def alerts_page() -> str:
    return _INTRODUCTION + "".join(f"\n## {group.title}\n{_sections(group)}" for group in GROUPS)


def _sections(group: AlertGroup) -> str:
    return "".join(
        f"\n### {one.name}\n\n{one.severity}, after {one.lasts}. {one.meaning}\n\n"
        f"```promql\n{one.expression}\n```\n\n"
        + "".join(f"{number}. {step}\n" for number, step in enumerate(one.steps, 1))
        for one in group.alerts
    )
