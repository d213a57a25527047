"""Give pods CPUs and NUMA nodes of their own, and keep them off nodes that cannot.

Reads NodeResourceTopology. Who holds what is in `books`; one pod on one node is `placing`; what can be told of many
nodes at once is in `rooms` and `totals`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from koord.api.annotations import resource_spec, resource_status
from koord.api.annotations.numa_topology_spec import NONE
from koord.api.config.scheduler.numa import NodeNUMAResourceArgs
from koord.api.protocol import A_RESOURCE_SPEC, A_RESOURCE_STATUS
from koord.policy.topology.admission import Affinity, Provider
from koord.policy.topology.binding import completed_spec
from koord.policy.topology.cpu_topology import Invalid
from koord.policy.topology.hint import Hints
from koord.policy.topology.ledger import Allocation
from koord.policy.topology.refusal import INVALID_CPU_TOPOLOGY, NOT_ENOUGH_CPUS, NOT_WHOLE_CORES, Short
from koord.policy.topology.reserved import in_all
from koord.policy.topology.score import Scorer, allocate_strategy, score_allocation, score_node
from koord.policy.topology.status import status_of
from koord.policy.topology.stock import take_stock
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, Scores, overrides
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Only, Reject, Skip, reject, unresolvable
from koord.scheduler.framework.work import Mark, Work
from koord.scheduler.plugins.node_numa_resource.book import Book, Entry
from koord.scheduler.plugins.node_numa_resource.books import Books, Promise, Sites
from koord.scheduler.plugins.node_numa_resource.case import Case, rejected
from koord.scheduler.plugins.node_numa_resource.demand import NAME, Demands, signature
from koord.scheduler.plugins.node_numa_resource.placing import Trial, check, terms_of
from koord.scheduler.plugins.node_numa_resource.rooms import INVALID, NOT_ENOUGH, NOT_WHOLE, Rooms
from koord.scheduler.plugins.node_numa_resource.site import Site
from koord.scheduler.plugins.node_numa_resource.strict import StrictRows
from koord.scheduler.plugins.node_numa_resource.totals import score_totals
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import Bools, NodeTable, Rows
from koord.values.bitmask import BitMask

_WORDS = {
    INVALID: unresolvable(INVALID_CPU_TOPOLOGY),
    NOT_WHOLE: unresolvable(NOT_WHOLE_CORES),
    NOT_ENOUGH: reject(NOT_ENOUGH_CPUS),
}
_FIRST_WORD = 16  # codes from here on are words that were met


class NodeNUMAResource(Plugin):
    name = NAME
    scope = ROW  # the books tell the table of rows whose topology or promises changed
    wakes_on = (
        Event("NodeResourceTopology", ADD),
        Event("NodeResourceTopology", UPDATE),
        Event("NodeResourceTopology", DELETE),
        Event("Pod", DELETE),
        Event("Pod", UPDATE, "scale-down"),
        Event("Pod", UPDATE, "labels"),
        Event("Node", ADD),
        Event("Node", UPDATE, "allocatable"),
        Event("Node", UPDATE, "labels"),
        Event("Node", UPDATE, "annotations"),
        # Their hints are merged with ours, and their room may be the pod's.
        Event("Device", ADD),
        Event("Device", UPDATE),
        Event("Device", DELETE),
        Event("Reservation", ADD),
        Event("Reservation", UPDATE),
        Event("Reservation", DELETE),
    )

    def __init__(self, args: NodeNUMAResourceArgs, handle: Handle) -> None:
        """Takes defaulted arguments."""
        assert args.scoring_strategy is not None
        assert args.numa_scoring_strategy is not None
        state = handle.state
        self._demands = Demands(args.default_cpu_bind_policy or "")
        self._scorer = Scorer.of(args.scoring_strategy)
        self._zone_scorer = Scorer.of_zones(args.numa_scoring_strategy, args.scoring_strategy)
        self._books = Books.of(handle)
        self._sites = Sites(self._books, allocate_strategy(args.numa_scoring_strategy), state)
        self._rooms = Rooms(state.table, self._sites, self._books)
        self._strict = StrictRows(state.table, self._sites, self._books)
        self._others: tuple[Plugin, ...] = ()

    def meet(self, plugins: Sequence[Plugin]) -> None:
        self._others = tuple(p for p in plugins if p is not self and overrides(p, "numa_hints"))

    def signature(self, pod: PodInfo) -> Hashable:
        return signature(pod)

    def ground(self, state: ClusterState) -> Hashable:
        """Whether there is a node at all that pods without a wish must be judged on."""
        return self._strict.any()

    # Filter ------------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        if not pod.shape.requests:
            return SKIP
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return rejected(case)
        return SKIP if case.demand.plain and not self._strict.any() else None

    def _case(self, cycle: Cycle, pod: PodInfo) -> Case | Short:
        known = cycle.kept.get(NAME)
        if isinstance(known, Case):
            return known
        demand = self._demands.of(pod)
        if isinstance(demand, Short):
            return demand
        case = Case(demand)
        cycle.keep(NAME, case)
        return case

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return rejected(case)
        site = self._sites.of(node)
        demand = case.demand
        if demand.plain and not site.strict:
            return None
        terms = terms_of(demand, site)
        if isinstance(terms, Short):
            return rejected(terms)
        book = self._book(case, site, node)
        if demand.promised is None:
            refused = check(demand, terms, site, book, node)
            if refused is not None:
                return rejected(refused)
            if terms.idle:
                return None
        reserved = cycle.reserved.get(node.name, ()) if cycle.reserved else ()
        trial = Trial.of(demand, terms, site, book, reserved)
        if terms.policy == NONE or demand.promised is not None:
            lacking = trial.lacks_cpus()
            return None if lacking is None else rejected(lacking)
        found = self._admitted(cycle, pod, node, trial)
        return rejected(found) if isinstance(found, Short) else None

    def _book(self, case: Case, site: Site, node: NodeInfo) -> Book:
        if case.books and (supposed := case.books.get(node.name)) is not None:
            return supposed.on(site.topology.cpu)
        return self._books.book(site, node.name)

    def _admitted(self, cycle: Cycle, pod: PodInfo, node: NodeInfo, trial: Trial) -> Affinity | Short:
        """The NUMA nodes that all who give something on them agree on, each able to give its part there."""
        told: list[tuple[Plugin, Hints | Reject]] = []
        for plugin in self._others:
            hints = plugin.numa_hints(cycle, pod, node)
            if hints is not None:
                told.append((plugin, hints))
        found = trial.admitted(self._zone_scorer, [_provider(hints) for _, hints in told])
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

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        case = self._case(cycle, pod)
        size = len(table.alive[rows])
        if isinstance(case, Short):
            return np.full(size, INVALID, np.int32)
        demand = case.demand
        codes = np.zeros(size, np.int32)
        closely = self._strict.column()[rows]
        if demand.wish.binds and not demand.policy and demand.promised is None:
            rooms = self._rooms
            rooms.refresh()
            codes = rooms.codes(rows, demand.wish.count, demand.wish.required)
            if demand.wish.required:
                closely = closely | rooms.uneven[rows]
            closely = closely | self._reserved_rows(cycle, table)[rows] if cycle.reserved else closely
        elif not demand.plain:
            closely = table.alive[rows]
        for place in np.flatnonzero(closely).tolist():
            row = place if isinstance(rows, slice) else int(rows[place])
            node = table.nodes[row]
            if node is not None and node.node is not None:
                code = case.code(self.filter(cycle, pod, node))
                codes[place] = code and _FIRST_WORD + code
        return codes

    def _reserved_rows(self, cycle: Cycle, table: NodeTable) -> Bools:
        found = np.zeros(table.size, np.bool_)
        found[[node.row for name in cycle.reserved if (node := table.index.get(name)) is not None]] = True
        return found

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return rejected(case)
        if code < _FIRST_WORD:
            return _WORDS[code]
        found = case.words[code - _FIRST_WORD]
        assert found is not None
        return found

    def add_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """One that was there comes back with what it had; one that is only expected takes what it would be given."""
        case = self._case(cycle, pod)
        if isinstance(case, Short) or node.node is None:
            return
        site = self._sites.of(node)
        book = self._book(case, site, node)
        entry = self._books.book(site, node.name).entries.get(other.uid)
        if entry is None:
            given = self._expected(other, site, book)
            entry = None if given is None else Entry(given)
        if entry is not None:
            case.books[node.name] = book.put(other.uid, entry)

    def _expected(self, other: PodInfo, site: Site, book: Book) -> Allocation | None:
        demand = self._demands.of(other)
        terms = demand if isinstance(demand, Short) else terms_of(demand, site)
        if isinstance(demand, Short) or isinstance(terms, Short) or terms.idle:
            return None
        trial = Trial.of(demand, terms, site, book, ())
        found = trial.admitted(self._zone_scorer, ())
        given = found if isinstance(found, Short) else trial.given(found.mask)
        return None if isinstance(given, Short) else given

    def remove_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        case = self._case(cycle, pod)
        if isinstance(case, Short) or node.node is None:
            return
        if other.reserve and any(one.holder.uid == other.uid for one in cycle.reserved.get(node.name, ())):
            return  # what it holds for this pod is told apart from what is free for all
        case.books[node.name] = self._book(case, self._sites.of(node), node).take(other.uid)

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None if pod.shape.requests else SKIP

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return 0
        demand, scorer = case.demand, self._scorer
        if demand.plain and not self._strict.any():
            return scorer.score(node.requested, node.allocatable, demand.amounts)
        site = self._sites.of(node)
        if demand.plain and not site.strict:
            return scorer.score(node.requested, node.allocatable, demand.amounts)
        terms = terms_of(demand, site)
        if isinstance(terms, Short) or (terms.binding is not None and isinstance(site.topology.cpu, Invalid)):
            return 0
        book = self._book(case, site, node)
        charged = terms.request.charged(site.topology)
        if terms.policy == NONE:
            return score_node(scorer, site.topology, book.ledger, charged, node.requested, node.allocatable)
        reserved = cycle.reserved.get(node.name, ()) if cycle.reserved else ()
        trial = Trial.of(demand, terms, site, book, reserved)
        affinity = self._admitted(cycle, pod, node, trial)
        given = affinity if isinstance(affinity, Short) else trial.given(affinity.mask)
        if isinstance(given, Short):
            return 0
        request = in_all(terms.request, trial.reserved)
        return score_allocation(
            scorer,
            site.topology,
            given,
            charged,
            available=take_stock(site.topology, book.ledger, request).zones,
            held=book.ledger.held.remove(request.preferred & ~given.cpus.bits).held,
            requested=node.requested,
            allocatable=node.allocatable,
        )

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return np.zeros(len(table.alive[rows]), np.int64)
        demand = case.demand
        scores = score_totals(self._scorer, demand.amounts, table, rows)
        closely = self._strict.column()[rows]
        if demand.wish.binds:
            self._rooms.refresh()
            scores[self._rooms.per_core[rows] == 0] = 0
        if demand.policy:
            closely = table.alive[rows]
        if closely.any():
            for place in np.flatnonzero(closely).tolist():
                row = place if isinstance(rows, slice) else int(rows[place])
                node = table.nodes[row]
                if node is not None and node.node is not None:
                    scores[place] = self.score(cycle, pod, node)
        return scores

    # After the choice --------------------------------------------------------------------------------------------

    def reserve(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        if not pod.shape.requests:
            return None
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return rejected(case)
        demand = case.demand
        if demand.plain and not self._strict.any():
            return None
        if node.node is None:
            return reject(f"node {node.name} is gone")
        site = self._sites.of(node)
        terms = terms_of(demand, site)
        if isinstance(terms, Short):
            return rejected(terms)
        if terms.idle and demand.promised is None:
            return None
        if terms.binding is not None and isinstance(site.topology.cpu, Invalid):
            return unresolvable(INVALID_CPU_TOPOLOGY)
        book = self._books.book(site, node.name)
        reserved = cycle.reserved.get(node.name, ()) if cycle.reserved else ()
        trial = Trial.of(demand, terms, site, book, reserved)
        nominated = cycle.nominated.get(pod.uid)
        mask: BitMask | None = None
        if terms.policy != NONE and demand.promised is None:
            affinity = self._admitted(cycle, pod, node, trial)
            if isinstance(affinity, Short):
                return rejected(affinity)
            mask = affinity.mask
        given = trial.given_in(None if nominated is None else nominated.uid, mask)
        if isinstance(given, Short):
            return rejected(given)
        cycle.zones[pod.uid] = mask
        entry = Entry(given, "" if nominated is None else nominated.holder.uid)
        self._books.promise(pod.uid, Promise(node.name, entry, terms.binding))
        return None

    def unreserve(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        cycle.zones.pop(pod.uid, None)
        self._books.withdraw(pod.uid)

    def pre_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | Reject | Fault | None:
        cycle.zones.pop(pod.uid, None)
        promise = self._books.promises.get(pod.uid)
        if promise is None or promise.node_name != node_name or promise.entry.given.is_empty():
            return None
        node = cycle.state.node(node_name)
        usable = 0 if node is None else self._sites.of(node).topology.usable
        if promise.entry.given.cpus.bits & ~usable:  # the topology changed under way
            return reject(f"CPUs {promise.entry.given.cpus} are no longer all there on node {node_name}")
        marks = {A_RESOURCE_STATUS: resource_status.dump(status_of(promise.entry.given))}
        if promise.binding is not None:
            spec = resource_spec.parse(pod.annotations)
            given = spec if isinstance(spec, resource_spec.ResourceSpec) else None
            full = completed_spec(given, promise.binding)
            if full != given:
                marks[A_RESOURCE_SPEC] = resource_spec.dump(full)
        return Mark(annotations=marks)

    # Waking ------------------------------------------------------------------------------------------------------

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        return True


def _provider(hints: Hints | Reject) -> Provider:
    """Another plugin's hints, narrowed to sets of so many NUMA nodes when those are asked for first."""

    def provide(width: int) -> Hints | Short:
        if isinstance(hints, Reject):
            return Short(hints.reasons)
        return {
            name: None if offered is None else [h for h in offered if h.mask is None or len(h.mask) <= width]
            for name, offered in hints.items()
        }

    return provide
