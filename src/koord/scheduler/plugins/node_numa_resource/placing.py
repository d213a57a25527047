"""This module places one demand on one node: whether it fits, its NUMA nodes, its allocation, and how near a
miss was.

Nothing is allocated in the cache here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.api.annotations.numa_topology_spec import NONE
from koord.policy.topology.admission import Affinity, Provider, admit, resolve_policy, zones_for
from koord.policy.topology.allocation import allocate, designated
from koord.policy.topology.binding import Binding, check_amplified, check_binding, decide_binding
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.hint import Hints
from koord.policy.topology.hint_source import numa_hints
from koord.policy.topology.ledger import Allocation
from koord.policy.topology.refusal import MISSING_NUMA, NOT_ENOUGH_CPUS, Short
from koord.policy.topology.request import Request
from koord.policy.topology.reserved import Holding, Reserved, allocate_reserved, allocate_within, in_all, on_node
from koord.policy.topology.score import Scorer
from koord.policy.topology.stock import free_cpus, usable
from koord.scheduler.framework.reserved import Reserved as Reservation
from koord.scheduler.plugins.node_numa_resource.book import Book
from koord.scheduler.plugins.node_numa_resource.demand import Demand
from koord.scheduler.plugins.node_numa_resource.site import Site
from koord.scheduler.state.node import NodeInfo
from koord.values.bitmask import BitMask
from koord.values.resources import CPU

RESTRICTED_RESERVATION = "Restricted"
NO_NOMINATED = "no nominated reservation"
OUT_OF_SCOPE = "pod has a nominated reservation but cannot be allocated within its NUMA scope"


class Terms(msgspec.Struct, frozen=True):
    """What applies to a demand on this node: the NUMA policy of both, and whether its CPUs are bound."""

    policy: str
    binding: Binding | None
    request: Request

    @property
    def idle(self) -> bool:
        """Return whether nothing has to be allocated."""
        return self.binding is None and self.policy == NONE


def terms_of(demand: Demand, site: Site) -> Terms | Short:
    policy = resolve_policy(site.topology.numa_policy, demand.policy)
    if isinstance(policy, Short):
        return policy
    binding = decide_binding(demand.wish, site.topology)
    if isinstance(binding, Short):
        return binding
    return Terms(policy, binding, Request(amounts=demand.amounts, binding=binding))


def check(demand: Demand, terms: Terms, site: Site, book: Book, node: NodeInfo) -> Short | None:
    """Return the refusal that is known before CPUs and NUMA nodes are considered."""
    refused = check_amplified(
        demand.wish,
        site.topology,
        book.ledger,
        binds=terms.binding is not None,
        requested_milli=node.requested.get(CPU, 0),
        allocatable_milli=node.allocatable.get(CPU, 0),
    )
    if refused is None and terms.binding is not None:
        refused = check_binding(demand.wish, terms.binding, site.topology)
    return refused


class Trial(msgspec.Struct, frozen=True):
    """A trial allocation of a demand on a live or changed node, with the reservations there that it may use."""

    demand: Demand
    terms: Terms
    site: Site
    book: Book
    reserved: Reserved = Reserved()

    @staticmethod
    def of(demand: Demand, terms: Terms, site: Site, book: Book, reservations: Sequence[Reservation]) -> Trial:
        held = book.ledger.pods
        matched = tuple(
            Holding(uid=one.uid, held=held[one.holder.uid], strict=one.policy == RESTRICTED_RESERVATION)
            for one in reservations
            if one.holder.uid in held
        )
        return Trial(demand, terms, site, book, Reserved(matched))

    # Whether it fits ---------------------------------------------------------------------------------------------

    def admitted(self, scorer: Scorer, others: Sequence[Provider]) -> Affinity | Short:
        """Return the NUMA nodes that the policy admits; any without a policy."""
        policy, topology = self.terms.policy, self.site.topology
        if policy == NONE:
            return Affinity()
        if not topology.zones:
            return Short.finally_(MISSING_NUMA)
        zones = zones_for(topology, self.book.ledger, self.demand.exclusive)
        return admit(policy, zones, [lambda width: self.hints(scorer, width), *others])

    def hints(self, scorer: Scorer, widest: int) -> Hints | Short:
        topology, ledger, request = self.site.topology, self.book.ledger, self.terms.request
        if not self.reserved.matched:
            return numa_hints(topology, ledger, request, self.terms.policy, scorer, widest=widest)
        return numa_hints(
            topology,
            ledger,
            in_all(request, self.reserved),
            self.terms.policy,
            scorer,
            widest=widest,
            feasible=lambda mask: not isinstance(self.given(mask), Short),
        )

    def given(self, mask: BitMask | None) -> Allocation | Short:
        """Allocate in the first reservation that takes the demand, else outside of all of them."""
        topology, ledger, request = self.site.topology, self.book.ledger, self.terms.request
        if self.demand.promised is not None:
            return designated(topology, ledger, request, self.demand.promised)
        if not self.reserved.matched:
            return allocate(topology, ledger, request, mask)
        if self.demand.ignores:
            return allocate(topology, ledger, in_all(request, self.reserved), mask)
        needed = self.demand.needs_reservation
        found = allocate_reserved(topology, ledger, request, self.reserved, mask, needed=needed)
        if isinstance(found, Short):
            return found
        return found[1] if found is not None else allocate(topology, ledger, on_node(request, self.reserved), mask)

    def given_in(self, nominated: str | None, mask: BitMask | None) -> Allocation | Short:
        """Allocate for good: from the nominated reservation if it holds CPUs or NUMA amounts, else outside of all
        reservations.
        """
        topology, ledger, request, matched = (
            self.site.topology,
            self.book.ledger,
            self.terms.request,
            self.reserved.matched,
        )
        if self.demand.promised is not None or self.demand.ignores or not matched:
            return self.given(mask)
        holding = next((one for one in matched if one.uid == nominated), None)
        if holding is None:
            if nominated is None and self.demand.needs_reservation:
                return Short.of(NO_NOMINATED)
            return allocate(topology, ledger, on_node(request, self.reserved), mask)
        found = allocate_within(topology, ledger, request, self.reserved, holding, mask)
        return Short.of(OUT_OF_SCOPE) if isinstance(found, Short) else found

    def lacks_cpus(self) -> Short | None:
        """Return the refusal for too few CPUs of a demand without NUMA policy.

        `try_allocate` tells the same, but counting is enough almost everywhere.
        """
        binding, topology = self.terms.binding, self.site.topology
        if binding is None and self.demand.promised is None:
            return None
        simple = (
            not self.reserved.matched
            and self.demand.promised is None
            and (self.site.even or not self.terms.request.must)
        )
        if not simple or binding is None or not isinstance(topology.cpu, CpuTopology):
            found = self.given(None)
            return found if isinstance(found, Short) else None
        free = free_cpus(topology, self.book.ledger).available
        if binding.must:
            free = usable(topology.cpu, free, binding.must)
        return Short.of(NOT_ENOUGH_CPUS) if free.bit_count() < binding.count else None
