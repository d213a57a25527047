"""This module places one demand on one node: whether it fits, its NUMA nodes, its allocation, and how near a
miss was.

Nothing is allocated in the cache here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import msgspec

from koord.api.annotations.cpu_codecs import (
    CPU_BIND_FULL_PCPUS,
    CPU_BIND_SPREAD_BY_PCPUS,
    NUMA_POLICY_NONE,
    NUMA_POLICY_RESTRICTED,
)
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.framework.reservation import MatchedReservation as Reservation
from koord.scheduler.framework.reservation import NumaTopologyHint, NumaTopologyHints
from koord.scheduler.plugins.node_numa_resource import available, cpu_binding, refusal, topology_manager
from koord.scheduler.plugins.node_numa_resource.allocator import allocate_designated, allocate_numa, can_allocate
from koord.scheduler.plugins.node_numa_resource.available import AvailableResources, available_resources
from koord.scheduler.plugins.node_numa_resource.cache import NodeAllocation, NodeTopologyProfile
from koord.scheduler.plugins.node_numa_resource.cpu_binding import NumaRequest
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology
from koord.scheduler.plugins.node_numa_resource.cycle_state import NumaScorer
from koord.scheduler.plugins.node_numa_resource.demand import NumaDemand
from koord.scheduler.plugins.node_numa_resource.ledger import (
    SHARED,
    SINGLE,
    Amounts,
    NumaAllocation,
    NumaLedger,
    ZoneAmounts,
)
from koord.scheduler.plugins.node_numa_resource.reserved_cpus import (
    NodeReservedCpus,
    ReservedCpus,
    allocate_reserved,
    allocate_within_reservation,
    request_beside_reservations,
    request_with_all,
)
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koord.values.bitmask import BitMask
from koord.values.resources import CPU, materialise

RESTRICTED_RESERVATION = "Restricted"
NO_NOMINATED = "no nominated reservation"
OUT_OF_SCOPE = "pod has a nominated reservation but cannot be allocated within its NUMA scope"

Feasible = Callable[[BitMask], bool]


def provide_numa_hints(
    node: TopologyOptions,
    ledger: NumaLedger,
    request: NumaRequest,
    policy: str,
    scorer: NumaScorer,
    *,
    widest: int | None = None,
    feasible: Feasible | None = None,
) -> NumaTopologyHints | refusal.NumaRefusal:
    """Compute hints for sets of at most `widest` NUMA nodes. `feasible` replaces the trial allocation on a set."""
    if not node.zones:
        return refusal.NumaRefusal.unschedulable(refusal.INSUFFICIENT_NUMA_NODE)
    available = available_resources(node, ledger, request)
    takes = feasible or (lambda mask: can_allocate(node, available, request, mask))
    known = {name for zone in node.zones for name in zone.amounts}
    resources = sorted(name for name, amount in request.amounts.items() if amount > 0 and name in known)
    found: dict[str, list[NumaTopologyHint]] = {name: [] for name in resources}
    # A set with a NUMA node that has none left is not offered, though the others might do.
    some = {name: sum(1 << n for n, left in available.zones.items() if left.get(name, 0) > 0) for name in resources}
    numbers = node.zone_numbers
    sizes, charged = {zone.number: zone.amounts for zone in node.zones}, request.amplified_amounts(node)
    for size in range(1, (len(numbers) if widest is None else min(widest, len(numbers))) + 1):
        for chosen in combinations(numbers, size):
            mask = BitMask(sum(1 << number for number in chosen))
            offered = [name for name in resources if not mask.value & ~some[name]]
            if not offered or not takes(mask):
                continue
            score = _zone_set_score(available, sizes, charged, scorer, chosen)
            for name in offered:
                hints = found[name]
                # Sets come smallest first, so the size of the first one found is the smallest that can do it.
                smallest = not hints or size == len(hints[0].mask or ())
                hints.append(
                    NumaTopologyHint(mask, preferred=smallest or policy == NUMA_POLICY_RESTRICTED, score=score)
                )
    return found


def _zone_set_score(
    available: AvailableResources, sizes: ZoneAmounts, charged: Amounts, scorer: NumaScorer, chosen: tuple[int, ...]
) -> int:
    total: dict[str, int] = {}
    taken: dict[str, int] = {}
    for name, _ in scorer.weights:
        there = sum(sizes[number].get(name, 0) for number in chosen)
        total[name] = there
        taken[name] = there - sum(available.zones.get(number, {}).get(name, 0) for number in chosen)
    return scorer.score(taken, total, charged)


class PlacementTerms(msgspec.Struct, frozen=True):
    """PlacementTerms is what applies to a demand on this node: the NUMA policy, and whether CPUs are bound."""

    policy: str
    binding: cpu_binding.CpuBinding | None
    request: cpu_binding.NumaRequest

    @property
    def needs_nothing(self) -> bool:
        """Return whether nothing has to be allocated."""
        return self.binding is None and self.policy == NUMA_POLICY_NONE


def resolve_terms(demand: NumaDemand, profile: NodeTopologyProfile) -> PlacementTerms | refusal.NumaRefusal:
    policy = topology_manager.resolve_numa_policy(profile.topology.numa_policy, demand.policy)
    if isinstance(policy, refusal.NumaRefusal):
        return policy
    binding = cpu_binding.decide_binding(demand.wish, profile.topology)
    if isinstance(binding, refusal.NumaRefusal):
        return binding
    return PlacementTerms(policy, binding, cpu_binding.NumaRequest(amounts=demand.amounts, binding=binding))


def check_before_placement(
    demand: NumaDemand,
    terms: PlacementTerms,
    profile: NodeTopologyProfile,
    node_allocation: NodeAllocation,
    node: NodeInfo,
) -> refusal.NumaRefusal | None:
    """Return the refusal that is known before CPUs and NUMA nodes are considered."""
    refused = cpu_binding.check_amplified_cpu(
        demand.wish,
        profile.topology,
        node_allocation.ledger,
        binds=terms.binding is not None,
        requested_milli=node.requested.get(CPU, 0),
        allocatable_milli=node.allocatable.get(CPU, 0),
    )
    if refused is None and terms.binding is not None:
        refused = cpu_binding.check_binding(demand.wish, terms.binding, profile.topology)
    return refused


class NumaTrial(msgspec.Struct, frozen=True):
    """A trial allocation of a demand on a live or changed node, with the reservations there that it may use."""

    demand: NumaDemand
    terms: PlacementTerms
    profile: NodeTopologyProfile
    node_allocation: NodeAllocation
    reserved: NodeReservedCpus = NodeReservedCpus()

    @staticmethod
    def with_reservations(
        demand: NumaDemand,
        terms: PlacementTerms,
        profile: NodeTopologyProfile,
        node_allocation: NodeAllocation,
        reservations: Sequence[Reservation],
    ) -> NumaTrial:
        held = node_allocation.ledger.pods
        matched = tuple(
            ReservedCpus(uid=one.uid, held=held[one.reserve_pod.uid], restricted=one.policy == RESTRICTED_RESERVATION)
            for one in reservations
            if one.reserve_pod.uid in held
        )
        return NumaTrial(demand, terms, profile, node_allocation, NodeReservedCpus(matched))

    # Whether it fits ---------------------------------------------------------------------------------------------

    def admit_zones(
        self, scorer: NumaScorer, others: Sequence[topology_manager.HintProvider]
    ) -> topology_manager.NumaAffinity | refusal.NumaRefusal:
        """Return the NUMA nodes that the policy admits; any without a policy."""
        policy, topology = self.terms.policy, self.profile.topology
        if policy == NUMA_POLICY_NONE:
            return topology_manager.NumaAffinity()
        if not topology.zones:
            return refusal.NumaRefusal.unresolvable(refusal.MISSING_NUMA)
        zones = topology_manager.numa_zones_of(topology, self.node_allocation.ledger, self.demand.exclusive)
        return topology_manager.admit_pod(policy, zones, [lambda width: self.hints(scorer, width), *others])

    def hints(self, scorer: NumaScorer, widest: int) -> NumaTopologyHints | refusal.NumaRefusal:
        topology, ledger, request = self.profile.topology, self.node_allocation.ledger, self.terms.request
        if not self.reserved.matched:
            return provide_numa_hints(topology, ledger, request, self.terms.policy, scorer, widest=widest)
        return provide_numa_hints(
            topology,
            ledger,
            request_with_all(request, self.reserved),
            self.terms.policy,
            scorer,
            widest=widest,
            feasible=lambda mask: not isinstance(self.try_allocate(mask), refusal.NumaRefusal),
        )

    def try_allocate(self, mask: BitMask | None) -> NumaAllocation | refusal.NumaRefusal:
        """Allocate in the first reservation that takes the demand, else outside of all of them."""
        topology, ledger, request = self.profile.topology, self.node_allocation.ledger, self.terms.request
        if self.demand.designated is not None:
            return allocate_designated(topology, ledger, request, self.demand.designated)
        if not self.reserved.matched:
            return allocate_numa(topology, ledger, request, mask)
        if self.demand.ignores_reservations:
            return allocate_numa(topology, ledger, request_with_all(request, self.reserved), mask)
        needed = self.demand.needs_reservation
        found = allocate_reserved(topology, ledger, request, self.reserved, mask, needed=needed)
        if isinstance(found, refusal.NumaRefusal):
            return found
        return (
            found[1]
            if found is not None
            else allocate_numa(topology, ledger, request_beside_reservations(request, self.reserved), mask)
        )

    def allocate_nominated(self, nominated: str | None, mask: BitMask | None) -> NumaAllocation | refusal.NumaRefusal:
        """Allocate for good: from the nominated reservation if it has CPUs or NUMA amounts, else outside of all."""
        topology, ledger, request, matched = (
            self.profile.topology,
            self.node_allocation.ledger,
            self.terms.request,
            self.reserved.matched,
        )
        if self.demand.designated is not None or self.demand.ignores_reservations or not matched:
            return self.try_allocate(mask)
        holding = next((one for one in matched if one.uid == nominated), None)
        if holding is None:
            if nominated is None and self.demand.needs_reservation:
                return refusal.NumaRefusal.unschedulable(NO_NOMINATED)
            return allocate_numa(topology, ledger, request_beside_reservations(request, self.reserved), mask)
        found = allocate_within_reservation(topology, ledger, request, self.reserved, holding, mask)
        return refusal.NumaRefusal.unschedulable(OUT_OF_SCOPE) if isinstance(found, refusal.NumaRefusal) else found

    def check_cpu_count(self) -> refusal.NumaRefusal | None:
        """Return the refusal for too few CPUs without NUMA policy, by counting, which is enough almost everywhere."""
        binding, topology = self.terms.binding, self.profile.topology
        if binding is None and self.demand.designated is None:
            return None
        simple = (
            not self.reserved.matched
            and self.demand.designated is None
            and (self.profile.has_uniform_cores or not self.terms.request.required_policy)
        )
        if not simple or binding is None or not isinstance(topology.cpu, CpuTopology):
            found = self.try_allocate(None)
            return found if isinstance(found, refusal.NumaRefusal) else None
        free = available.free_cpu_pool(topology, self.node_allocation.ledger).available
        if binding.required_policy:
            free = available.cpus_for_policy(topology.cpu, free, binding.required_policy)
        return refusal.NumaRefusal.unschedulable(refusal.NOT_ENOUGH_CPUS) if free.bit_count() < binding.count else None


_BIND_POLICY_TEXT = {CPU_BIND_FULL_PCPUS: " on whole cores", CPU_BIND_SPREAD_BY_PCPUS: " on cores of their own"}


def numa_near_miss(
    terms: PlacementTerms, profile: NodeTopologyProfile, node_allocation: NodeAllocation
) -> tuple[float, str] | None:
    """Return the missing share of the request and a sentence; None when the rejection is not about numbers."""
    there = available.summarize_free(profile.topology, node_allocation.ledger)
    if terms.policy != NUMA_POLICY_NONE:
        return _by_zone(terms, there)
    binding = terms.binding
    if binding is None or not isinstance(profile.topology.cpu, CpuTopology):
        return None
    free = _free_of_policy(there.total, binding.required_policy)
    if free >= binding.count:
        return None
    kind = _BIND_POLICY_TEXT.get(binding.required_policy, "")
    return (binding.count - free) / binding.count, f"{binding.count} CPUs asked for, {free} free{kind}"


def _by_zone(terms: PlacementTerms, there: available.FreeNumaSummary) -> tuple[float, str] | None:
    """Evaluate each NUMA node on its own; the one that lacks least decides."""
    if not there.zones:
        return None
    least, words = None, []
    for number, zone in sorted(there.zones.items()):
        lacking = _lacking(terms, there, zone.amounts, zone.free)
        status = " (used by pods that span NUMA nodes)" if zone.status == SHARED else ""
        status = " (used by pods of its own)" if zone.status == SINGLE else status
        missing = ", ".join(text for _, text in lacking)
        words.append(
            f"NUMA node {number}{status} lacks {missing}" if missing else f"NUMA node {number}{status} has enough"
        )
        share = sum(part for part, _ in lacking)
        least = share if least is None else min(least, share)
    assert least is not None
    return least, "; ".join(words)


def _lacking(
    terms: PlacementTerms, there: available.FreeNumaSummary, left: Amounts, free: available.FreeCpuCounts
) -> list[tuple[float, str]]:
    """Return by resource the missing share of the request, and the missing amount as text."""
    found = []
    for name, asked in sorted(terms.request.amounts.items()):
        short = asked - left.get(name, 0) if name in there.known_resources else 0
        if short > 0:
            found.append((short / asked, f"{materialise({name: short})[name]} {name}"))
    binding = terms.binding
    if binding is not None and not any(text.endswith(f" {CPU}") for _, text in found):
        short = binding.count - _free_of_policy(free, binding.required_policy)
        if short > 0:
            found.append((short / binding.count, f"{short} CPUs{_BIND_POLICY_TEXT.get(binding.required_policy, '')}"))
    return found


def _free_of_policy(free: available.FreeCpuCounts, must: str) -> int:
    if must == CPU_BIND_FULL_PCPUS:
        return free.on_whole_cores
    return free.cores if must == CPU_BIND_SPREAD_BY_PCPUS else free.cpus
