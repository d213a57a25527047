"""Score how full nodes or NUMA nodes would be, from 0 to 100: spread by LeastAllocated, or pack by MostAllocated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.annotations.numa_codecs import NUMA_LEAST_ALLOCATED, NUMA_MOST_ALLOCATED
from koord.api.config.scheduler.plugin_args import ResourceWeight, ScoringStrategy
from koord.api.koordinator.resource_name import CPU, EPHEMERAL_STORAGE, MEMORY
from koord.scheduler.plugins.node_numa_resource.cpu_binding import amplified_requested
from koord.scheduler.plugins.node_numa_resource.ledger import Amounts, NumaAllocation, NumaLedger
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions, amplify
from koord.values.amounts import sum_amounts

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
        return [(name, weight) for name, weight in self.weights if pod.get(name) or name in _ALWAYS_COUNTED]

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
