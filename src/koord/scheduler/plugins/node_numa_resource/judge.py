"""NumaNodeEvaluator filters and scores one class of pods on one node, and merges the NUMA hints of other
plugins.
"""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.annotations.numa_topology_spec import NONE
from koord.api.config.scheduler.numa import NodeNUMAResourceArgs
from koord.policy.topology.admission import Affinity, Provider
from koord.policy.topology.cpu_topology import Invalid
from koord.policy.topology.hint import Hints
from koord.policy.topology.ledger import Allocation
from koord.policy.topology.refusal import Short
from koord.policy.topology.reserved import in_all
from koord.policy.topology.score import Scorer, allocate_strategy, score_allocation, score_node
from koord.policy.topology.stock import take_stock
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import Plugin, overrides
from koord.scheduler.framework.reserved import Reserved
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.node_numa_resource.book import Book
from koord.scheduler.plugins.node_numa_resource.books import Books, Sites
from koord.scheduler.plugins.node_numa_resource.case import Case, rejected
from koord.scheduler.plugins.node_numa_resource.demand import Demand
from koord.scheduler.plugins.node_numa_resource.placing import Trial, check, terms_of
from koord.scheduler.plugins.node_numa_resource.site import Site
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


class Judge:
    def __init__(self, args: NodeNUMAResourceArgs, books: Books, state: ClusterState) -> None:
        assert args.scoring_strategy is not None
        assert args.numa_scoring_strategy is not None
        self.scorer = Scorer.of(args.scoring_strategy)
        self.zone_scorer = Scorer.of_zones(args.numa_scoring_strategy, args.scoring_strategy)
        self.books = books
        self.sites = Sites(books, allocate_strategy(args.numa_scoring_strategy), state)
        self._others: tuple[Plugin, ...] = ()

    def meet(self, plugins: Sequence[Plugin]) -> None:
        self._others = tuple(p for p in plugins if overrides(p, "numa_hints"))

    def others(self, cycle: Cycle) -> list[Plugin]:
        """Return the other plugins that give NUMA hints for such a pod; one that skips the pod has none."""
        return [plugin for plugin in self._others if plugin.name not in cycle.skip_filter]

    def book(self, case: Case, site: Site, node: NodeInfo) -> Book:
        """Return the node's allocation, as changed by a dry run if there is one."""
        if case.books and (supposed := case.books.get(node.name)) is not None:
            return supposed.on(site.topology.cpu)
        return self.books.book(site, node.name)

    # Filter ------------------------------------------------------------------------------------------------------

    def verdict(self, cycle: Cycle, case: Case, pod: PodInfo, node: NodeInfo) -> Reject | None:
        demand, site = case.demand, self.sites.of(node)
        if demand.plain and not site.strict:
            return None
        terms = terms_of(demand, site)
        if isinstance(terms, Short):
            return rejected(terms)
        book = self.book(case, site, node)
        if demand.promised is None:
            refused = check(demand, terms, site, book, node)
            if refused is not None:
                return rejected(refused)
            if terms.idle:
                return None
        trial = Trial.of(demand, terms, site, book, reserved_on(cycle, node))
        if terms.policy == NONE or demand.promised is not None:
            lacking = trial.lacks_cpus()
            return None if lacking is None else rejected(lacking)
        found = self.admitted(cycle, pod, node, trial)
        return rejected(found) if isinstance(found, Short) else None

    def admitted(self, cycle: Cycle, pod: PodInfo, node: NodeInfo, trial: Trial) -> Affinity | Short:
        """Return the NUMA nodes that all hint providers agree on, and on which each can allocate its part."""
        told: list[tuple[Plugin, Hints | Reject]] = []
        for plugin in self.others(cycle):
            hints = plugin.numa_hints(cycle, pod, node)
            if hints is not None:
                told.append((plugin, hints))
        found = trial.admitted(self.zone_scorer, [_provider(hints) for _, hints in told])
        if isinstance(found, Short):
            return found
        given = trial.given(found.mask)
        if isinstance(given, Short):
            return given
        for plugin, _ in told:
            refused = plugin.numa_fits(cycle, pod, node, found.mask)
            if refused is not None:
                return Short(refused.reasons, final=not refused.resolvable)
        return found

    def expected(self, demand: Demand, site: Site, book: Book) -> Allocation | None:
        """Return what a nominated pod would be given on the node, as far as this plugin alone can tell."""
        terms = terms_of(demand, site)
        if isinstance(terms, Short) or terms.idle:
            return None
        trial = Trial.of(demand, terms, site, book, ())
        found = trial.admitted(self.zone_scorer, ())
        given = found if isinstance(found, Short) else trial.given(found.mask)
        return None if isinstance(given, Short) else given

    # Score -------------------------------------------------------------------------------------------------------

    def score(self, cycle: Cycle, case: Case, pod: PodInfo, node: NodeInfo) -> int:
        demand, site = case.demand, self.sites.of(node)
        if demand.plain and not site.strict:
            return self.scorer.score(node.requested, node.allocatable, demand.amounts)
        terms = terms_of(demand, site)
        if isinstance(terms, Short) or (terms.binding is not None and isinstance(site.topology.cpu, Invalid)):
            return 0
        book = self.book(case, site, node)
        charged = terms.request.charged(site.topology)
        if terms.policy == NONE:
            return score_node(self.scorer, site.topology, book.ledger, charged, node.requested, node.allocatable)
        trial = Trial.of(demand, terms, site, book, reserved_on(cycle, node))
        affinity = self.admitted(cycle, pod, node, trial)
        given = affinity if isinstance(affinity, Short) else trial.given(affinity.mask)
        if isinstance(given, Short):
            return 0
        request = in_all(terms.request, trial.reserved)
        return score_allocation(
            self.scorer,
            site.topology,
            given,
            charged,
            available=take_stock(site.topology, book.ledger, request).zones,
            held=book.ledger.held.remove(request.preferred & ~given.cpus.bits).held,
            requested=node.requested,
            allocatable=node.allocatable,
        )


def reserved_on(cycle: Cycle, node: NodeInfo) -> Sequence[Reserved]:
    return cycle.reserved.get(node.name, ()) if cycle.reserved else ()


def _provider(hints: Hints | Reject) -> Provider:
    """Return a provider of another plugin's hints, limited to masks of at most `width` NUMA nodes."""

    def provide(width: int) -> Hints | Short:
        if isinstance(hints, Reject):
            return Short(hints.reasons)
        return {
            name: None if offered is None else [h for h in offered if h.mask is None or len(h.mask) <= width]
            for name, offered in hints.items()
        }

    return provide
