"""Score how full nodes or NUMA nodes would be, from 0 to 100: spread by LeastAllocated, or pack by MostAllocated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.annotations.node_numa import LEAST_ALLOCATED, MOST_ALLOCATED
from koord.api.config.scheduler.args import ResourceWeight, ScoringStrategy
from koord.api.resource_name import CPU, EPHEMERAL_STORAGE, MEMORY
from koord.policy.topology.amplification import amplify
from koord.policy.topology.binding import amplified_requested
from koord.policy.topology.ledger import Allocation, Amounts, Ledger
from koord.policy.topology.node import NodeTopology

MAX_SCORE = 100
_ALWAYS_COUNTED = (CPU, MEMORY, EPHEMERAL_STORAGE)


class Scorer(msgspec.Struct, frozen=True):
    fills_up: bool
    weights: tuple[tuple[str, int], ...]

    @staticmethod
    def of(strategy: ScoringStrategy) -> Scorer:
        return Scorer(strategy.type == MOST_ALLOCATED, _weights(strategy.resources))

    @staticmethod
    def of_zones(zone_strategy: ScoringStrategy, strategy: ScoringStrategy) -> Scorer:
        """Build the scorer of NUMA nodes: its type comes from its own strategy, its weights from the node's."""
        return Scorer(zone_strategy.type == MOST_ALLOCATED, _weights(strategy.resources))

    def counted(self, pod: Amounts) -> list[tuple[str, int]]:
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
            if self.fills_up:
                share = min(taken, there) * MAX_SCORE // there
            else:
                share = 0 if taken > there else (there - taken) * MAX_SCORE // there
            total += share * weight
            weights += weight
        return total // weights if weights else 0


def allocate_strategy(zone_strategy: ScoringStrategy) -> str:
    """Return how NUMA nodes are chosen for CPUs where the node's label does not say."""
    return MOST_ALLOCATED if zone_strategy.type == MOST_ALLOCATED else LEAST_ALLOCATED


def score_node(
    scorer: Scorer, node: NodeTopology, ledger: Ledger, pod: Amounts, requested: Amounts, allocatable: Amounts
) -> int:
    """Score by the node's totals, for a pod without NUMA policy. Bound CPUs of an amplified node count for the ratio.

    """
    ratio = node.node_ratio
    if pod.get(CPU) and ratio is not None and ratio > 1:
        requested = {**requested, CPU: amplified_requested(ledger, ratio, requested.get(CPU, 0), guarded=False)}
    return scorer.score(requested, allocatable, pod)


def score_allocation(
    scorer: Scorer,
    node: NodeTopology,
    given: Allocation,
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
        allocatable = _sum(zone.amounts for zone in chosen)
        free = _sum(available.get(zone.number, {}) for zone in chosen)
        requested = {name: amount - free.get(name, 0) for name, amount in allocatable.items()}
    if given.cpus.bits:
        requested = {**requested, CPU: amplify(1000 * held.bit_count(), node.ratio)}
    return scorer.score(requested, allocatable, pod)


def _sum(parts: Iterable[Amounts]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def _weights(resources: Iterable[ResourceWeight]) -> tuple[tuple[str, int], ...]:
    return tuple((resource.name, resource.weight) for resource in resources)
