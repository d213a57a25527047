"""NodeNUMAResource gives pods CPUs and NUMA nodes of their own, and rejects nodes that cannot."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from msgspec.structs import replace

from koord.api.annotations import resource_spec, resource_status
from koord.api.annotations.numa_topology_spec import NONE
from koord.api.config.scheduler.numa import NodeNUMAResourceArgs
from koord.api.protocol import A_RESOURCE_SPEC, A_RESOURCE_STATUS
from koord.policy.topology.binding import completed_spec
from koord.policy.topology.cpu_topology import Invalid
from koord.policy.topology.refusal import INVALID_CPU_TOPOLOGY, NOT_ENOUGH_CPUS, Short
from koord.policy.topology.status import status_of
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Only, Reject, Skip, reject, unresolvable
from koord.scheduler.framework.work import Mark, Work
from koord.scheduler.plugins.node_numa_resource.book import Entry
from koord.scheduler.plugins.node_numa_resource.books import Books, Promise
from koord.scheduler.plugins.node_numa_resource.case import Case, rejected
from koord.scheduler.plugins.node_numa_resource.demand import NAME, Demands, signature
from koord.scheduler.plugins.node_numa_resource.judge import Judge, reserved_on
from koord.scheduler.plugins.node_numa_resource.nearness import near_miss
from koord.scheduler.plugins.node_numa_resource.placing import Trial, terms_of
from koord.scheduler.plugins.node_numa_resource.survey import Survey
from koord.scheduler.plugins.node_numa_resource.waking import Waking
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows
from koord.values.bitmask import BitMask

_UNREADABLE = 1  # the one code of a pod whose annotations cannot be read


class NodeNUMAResource(Plugin):
    name = NAME
    reserves_as_it_filters = True
    scope = ROW  # the cache marks the rows whose topology or allocations changed
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
        # Hints of devices are merged with ours, and what a reservation holds may be the pod's.
        Event("Device", ADD),
        Event("Device", UPDATE),
        Event("Device", DELETE),
        Event("Reservation", ADD),
        Event("Reservation", UPDATE),
        Event("Reservation", DELETE),
    )

    def __init__(self, args: NodeNUMAResourceArgs, handle: Handle) -> None:
        """Take arguments that are already defaulted."""
        self.demands = Demands(args.default_cpu_bind_policy or "")
        self.books = Books.of(handle)
        self.judge = Judge(args, self.books, handle.state)
        self._survey = Survey(self.judge, handle.state.table)
        self._strict = self._survey.strict
        self._waking = Waking(self.demands, self.judge, handle.state)

    def meet(self, plugins: Sequence[Plugin]) -> None:
        self.judge.meet([plugin for plugin in plugins if plugin is not self])

    signature = staticmethod(signature)

    def ground(self, state: ClusterState) -> Hashable:
        """Return whether there is a node at all on which plain pods must be evaluated."""
        return self._strict.any()

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        return self._waking.sees_hope(pod, happened)

    # Filter ------------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        if not pod.shape.requests:
            return SKIP
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return rejected(case)
        # Once there is such a node `ground` moves, and this is asked again.
        case.quiet = case.demand.plain and not self._strict.any()
        return SKIP if case.quiet else None

    def _case(self, cycle: Cycle, pod: PodInfo) -> Case | Short:
        known = cycle.kept.get(NAME)
        if known is None:
            demand = self.demands.of(pod)
            known = demand if isinstance(demand, Short) else Case(demand, self.judge.scorer)
            cycle.keep(NAME, known)
        assert isinstance(known, Case | Short)
        return known

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return rejected(case)
        against = self.judge.verdict(cycle, case, pod, node)
        return self._covered(cycle, case, node) if against is None and case.theirs else against

    def _covered(self, cycle: Cycle, case: Case, node: NodeInfo) -> Reject | None:
        """Reject a reservation whose allocation cannot contain what the running pods that it takes over hold."""
        site = self.judge.sites.of(node)
        terms = terms_of(case.demand, site)
        theirs = case.theirs.get(node.name, 0)
        if not theirs or isinstance(terms, Short) or terms.binding is None or terms.policy != NONE:
            return None  # with a NUMA policy Reserve decides
        terms = replace(terms, request=replace(terms.request, promised=theirs))
        book = self.judge.book(case, site, node)
        given = Trial.of(case.demand, terms, site, book, reserved_on(cycle, node)).given(None)
        return reject(NOT_ENOUGH_CPUS) if isinstance(given, Short) or theirs & ~given.cpus.bits else None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return np.full(len(table.alive[rows]), _UNREADABLE, np.int32)
        return self._survey.codes(cycle, case, pod, rows)

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        case = self._case(cycle, pod)
        return rejected(case) if isinstance(case, Short) else self._survey.word(cycle, case, pod, code)

    def add_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """Add a pod in a dry run with what it holds, or with what it would be given if it is only nominated."""
        case = self._case(cycle, pod)
        if isinstance(case, Short) or node.node is None:
            return
        site = self.judge.sites.of(node)
        book = self.judge.book(case, site, node)
        entry = self.books.book(site, node.name).entries.get(other.uid)
        if entry is None:
            demand = self.demands.of(other)
            given = None if isinstance(demand, Short) else self.judge.expected(demand, site, book)
            entry = None if given is None else Entry(given)
        if entry is not None:
            case.books[node.name] = book.put(other.uid, entry)

    def remove_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        case = self._case(cycle, pod)
        if isinstance(case, Short) or node.node is None:
            return
        if other.reserve and any(one.holder.uid == other.uid for one in reserved_on(cycle, node)):
            return  # what it holds for this pod is kept apart from what is free for all
        book = self.judge.book(case, self.judge.sites.of(node), node)
        if pod.reserve and cycle.takes_over(other, node.name) and other.uid in book.entries:
            case.theirs[node.name] = case.theirs.get(node.name, 0) | book.entries[other.uid].given.cpus.bits
        case.books[node.name] = book.take(other.uid)

    def near_miss(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> tuple[float, str] | None:
        case = self._case(cycle, pod)
        if isinstance(case, Short) or case.quiet or node.node is None:
            return None
        site = self.judge.sites.of(node)
        terms = terms_of(case.demand, site)
        if isinstance(terms, Short) or terms.idle:
            return None
        return near_miss(terms, site, self.judge.book(case, site, node))

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None if pod.shape.requests else SKIP

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        case = cycle.kept.get(NAME) or self._case(cycle, pod)
        if case.__class__ is Case:
            return case.mean(node) if case.quiet else self.judge.score(cycle, case, pod, node)
        return 0

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return np.zeros(len(table.alive[rows]), np.int64)
        return self._survey.scores(cycle, case, pod, rows)

    # After the choice --------------------------------------------------------------------------------------------

    def reserve(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        case = self._case(cycle, pod)
        if isinstance(case, Short):
            return rejected(case)
        demand = case.demand
        if case.quiet or not demand.amounts:
            return None
        if node.node is None:
            return reject(f"node {node.name} is gone")
        site = self.judge.sites.of(node)
        terms = terms_of(demand, site)
        if isinstance(terms, Short):
            return rejected(terms)
        if terms.idle and demand.promised is None:
            return None
        if terms.binding is not None and isinstance(site.topology.cpu, Invalid):
            return unresolvable(INVALID_CPU_TOPOLOGY)
        book = self.books.book(site, node.name)
        guests, theirs = cycle.taken_over.get(pod.uid, ()), 0
        for guest in guests:
            if (entry := book.entries.get(guest)) is not None:
                theirs |= entry.given.cpus.bits
                book = book.take(guest)
        if theirs:
            terms = replace(terms, request=replace(terms.request, promised=theirs))
        trial = Trial.of(demand, terms, site, book, reserved_on(cycle, node))
        mask: BitMask | None = None
        if terms.policy != NONE and demand.promised is None:
            affinity = self.judge.admitted(cycle, pod, node, trial)
            if isinstance(affinity, Short):
                return rejected(affinity)
            mask = affinity.mask
        nominated = cycle.nominated.get(pod.uid)
        given = trial.given_in(None if nominated is None else nominated.uid, mask)
        if isinstance(given, Short):
            return rejected(given)
        if terms.binding is not None and theirs & ~given.cpus.bits:
            return reject(NOT_ENOUGH_CPUS)  # what its owners have must be a part of it
        cycle.zones[pod.uid] = mask
        entry = Entry(given, "" if nominated is None else nominated.holder.uid)
        self.books.promise(pod.uid, Promise(node.name, entry, terms.binding, guests))
        return None

    def unreserve(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        cycle.zones.pop(pod.uid, None)
        self.books.withdraw(pod.uid)

    def pre_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | Reject | Fault | None:
        cycle.zones.pop(pod.uid, None)
        promise = self.books.promises.get(pod.uid)
        if promise is None or promise.node_name != node_name or promise.entry.given.is_empty():
            return None
        given = promise.entry.given
        node = cycle.state.node(node_name)
        usable = 0 if node is None else self.judge.sites.of(node).topology.usable
        if given.cpus.bits & ~usable:  # the topology changed under way
            return reject(f"CPUs {given.cpus} are no longer all there on node {node_name}")
        marks = {A_RESOURCE_STATUS: resource_status.dump(status_of(given))}
        if promise.binding is not None:
            stated = resource_spec.parse(pod.annotations)
            spec = stated if isinstance(stated, resource_spec.ResourceSpec) else None
            full = completed_spec(spec, promise.binding)
            if full != spec:
                marks[A_RESOURCE_SPEC] = resource_spec.dump(full)
        return Mark(annotations=marks)
