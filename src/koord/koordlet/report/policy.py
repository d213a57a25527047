"""Build the NodeMetric's status: what the node, its pods and its host applications used recently.

A report is made of fresh samples or not at all: a new timestamp on old numbers would hide that the node stopped
measuring. The spec's policy says how often to report and over which windows.
"""

from __future__ import annotations

import msgspec

from koord.api.slo import MEMORY_WITHOUT_PAGE_CACHE, NodeMetricSpec
from koord.values import duration
from koord.values.duration import DurationError

DEFAULT_AGGREGATE_S = 300
DEFAULT_REPORT_S = 60
DEFAULT_DURATIONS_S = (300.0, 600.0, 1800.0)
LEAST_REPORT_S = 30
LEAST_AGGREGATE_S = 60


class ReportPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How often to report and over which windows."""
    aggregate_s: int = DEFAULT_AGGREGATE_S
    report_s: int = DEFAULT_REPORT_S
    durations_s: tuple[float, ...] = DEFAULT_DURATIONS_S
    memory: str = MEMORY_WITHOUT_PAGE_CACHE

    @property
    def longest_s(self) -> float:
        """Return how far back series must reach."""
        return max((self.aggregate_s, *self.durations_s))


def report_policy(spec: NodeMetricSpec) -> ReportPolicy:
    """Return the policy of a spec. What is not set has the default; invalid or non-positive durations are left out."""
    wish = spec.metric_collect_policy
    if wish is None:
        return ReportPolicy()
    aggregate, report, windows = (
        wish.aggregate_duration_seconds,
        wish.report_interval_seconds,
        wish.node_aggregate_policy,
    )
    stated = () if windows is None else tuple(filter(None, map(_seconds, windows.durations)))
    return ReportPolicy(
        aggregate_s=max(DEFAULT_AGGREGATE_S if aggregate is None else aggregate, LEAST_AGGREGATE_S),
        report_s=max(DEFAULT_REPORT_S if report is None else report, LEAST_REPORT_S),
        durations_s=DEFAULT_DURATIONS_S if windows is None or not windows.durations else stated,
        memory=wish.node_memory_collect_policy or MEMORY_WITHOUT_PAGE_CACHE,
    )


def _seconds(text: str) -> float | None:
    try:
        found = duration.parse_seconds(text)
    except DurationError:
        return None
    return found if found > 0 else None
