"""Usage thresholds: the cluster's, a node's own, and which of them a pod must respect."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from koord.api.annotations import usage_thresholds
from koord.api.annotations.codec import Malformed
from koord.policy.load.axes import Axes, Vector
from koord.values import duration


class Window(msgspec.Struct, frozen=True):
    """The aggregation of usage to compare with."""

    kind: str
    nanoseconds: int = 0  # 0: the longest that is reported


class Aggregated(msgspec.Struct, frozen=True):
    percents: Vector
    window: Window


class Ceilings(msgspec.Struct, frozen=True):
    """Percentages by resource; 0 is no threshold. An aggregated threshold replaces the plain one altogether."""

    usage: Vector
    prod: Vector
    aggregated: Aggregated | None = None

    def of(self, *, prod: bool) -> Applied | None:
        """Return the thresholds that a pod must respect, given whether it is prod; None when nothing limits it."""
        if prod and any(self.prod):
            return Applied(self.prod, prod=True)
        if self.aggregated is not None:
            found = Applied(self.aggregated.percents, window=self.aggregated.window)
        else:
            found = Applied(self.usage)
        return found if any(found.percents) else None


class Applied(msgspec.Struct, frozen=True):
    """The thresholds of one pod on one node, and the usage that they are compared with."""

    percents: Vector
    prod: bool = False  # against what prod pods use
    window: Window | None = None

    def bounds(self, total: Vector) -> tuple[int | None, ...]:
        """Return by resource the smallest excessive amount; None without a threshold or for a resource the node lacks.

        """
        return tuple(
            too_much(percent, there) if percent and there else None
            for percent, there in zip(self.percents, total, strict=True)
        )


def ceilings(
    axes: Axes,
    usage: Mapping[str, int],
    prod: Mapping[str, int],
    aggregated: Mapping[str, int],
    kind: str,
    window: str | None,
) -> Ceilings:
    return Ceilings(axes.pick(usage), axes.pick(prod), _aggregated(axes, aggregated, kind, window))


def overlaid(cluster: Ceilings, annotations: Mapping[str, str], axes: Axes) -> Ceilings:
    """Apply a node's own thresholds over the cluster's: a stated block replaces its counterpart as a whole."""
    own = usage_thresholds.parse(annotations)
    if own is None or isinstance(own, Malformed):
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
    return Ceilings(
        axes.pick(own.usage_thresholds) if own.usage_thresholds else cluster.usage,
        axes.pick(own.prod_usage_thresholds) if own.prod_usage_thresholds else cluster.prod,
        aggregated or cluster.aggregated,
    )


def _aggregated(axes: Axes, percents: Mapping[str, int], kind: str, window: str | None) -> Aggregated | None:
    if not percents or not kind:
        return None
    return Aggregated(axes.pick(percents), Window(kind, duration.parse(window) if window else 0))


def percent(used: int, total: int) -> float:
    return used / total * 100


def too_much(ceiling: int, total: int) -> int:
    """Return the least amount whose percentage, rounded to the nearest, is above the threshold."""
    edge = ceiling + 0.5
    amount = math.ceil(edge * total / 100)
    while percent(amount - 1, total) >= edge:  # the quotient is a float: it may be off by a few units of a huge total
        amount -= 1
    while percent(amount, total) < edge:
        amount += 1
    return amount
