"""This module evaluates one node's load: its capacity and thresholds, the verdict with its message, and the score.

It also keeps the headroom and the free capacity of every node as columns, recomputed only for changed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koord.api.config.scheduler.koordinator_args import LoadAwareAggregatedArgs, LoadAwareSchedulingArgs
from koord.api.kubernetes.node import Node
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Ints, NodeTable, Rows, grow_array
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.framework.verdict import Reject, reject
from koord.scheduler.plugins.load_aware import estimator
from koord.scheduler.plugins.load_aware.estimator import (
    MAX_LOAD_SCORE,
    LoadScoreWeights,
    PodEstimate,
    load_score,
    unamplified_capacity,
)
from koord.scheduler.plugins.load_aware.node_load import NodeLoadEstimate
from koord.values import duration

Floats = npt.NDArray[np.float64]

_NO_LIMIT = np.iinfo(np.int64).max
_NEVER_FREE = -1e300  # less than nothing, however little a pod adds
_EXACT_FLOAT_LIMIT = (1 << 53) // MAX_LOAD_SCORE

# (headroom by resource, None without a threshold; a code that does not depend on amounts; the first code)
RowHeadroom = tuple[Sequence[int | None], int, int]
# By place what there is and what is unused of it; None for a node whose load is not known.
RowFree = tuple[Sequence[int], Sequence[int]] | None


class _RowCache:
    """A column set whose rows follow the table's log of changes."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._position = -1

    def refresh(self) -> None:
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        self._resize(table.size)
        nodes = table.nodes
        for row in range(table.size) if rows is None else rows:
            node = nodes[row]
            self._set_row(row, None if node is None or node.node is None else node)

    def _resize(self, size: int) -> None:
        raise NotImplementedError

    def _set_row(self, row: int, node: NodeInfo | None) -> None:
        raise NotImplementedError


class HeadroomColumns(_RowCache):
    """For prod or other pods: how much more of each resource may come to a node before it exceeds a threshold."""

    def __init__(self, table: NodeTable, width: int, headroom: Callable[[NodeInfo], RowHeadroom]) -> None:
        super().__init__(table)
        self._headroom_of = headroom
        self._nothing: RowHeadroom = ((None,) * width, 0, 0)
        self._headrooms: list[Ints] = [np.zeros(0, np.int64) for _ in range(width)]
        self._codes: list[Codes] = [np.zeros(0, np.int32) for _ in range(width)]  # the code of each
        self._fixed_codes: Codes = np.zeros(0, np.int32)

    def _resize(self, size: int) -> None:
        if len(self._fixed_codes) != size:
            self._headrooms = [grow_array(room, size) for room in self._headrooms]
            self._codes = [grow_array(words, size) for words in self._codes]
            self._fixed_codes = grow_array(self._fixed_codes, size)

    def _set_row(self, row: int, node: NodeInfo | None) -> None:
        rooms, self._fixed_codes[row], first = self._nothing if node is None else self._headroom_of(node)
        for place, room in enumerate(rooms):
            self._headrooms[place][row] = _NO_LIMIT if room is None else room
            self._codes[place][row] = first + place

    def codes(self, rows: Rows, adds: Sequence[int]) -> Codes:
        """Return the code of the first resource of which a pod adds as much as the headroom, or more."""
        self.refresh()
        codes = self._fixed_codes[rows].copy()
        for place in range(len(self._headrooms) - 1, -1, -1):
            full = self._headrooms[place][rows] <= adds[place]
            if full.any():
                np.copyto(codes, self._codes[place][rows], where=full)
        return codes


class FreeColumns(_RowCache):
    """For prod or other pods: the unused amount of each resource.

    Shares are quotients of floats, which takes a fraction of the time of integers. As long as a hundredfold of
    the total is exact as a float, the quotient is nearer to the true one than to any integer that the true one
    does not reach, so truncating it gives the same. Rows with larger totals are computed one by one.
    """

    def __init__(self, table: NodeTable, width: int, free: Callable[[NodeInfo], RowFree]) -> None:
        super().__init__(table)
        self._free_of = free
        self._total: list[Floats] = [np.zeros(0) for _ in range(width)]
        self._free_hundredfold: list[Floats] = [np.zeros(0) for _ in range(width)]  # a hundredfold
        self._inexact_rows: dict[int, tuple[Sequence[int], Sequence[int]]] = {}

    def _resize(self, size: int) -> None:
        if len(self._total[0]) != size:
            self._total = [grow_array(total, size) for total in self._total]
            self._free_hundredfold = [grow_array(free, size) for free in self._free_hundredfold]

    def _set_row(self, row: int, node: NodeInfo | None) -> None:
        found = None if node is None else self._free_of(node)
        if self._inexact_rows:
            self._inexact_rows.pop(row, None)
        if found is None:
            for place, free in enumerate(self._free_hundredfold):
                self._total[place][row] = 1
                free[row] = _NEVER_FREE
            return
        for place, (total, spare) in enumerate(zip(*found, strict=True)):
            self._total[place][row] = total or 1
            self._free_hundredfold[place][row] = (
                spare * MAX_LOAD_SCORE if total else _NEVER_FREE
            )  # nothing of what the node lacks
            if total > _EXACT_FLOAT_LIMIT:
                self._inexact_rows[row] = found

    def scores(self, rows: Rows, adds: Sequence[int], weights: LoadScoreWeights) -> Scores:
        self.refresh()
        summed: Floats | None = None
        least: Floats | None = None
        for place, weight in enumerate(weights.by_resource):
            if not weight and not weights.dominant:
                continue
            share = self._free_hundredfold[place][rows] - adds[place] * MAX_LOAD_SCORE
            share /= self._total[place][rows]
            np.floor(share, out=share)
            np.maximum(share, 0, out=share)
            if weights.dominant:
                least = np.minimum(MAX_LOAD_SCORE if least is None else least, share)
            if weight:
                part = share if weight == 1 else share * weight
                summed = part if summed is None else summed + part
        if least is not None:
            least *= weights.dominant
            summed = least if summed is None else summed + least
        if summed is None:
            return np.zeros(len(self._total[0][rows]), np.int64)
        summed /= weights.total  # both are small whole numbers: cutting the quotient is exact
        scores = summed.astype(np.int64)
        if self._inexact_rows:
            self._score_inexact_rows(scores, rows, adds, weights)
        return scores

    def _score_inexact_rows(self, scores: Scores, rows: Rows, adds: Sequence[int], weights: LoadScoreWeights) -> None:
        for row, (total, spare) in self._inexact_rows.items():
            scores[row if isinstance(rows, slice) else rows == row] = _exact(total, spare, adds, weights)


def _exact(total: Sequence[int], spare: Sequence[int], adds: Sequence[int], weights: LoadScoreWeights) -> int:
    used = [there - left for there, left in zip(total, spare, strict=True)]
    return load_score(weights, total, used, (0,) * len(used), adds)


_SPARE = 64


class LoadLimit:
    """The thresholds of prod or other pods on one node. `checks` has the limited resources by position."""

    __slots__ = ("applied", "bounds", "checks", "special")

    def __init__(self, applied: estimator.AppliedThresholds, total: estimator.ResourceVector) -> None:
        self.applied = applied
        self.special = applied.prod or applied.window is not None  # compared with other than the node's plain usage
        self.bounds = applied.amount_bounds(total)
        self.checks = tuple((place, bound) for place, bound in enumerate(self.bounds) if bound is not None)


class NodeLoadProfile:
    """The capacity and the thresholds that a node's own object states."""

    __slots__ = ("node", "plain", "prod", "total")

    def __init__(self, node: NodeInfo, cluster: estimator.LoadThresholds, axes: estimator.ResourceAxes) -> None:
        assert node.node is not None
        self.node: Node = node.node
        annotations = node.node.metadata.annotations
        self.total = unamplified_capacity(node.allocatable, annotations, axes)
        own = estimator.override_from_node(cluster, annotations, axes)
        plain, prod = own.for_pod(prod=False), own.for_pod(prod=True)
        self.plain = LoadLimit(plain, self.total) if plain is not None else None
        self.prod = self.plain if prod == plain else LoadLimit(prod, self.total) if prod is not None else None


class NodeLoadProfiles:
    """The profiles of all nodes, rebuilt for a node whose object changed."""

    def __init__(self, cluster: estimator.LoadThresholds, axes: estimator.ResourceAxes, table: NodeTable) -> None:
        self._cluster = cluster
        self._table = table
        self._axes = axes
        self.by_node: dict[str, NodeLoadProfile] = {}

    def for_node(self, node: NodeInfo) -> NodeLoadProfile:
        known = self.by_node.get(node.name)
        if known is None or known.node is not node.node:
            if len(self.by_node) > 2 * self._table.live + _SPARE:  # mostly of nodes that are gone
                self.by_node.clear()
            known = self.by_node[node.name] = NodeLoadProfile(node, self._cluster, self._axes)
        return known


PASSES = 0

# What a node's load is to a pod, for explanations. Only the first two refuse.
HOT = "hot"
STALE = "stale"
STALE_ALLOWED = "stale-allowed"
UNMEASURED = "unmeasured"
UNLIMITED = "unlimited"
COOL = "cool"


class LoadExplanation(msgspec.Struct, frozen=True):
    """Explains in numbers why a node takes a pod or not. `resource`: the first above its threshold, or the closest."""

    kind: str
    resource: str = ""
    percent: float = 0.0  # of the node in use with the pod on it
    ceiling: int = 0
    age_s: float | None = None  # of the report
    by: str = ""  # which usage was compared: "prod", a percentile such as "p95", or "" for the node's own


class LoadEvaluator:
    def __init__(self, args: LoadAwareSchedulingArgs, axes: estimator.ResourceAxes) -> None:
        """Take arguments that are already defaulted."""
        self.axes = axes
        self._refuses_expired = bool(args.filter_expired_node_metrics)
        self._expired_pass = bool(args.enable_schedule_when_node_metrics_expired)
        self._scores_prod = bool(args.score_according_prod_usage)
        aggregated = args.aggregated or LoadAwareAggregatedArgs()
        self.thresholds: estimator.LoadThresholds = estimator.build_thresholds(
            axes,
            args.usage_thresholds,
            args.prod_usage_thresholds,
            aggregated.usage_thresholds,
            aggregated.usage_aggregation_type,
            aggregated.usage_aggregated_duration,
        )
        self._score_window: estimator.AggregationWindow | None = None
        if aggregated.score_aggregation_type:
            window = aggregated.score_aggregated_duration
            self._score_window = estimator.AggregationWindow(
                aggregated.score_aggregation_type, duration.parse(window) if window is not None else 0
            )
        self._scores_plainly = not self._scores_prod and self._score_window is None
        self.weights = LoadScoreWeights.from_axes(axes, args.resource_weights, args.dominant_resource_weight)
        names = axes.names
        self._nothing: tuple[None, ...] = (None,) * len(names)
        self._aggregated_first = 1 + len(names)
        self.expired_code = 1 + 2 * len(names)
        self.rejections: tuple[Reject | None, ...] = (
            None,
            *(reject(f"node(s) {name} usage exceed threshold") for name in names),
            *(reject(f"node(s) {name} aggregated usage exceed threshold") for name in names),
            reject("node(s) nodeMetric expired"),
        )

    # Filter ------------------------------------------------------------------------------------------------------

    def code(
        self, estimate: PodEstimate, node_load: NodeLoadEstimate | None, profile: NodeLoadProfile, now: float
    ) -> int:
        """Return 0 if the node takes the pod, else an index into `rejections`."""
        limit = profile.prod if estimate.prod else profile.plain
        if limit is None or node_load is None:
            return PASSES
        if self._refuses_expired and node_load.expires_at <= now:
            return PASSES if self._expired_pass else self.expired_code
        seen: Sequence[int] | None = node_load.usage
        if seen is None:
            return PASSES
        pending: Sequence[int] = node_load.deltas
        if limit.special:
            seen, pending = node_load.used(limit.applied.window, prod=limit.applied.prod)
        adds = estimate.usage
        for place, bound in limit.checks:
            if seen[place] + pending[place] + adds[place] >= bound:
                return self._first_code(limit) + place
        return PASSES

    def headroom(
        self, node_load: NodeLoadEstimate | None, profile: NodeLoadProfile, now: float, *, prod: bool
    ) -> RowHeadroom:
        """Return for any pod how much more the node takes."""
        nothing = self._nothing
        limit = profile.prod if prod else profile.plain
        if node_load is None or limit is None:
            return nothing, PASSES, PASSES
        if self._refuses_expired and node_load.expires_at <= now:
            return nothing, PASSES if self._expired_pass else self.expired_code, PASSES
        if node_load.usage is None:
            return nothing, PASSES, PASSES
        seen, pending = node_load.used(limit.applied.window, prod=limit.applied.prod)
        rooms = [
            None if bound is None else bound - seen[place] - pending[place] for place, bound in enumerate(limit.bounds)
        ]
        return rooms, PASSES, self._first_code(limit)

    def _first_code(self, limit: LoadLimit) -> int:
        """Return the first code of the usage that is compared."""
        return 1 if limit.applied.window is None else self._aggregated_first

    def excess(self, estimate: PodEstimate, node_load: NodeLoadEstimate, profile: NodeLoadProfile) -> float:
        """Return by how many percent of the node the pod would exceed a threshold at the worst."""
        limit = profile.prod if estimate.prod else profile.plain
        assert limit is not None
        seen, pending = node_load.used(limit.applied.window, prod=limit.applied.prod)
        return max(
            estimator.usage_percent(seen[place] + pending[place] + estimate.usage[place], profile.total[place])
            - limit.applied.percents[place]
            for place, _ in limit.checks
        )

    # Score -------------------------------------------------------------------------------------------------------

    def scores_by_prod(self, estimate: PodEstimate) -> bool:
        return self._scores_prod and estimate.prod

    def score(
        self, estimate: PodEstimate, node_load: NodeLoadEstimate | None, profile: NodeLoadProfile, now: float
    ) -> int:
        measured = node_load.usage if node_load is not None else None
        if node_load is None or measured is None or node_load.expires_at <= now:
            return 0  # nothing fresh to go by: old reports never count here
        if self._scores_plainly:
            return load_score(self.weights, profile.total, measured, node_load.deltas, estimate.usage)
        prod = self.scores_by_prod(estimate)
        seen, pending = node_load.used(None if prod else self._score_window, prod=prod)
        return load_score(self.weights, profile.total, seen, pending, estimate.usage)

    def free(self, node_load: NodeLoadEstimate | None, profile: NodeLoadProfile, now: float, *, prod: bool) -> RowFree:
        """Return for any pod what the node has, and what is left of it."""
        if node_load is None or node_load.usage is None or node_load.expires_at <= now:
            return None
        seen, pending = node_load.used(None if prod else self._score_window, prod=prod)
        return profile.total, [there - a - b for there, a, b in zip(profile.total, seen, pending, strict=False)]

    # Explanations ------------------------------------------------------------------------------------------------

    def explain(
        self, estimate: PodEstimate, node_load: NodeLoadEstimate | None, profile: NodeLoadProfile, now: float
    ) -> LoadExplanation:
        if node_load is None or node_load.report is None:
            return LoadExplanation(UNMEASURED)
        at = node_load.report.update_time
        age_s = None if at is None else now - at
        limit = profile.prod if estimate.prod else profile.plain
        if limit is None:
            return LoadExplanation(UNLIMITED, age_s=age_s)
        if self._refuses_expired and node_load.expires_at <= now:
            return LoadExplanation(STALE_ALLOWED if self._expired_pass else STALE, age_s=age_s)
        if node_load.usage is None:
            return LoadExplanation(UNMEASURED, age_s=age_s)
        if not limit.checks:
            return LoadExplanation(UNLIMITED, age_s=age_s)
        applied = limit.applied
        seen, pending = node_load.used(applied.window, prod=applied.prod)
        code = self.code(estimate, node_load, profile, now)
        shares = {
            place: estimator.usage_percent(seen[place] + pending[place] + estimate.usage[place], profile.total[place])
            for place, _ in limit.checks
        }
        if code:
            place = code - self._first_code(limit)
        else:
            place = max(shares, key=lambda each: shares[each] - applied.percents[each])
        return LoadExplanation(
            HOT if code else COOL,
            self.axes.names[place],
            shares[place],
            applied.percents[place],
            age_s,
            "prod" if applied.prod else "" if applied.window is None else applied.window.kind,
        )
