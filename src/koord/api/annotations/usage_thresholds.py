"""scheduling.koordinator.sh/usage-thresholds: one node's own ceilings for load-aware scheduling."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.marker import Duration
from koord.api.part import Part
from koord.api.protocol import A_USAGE_THRESHOLDS


class AggregatedThresholds(Part, frozen=True, kw_only=True):
    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: Duration | None = None


class UsageThresholds(Part, frozen=True, kw_only=True):
    """UsageThresholds is one node's own ceilings for load-aware scheduling, in percent by resource."""

    usage_thresholds: dict[str, int] = {}
    prod_usage_thresholds: dict[str, int] = {}
    aggregated_usage: AggregatedThresholds | None = None


def parse(annotations: Mapping[str, str]) -> UsageThresholds | Malformed | None:
    return read(annotations, A_USAGE_THRESHOLDS, UsageThresholds)


def dump(value: UsageThresholds) -> str:
    return written(value)
