"""NumaNodeEvaluator filters and scores one class of pods on one node, and merges the NUMA hints of other plugins."""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.annotations.cpu_codecs import NUMA_POLICY_NONE
from koord.api.config.scheduler.koordinator_args import NodeNUMAResourceArgs
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework import reservation
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.node_numa_resource.available import available_resources
from koord.scheduler.plugins.node_numa_resource.cache import (
    NodeAllocation,
    NodeAllocationCache,
    NodeTopologyProfile,
    NodeTopologyProfiles,
)
from koord.scheduler.plugins.node_numa_resource.cpu_topology import InvalidCpuTopology
from koord.scheduler.plugins.node_numa_resource.cycle_state import (
    NumaCycleState,
    NumaScorer,
    numa_allocate_strategy,
    score_allocation,
    score_node,
    to_reject,
)
from koord.scheduler.plugins.node_numa_resource.demand import NumaDemand
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation
from koord.scheduler.plugins.node_numa_resource.placement import NumaTrial, check_before_placement, resolve_terms
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_numa_resource.reserved_cpus import request_with_all
from koord.scheduler.plugins.node_numa_resource.topology_manager import HintProvider, NumaAffinity


class NumaNodeEvaluator:
    def __init__(self, args: NodeNUMAResourceArgs, cache: NodeAllocationCache, state: ClusterState) -> None:
        assert args.scoring_strategy is not None
        assert args.numa_scoring_strategy is not None
        self.scorer = NumaScorer.from_strategy(args.scoring_strategy)
        self.zone_scorer = NumaScorer.for_zones(args.numa_scoring_strategy, args.scoring_strategy)
        self.cache = cache
        self.profiles = NodeTopologyProfiles(cache, numa_allocate_strategy(args.numa_scoring_strategy), state)
        self.hint_providers: tuple[reservation.NumaHintProvider, ...] = ()  # of the profile

    def hint_plugins(self, cycle: CycleState) -> list[reservation.NumaHintProvider]:
        """Return the other plugins that give NUMA hints for such a pod; one that skips the pod has none."""
        return [plugin for plugin in self.hint_providers if plugin.name not in cycle.skip_filter]

    def node_allocation(
        self, cycle_state: NumaCycleState, profile: NodeTopologyProfile, node: NodeInfo
    ) -> NodeAllocation:
        """Return the node's allocation, as changed by a dry run if there is one."""
        if cycle_state.node_allocations and (supposed := cycle_state.node_allocations.get(node.name)) is not None:
            return supposed.with_topology(profile.topology.cpu)
        return self.cache.node_allocation(profile, node.name)

    # Filter ------------------------------------------------------------------------------------------------------

    def verdict(self, cycle: CycleState, cycle_state: NumaCycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        demand, profile = cycle_state.demand, self.profiles.for_node(node)
        if demand.is_plain and not profile.concerns_all_pods:
            return None
        terms = resolve_terms(demand, profile)
        if isinstance(terms, NumaRefusal):
            return to_reject(terms)
        node_allocation = self.node_allocation(cycle_state, profile, node)
        if demand.designated is None:
            refused = check_before_placement(demand, terms, profile, node_allocation, node)
            if refused is not None:
                return to_reject(refused)
            if terms.needs_nothing:
                return None
        trial = NumaTrial.with_reservations(demand, terms, profile, node_allocation, reservations_on(cycle, node))
        if terms.policy == NUMA_POLICY_NONE or demand.designated is not None:
            lacking = trial.check_cpu_count()
            return None if lacking is None else to_reject(lacking)
        found = self.admit(cycle, pod, node, trial)
        return to_reject(found) if isinstance(found, NumaRefusal) else None

    def admit(self, cycle: CycleState, pod: PodInfo, node: NodeInfo, trial: NumaTrial) -> NumaAffinity | NumaRefusal:
        """Return the NUMA nodes that all hint providers agree on, and on which each can allocate its part."""
        told: list[tuple[reservation.NumaHintProvider, reservation.NumaTopologyHints | Reject]] = []
        for plugin in self.hint_plugins(cycle):
            hints = plugin.numa_hints(cycle, pod, node)
            if hints is not None:
                told.append((plugin, hints))
        found = trial.admit_zones(self.zone_scorer, [_hint_provider(hints) for _, hints in told])
        if isinstance(found, NumaRefusal):
            return found
        given = trial.try_allocate(found.mask)
        if isinstance(given, NumaRefusal):
            return given
        for plugin, _ in told:
            refused = plugin.numa_fits(cycle, pod, node, found.mask)
            if refused is not None:
                return NumaRefusal(refused.reasons, is_unresolvable=not refused.resolvable)
        return found

    def expected_allocation(
        self, demand: NumaDemand, profile: NodeTopologyProfile, node_allocation: NodeAllocation
    ) -> NumaAllocation | None:
        """Return what a nominated pod would be given on the node, as far as this plugin alone can tell."""
        terms = resolve_terms(demand, profile)
        if isinstance(terms, NumaRefusal) or terms.needs_nothing:
            return None
        trial = NumaTrial.with_reservations(demand, terms, profile, node_allocation, ())
        found = trial.admit_zones(self.zone_scorer, ())
        given = found if isinstance(found, NumaRefusal) else trial.try_allocate(found.mask)
        return None if isinstance(given, NumaRefusal) else given

    # Score -------------------------------------------------------------------------------------------------------

    def score(self, cycle: CycleState, cycle_state: NumaCycleState, pod: PodInfo, node: NodeInfo) -> int:
        demand, profile = cycle_state.demand, self.profiles.for_node(node)
        if demand.is_plain and not profile.concerns_all_pods:
            return self.scorer.score(node.requested, node.allocatable, demand.amounts)
        terms = resolve_terms(demand, profile)
        if isinstance(terms, NumaRefusal) or (
            terms.binding is not None and isinstance(profile.topology.cpu, InvalidCpuTopology)
        ):
            return 0
        node_allocation = self.node_allocation(cycle_state, profile, node)
        charged = terms.request.amplified_amounts(profile.topology)
        if terms.policy == NUMA_POLICY_NONE:
            return score_node(
                self.scorer, profile.topology, node_allocation.ledger, charged, node.requested, node.allocatable
            )
        trial = NumaTrial.with_reservations(demand, terms, profile, node_allocation, reservations_on(cycle, node))
        affinity = self.admit(cycle, pod, node, trial)
        given = affinity if isinstance(affinity, NumaRefusal) else trial.try_allocate(affinity.mask)
        if isinstance(given, NumaRefusal):
            return 0
        request = request_with_all(terms.request, trial.reserved)
        return score_allocation(
            self.scorer,
            profile.topology,
            given,
            charged,
            available=available_resources(profile.topology, node_allocation.ledger, request).zones,
            held=node_allocation.ledger.refcounts.remove(request.preferred & ~given.cpus.bits).referenced,
            requested=node.requested,
            allocatable=node.allocatable,
        )


def reservations_on(cycle: CycleState, node: NodeInfo) -> Sequence[reservation.MatchedReservation]:
    matched = reservation.reservations_of(cycle).matched
    return matched.get(node.name, ()) if matched else ()


def _hint_provider(hints: reservation.NumaTopologyHints | Reject) -> HintProvider:
    """Return a provider of another plugin's hints, limited to masks of at most `width` NUMA nodes."""

    def provide(width: int) -> reservation.NumaTopologyHints | NumaRefusal:
        if isinstance(hints, Reject):
            return NumaRefusal(hints.reasons)
        return {
            name: None if offered is None else [h for h in offered if h.mask is None or len(h.mask) <= width]
            for name, offered in hints.items()
        }

    return provide
