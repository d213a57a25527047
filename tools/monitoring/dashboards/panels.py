"""Panels and queries that dashboards have in common."""

from __future__ import annotations

from tools.monitoring.dashboard import Panel, Query

SCHEDULER_JOB = 'job="koord-scheduler"'  # kube-scheduler serves metrics of the same names


def stat(title: str, question: str, expression: str, unit: str = "short", bad: float | None = None) -> Panel:
    return Panel(title=title, question=question, queries=(Query(expression),), unit=unit, kind="stat", width=4, bad=bad)


def quantiles(histogram: str, matchers: str, by: str = "", legend: str = "") -> tuple[Query, ...]:
    """Return the 50th and 99th percentile of a histogram, of each value of the label `by`."""
    labels = f"le, {by}" if by else "le"
    series = f"{histogram}_bucket{{{matchers}}}[$__rate_interval]"
    return tuple(
        Query(f"histogram_quantile({share}, sum by ({labels}) (rate({series})))", f"{legend}{name}")
        for share, name in ((0.5, "p50"), (0.99, "p99"))
    )
