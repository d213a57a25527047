"""NumaCycleState holds what the plugin keeps for one class of pods: the demand, rejections, and nodes of dry runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.node_numa_resource.cache import NodeAllocation
from koord.scheduler.plugins.node_numa_resource.demand import NumaDemand
from koord.scheduler.plugins.node_numa_resource.numa_score import MAX_NUMA_SCORE, NumaScorer
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_resources.resource_allocation import ScoredResource, present_resources

PASSES = 0


class NumaCycleState:
    """The state of one class of pods in a cycle.

    `node_allocations` are the allocations of nodes changed by a dry run; other nodes are live. `is_skipped`:
    such pods demand nothing, and no node has a policy for all pods.
    """

    __slots__ = (
        "_codes",
        "_scorer",
        "demand",
        "is_skipped",
        "mean_score",
        "node_allocations",
        "rejections",
        "scored_resources",
        "taken_over_cpus",
    )

    def __init__(self, demand: NumaDemand, scorer: NumaScorer) -> None:
        self.demand = demand
        self.is_skipped = False
        self.node_allocations: dict[str, NodeAllocation] = {}
        self.taken_over_cpus: dict[
            str, int
        ] = {}  # by node: CPUs of running pods that a reservation would take over there
        self.rejections: list[Reject | None] = [None]
        self._codes: dict[Reject, int] = {}
        self._scorer = scorer
        self.scored_resources = [
            ScoredResource(name, demand.amounts.get(name, 0), weight, nonzero=False)
            for name, weight in scorer.weighted_resources(demand.amounts)
        ]
        self.mean_score: Callable[[NodeInfo], int]  # by the node's totals
        if scorer.packs:
            self.mean_score = lambda node: scorer.score(node.requested, node.allocatable, demand.amounts)
        elif len(self.scored_resources) == 2:
            self.mean_score = _mean_of_two(*self.scored_resources)
        else:
            self.mean_score = _mean_of_many(self.scored_resources)

    def copy(self) -> NumaCycleState:
        other = NumaCycleState(self.demand, self._scorer)
        other.is_skipped = self.is_skipped
        other.node_allocations = dict(self.node_allocations)
        other.taken_over_cpus = dict(self.taken_over_cpus)
        return other

    def code(self, verdict: Reject | None) -> int:
        if verdict is None:
            return PASSES
        code = self._codes.get(verdict)
        if code is None:
            code = self._codes[verdict] = len(self.rejections)
            self.rejections.append(verdict)
        return code


def _mean_of_two(first: ScoredResource, second: ScoredResource) -> Callable[[NodeInfo], int]:
    """Return `_mean_of_many` specialised for two resources, since every placement of a plain pod runs it."""
    a, asked_a, weight_a = first.name, first.request, first.weight
    b, asked_b, weight_b = second.name, second.request, second.weight
    both = weight_a + weight_b

    def mean(node: NodeInfo) -> int:
        there, taken = node.allocatable, node.requested
        there_a, there_b = there.get(a), there.get(b)
        if not there_a or not there_b:
            return _mean_of_many((first, second))(node)
        left_a, left_b = there_a - taken.get(a, 0) - asked_a, there_b - taken.get(b, 0) - asked_b
        total = left_a * MAX_NUMA_SCORE // there_a * weight_a if left_a > 0 else 0
        return (total + left_b * MAX_NUMA_SCORE // there_b * weight_b if left_b > 0 else total) // both

    return mean


def _mean_of_many(counted: Sequence[ScoredResource]) -> Callable[[NodeInfo], int]:
    """Return a function that computes the weighted mean of the free percentages."""

    def mean(node: NodeInfo) -> int:
        total = weights = 0
        for there, used, weight in present_resources(counted, node):
            total += max(there - used, 0) * MAX_NUMA_SCORE // there * weight
            weights += weight
        return total // weights if weights else 0

    return mean


def to_reject(short: NumaRefusal) -> Reject:
    return Reject(short.reasons, resolvable=not short.is_unresolvable)
