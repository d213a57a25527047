"""NumaCycleState holds what the plugin keeps for one class of pods: the demand, rejections, and nodes of dry runs.

Nodes or NUMA nodes are scored from 0 to 100 by how full they would be: spread by LeastAllocated, or pack by
MostAllocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from koord.api.annotations.cpu_codecs import NUMA_LEAST_ALLOCATED, NUMA_MOST_ALLOCATED
from koord.api.config.scheduler.in_tree_args import ResourceWeight, ScoringStrategy
from koord.api.koordinator.resource_name import CPU, EPHEMERAL_STORAGE, MEMORY
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.node_numa_resource.cache import NodeAllocation
from koord.scheduler.plugins.node_numa_resource.cpu_binding import amplified_requested
from koord.scheduler.plugins.node_numa_resource.demand import NumaDemand
from koord.scheduler.plugins.node_numa_resource.ledger import Amounts, NumaAllocation, NumaLedger
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions, amplify
from koord.scheduler.plugins.node_resources.allocation_columns import ScoredResource, present_resources
from koord.values.resources import sum_amounts

PASSES = 0

MAX_NUMA_SCORE = 100
_ALWAYS_COUNTED = (CPU, MEMORY, EPHEMERAL_STORAGE)


class NumaScorer(msgspec.Struct, frozen=True):
    packs: bool
    weights: tuple[tuple[str, int], ...]

    @staticmethod
    def from_strategy(strategy: ScoringStrategy) -> NumaScorer:
        return NumaScorer(strategy.type == NUMA_MOST_ALLOCATED, _weights(strategy.resources))

    @staticmethod
    def for_zones(zone_strategy: ScoringStrategy, strategy: ScoringStrategy) -> NumaScorer:
        """Build the scorer of NUMA nodes: its type comes from its own strategy, its weights from the node's."""
        return NumaScorer(zone_strategy.type == NUMA_MOST_ALLOCATED, _weights(strategy.resources))

    def weighted_resources(self, pod: Amounts) -> list[tuple[str, int]]:
        """Return the resources that count in the score of such a pod, with their weights."""
        return [(name, weight) for name, weight in self.weights if name in _ALWAYS_COUNTED or pod.get(name)]

    def score(self, requested: Amounts, allocatable: Amounts, pod: Amounts) -> int:
        """Return the weighted mean; a resource that is absent, or is extended and not requested, does not count."""
        total = weights = 0
        for name, weight in self.weights:
            there, asked = allocatable.get(name, 0), pod.get(name, 0)
            if not there or (not asked and name not in _ALWAYS_COUNTED):
                continue
            taken = requested.get(name, 0) + asked
            if self.packs:
                share = min(taken, there) * MAX_NUMA_SCORE // there
            else:
                share = 0 if taken > there else (there - taken) * MAX_NUMA_SCORE // there
            total += share * weight
            weights += weight
        return total // weights if weights else 0


def numa_allocate_strategy(zone_strategy: ScoringStrategy) -> str:
    """Return how NUMA nodes are chosen for CPUs where the node's label does not say."""
    return NUMA_MOST_ALLOCATED if zone_strategy.type == NUMA_MOST_ALLOCATED else NUMA_LEAST_ALLOCATED


def score_node(
    scorer: NumaScorer,
    node: TopologyOptions,
    ledger: NumaLedger,
    pod: Amounts,
    requested: Amounts,
    allocatable: Amounts,
) -> int:
    """Score by the node's totals, for a pod without NUMA policy. Bound CPUs of amplified nodes count for the ratio."""
    ratio = node.node_ratio
    if pod.get(CPU) and ratio is not None and ratio > 1:
        requested = {**requested, CPU: amplified_requested(ledger, ratio, requested.get(CPU, 0), guarded=False)}
    return scorer.score(requested, allocatable, pod)


def score_allocation(
    scorer: NumaScorer,
    node: TopologyOptions,
    given: NumaAllocation,
    pod: Amounts,
    *,
    available: Mapping[int, Amounts],
    held: int,
    requested: Amounts,
    allocatable: Amounts,
) -> int:
    """Score by the NUMA nodes of a trial allocation, else by the node's totals (`requested`, `allocatable`).

    `available` is what the trial saw free by NUMA node; `held` the CPUs bound once those that the pod may
    use, but did not get, are returned.
    """
    if given.zones:
        chosen = [zone for zone in node.zones if zone.number in given.zones]
        allocatable = sum_amounts(zone.amounts for zone in chosen)
        free = sum_amounts(available.get(zone.number, {}) for zone in chosen)
        requested = {name: amount - free.get(name, 0) for name, amount in allocatable.items()}
    if given.cpus.bits:
        requested = {**requested, CPU: amplify(1000 * held.bit_count(), node.ratio)}
    return scorer.score(requested, allocatable, pod)


def _weights(resources: Iterable[ResourceWeight]) -> tuple[tuple[str, int], ...]:
    return tuple((resource.name, resource.weight) for resource in resources)


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

    def row_scorer(self) -> Callable[[NodeInfo], int]:
        """Return a function that scores a node by its totals."""
        scorer, amounts = self._scorer, self.demand.amounts
        if scorer.packs:
            return lambda node: scorer.score(node.requested, node.allocatable, amounts)
        if len(self.scored_resources) == 2:
            return _mean_of_two(*self.scored_resources)
        return _mean_of_many(self.scored_resources)

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
