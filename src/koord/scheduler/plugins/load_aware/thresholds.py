"""Thresholds of a node's usage: the cluster's, a node's own, and those a pod must respect; as resource vectors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.model import QuantityText
from koord.values import duration
from koord.values.quantity import Quantity
from koord.values.resources import CPU, MEMORY, from_units, units

# One whole number per resource, in the order of the axes: thousandths for cpu, units for everything else.
ResourceVector: TypeAlias = tuple[int, ...]


class ResourceAxes(msgspec.Struct, frozen=True):
    """The resources that load is measured in, sorted by name, also the order of the checks. Others are ignored."""

    names: tuple[str, ...]

    @staticmethod
    def including(*named: Iterable[str]) -> ResourceAxes:
        """Build axes over cpu, memory and everything that is named."""
        return ResourceAxes(tuple(sorted({CPU, MEMORY}.union(*named))))

    @property
    def zero(self) -> ResourceVector:
        return (0,) * len(self.names)

    def vector_of(self, amounts: Mapping[str, int]) -> ResourceVector:
        return tuple(amounts.get(name, 0) for name in self.names)

    def parse(self, listed: Mapping[str, QuantityText]) -> ResourceVector:
        """Parse a resource list into a vector. Raises QuantityError."""
        return tuple(units(name, Quantity.parse(listed[name])) if name in listed else 0 for name in self.names)

    def to_resource_list(self, vector: Iterable[int]) -> dict[str, str]:
        """Return the vector as a resource list of the API."""
        return {name: str(from_units(name, amount)) for name, amount in zip(self.names, vector, strict=True)}


class AggregationWindow(msgspec.Struct, frozen=True):
    """The aggregation of usage to compare with."""

    kind: str
    nanoseconds: int = 0  # 0: the longest that is reported


class AggregatedThreshold(msgspec.Struct, frozen=True):
    percents: ResourceVector
    window: AggregationWindow


class LoadThresholds(msgspec.Struct, frozen=True):
    """Percentages by resource; 0 is no threshold. An aggregated threshold replaces the plain one altogether."""

    usage: ResourceVector
    prod: ResourceVector
    aggregated: AggregatedThreshold | None = None

    def for_pod(self, *, prod: bool) -> AppliedThresholds | None:
        """Return the thresholds that a pod must respect, given whether it is prod; None when nothing limits it."""
        if prod and any(self.prod):
            return AppliedThresholds(self.prod, prod=True)
        if self.aggregated is not None:
            found = AppliedThresholds(self.aggregated.percents, window=self.aggregated.window)
        else:
            found = AppliedThresholds(self.usage)
        return found if any(found.percents) else None


class AppliedThresholds(msgspec.Struct, frozen=True):
    """The thresholds of one pod on one node, and the usage that they are compared with."""

    percents: ResourceVector
    prod: bool = False  # against what prod pods use
    window: AggregationWindow | None = None

    def amount_bounds(self, total: ResourceVector) -> tuple[int | None, ...]:
        """Return by resource the smallest excessive amount; None without a threshold or without that resource."""
        return tuple(
            exceeding_amount(percent, there) if percent and there else None
            for percent, there in zip(self.percents, total, strict=True)
        )


def build_thresholds(
    axes: ResourceAxes,
    usage: Mapping[str, int],
    prod: Mapping[str, int],
    aggregated: Mapping[str, int],
    kind: str,
    window: str | None,
) -> LoadThresholds:
    return LoadThresholds(axes.vector_of(usage), axes.vector_of(prod), _aggregated(axes, aggregated, kind, window))


def override_from_node(cluster: LoadThresholds, annotations: Mapping[str, str], axes: ResourceAxes) -> LoadThresholds:
    """Apply a node's own thresholds over the cluster's: a stated block replaces its counterpart as a whole."""
    own = node_codecs.parse_usage_thresholds(annotations)
    if own is None or isinstance(own, MalformedAnnotation):
        return cluster
    aggregated = None
    if own.aggregated_usage is not None:
        block = own.aggregated_usage
        try:
            aggregated = _aggregated(
                axes, block.usage_thresholds, block.usage_aggregation_type, block.usage_aggregated_duration
            )
        except duration.DurationError:  # unreadable like any other bad text, and that spoils the whole annotation
            return cluster
    return LoadThresholds(
        axes.vector_of(own.usage_thresholds) if own.usage_thresholds else cluster.usage,
        axes.vector_of(own.prod_usage_thresholds) if own.prod_usage_thresholds else cluster.prod,
        aggregated or cluster.aggregated,
    )


def _aggregated(
    axes: ResourceAxes, percents: Mapping[str, int], kind: str, window: str | None
) -> AggregatedThreshold | None:
    if not percents or not kind:
        return None
    return AggregatedThreshold(
        axes.vector_of(percents), AggregationWindow(kind, duration.parse(window) if window else 0)
    )


def usage_percent(used: int, total: int) -> float:
    return used / total * 100


def exceeding_amount(ceiling: int, total: int) -> int:
    """Return the least amount whose percentage, rounded to the nearest, is above the threshold."""
    edge = ceiling + 0.5
    amount = math.ceil(edge * total / 100)
    while (
        usage_percent(amount - 1, total) >= edge
    ):  # the quotient is a float: it may be off by a few units of a huge total
        amount -= 1
    while usage_percent(amount, total) < edge:
        amount += 1
    return amount
