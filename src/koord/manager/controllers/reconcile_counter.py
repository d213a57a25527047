"""Counts of one controller by outcome and reason, under the metric name that dashboards know."""

from __future__ import annotations

from collections import Counter

from koord.telemetry.metrics import MetricReading

SUCCEEDED, FAILED = "succeeded", "failed"


class ReconcileCounter:
    def __init__(self, metric: str, help: str) -> None:
        self._metric = metric
        self._help = help
        self.counts: Counter[tuple[str, str]] = Counter()

    def succeeded(self, reason: str = "") -> None:
        self.counts[SUCCEEDED, reason] += 1

    def failed(self, reason: str) -> None:
        self.counts[FAILED, reason] += 1

    def reading(self) -> MetricReading:
        values = tuple((labels, float(count)) for labels, count in sorted(self.counts.items()))
        return MetricReading(self._metric, self._help, "counter", ("status", "reason"), values)
