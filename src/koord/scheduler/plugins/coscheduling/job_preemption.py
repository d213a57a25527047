"""Find the victims that make room for a whole gang: all pending members fit at once, or nobody is evicted.

A victim that does not get the gang started would be evicted for nothing.

    remove every possible victim, node by node -> place the members one by one where that costs least
        | one fits nowhere: nobody is evicted
        v
    reprieve victims one by one, the important first, where the members still fit -> the rest is evicted
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import groupby

import msgspec
import numpy as np

from koord.api.annotations.gang_codecs import NetworkTopologySpec
from koord.api.annotations.pod_codecs import is_preemptible
from koord.api.annotations.quota_codecs import is_quota_preemptible
from koord.api.koordinator.protocol import L_QUESTIONED_OBJECT_KEY
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Bools, NodeTable, RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.decision import PostFilterRejection, PreemptionPlan
from koord.scheduler.framework.dry_run import DryRuns, RejectedBy
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.plugins.coscheduling.network_planner import NetworkPlanner
from koord.scheduler.plugins.coscheduling.node_capacity import (
    GroupTrial,
    NodeCapacity,
    PodClassCapacity,
    ProjectedLoad,
    pod_class_capacities,
    pod_class_of,
)
from koord.scheduler.preemption import evaluator
from koord.scheduler.preemption.extender_review import PreemptionReview, VictimProposal
from koord.scheduler.preemption.reclaimable import ReclaimableResources, ReclaimedTable
from koord.scheduler.preemption.victims import DisruptionBudgets, PreemptionCandidate, VictimRules

NO_VICTIMS = "no potential victims"
REFUSED_BY_EXTENDERS = "node(s) where an extender lets nobody be evicted"

TrialsByClass = Mapping[Hashable, DryRuns]


class JobReclaimable(ReclaimableResources):
    def may_evict(self, pod: PodInfo) -> bool:
        return not pod.is_reserve_pod and not _is_protected(pod)


class JobPreemptionRules(VictimRules):
    """Allow victims of lower priority unless their labels protect them."""

    def __init__(self, budgets: Callable[[], DisruptionBudgets] = DisruptionBudgets) -> None:
        super().__init__()
        self._budgets = budgets

    @property
    def budgets(self) -> DisruptionBudgets:
        return self._budgets()

    def may_preempt(self, pod: PodInfo, victim: PodInfo) -> bool:
        return not _is_protected(victim) and super().may_preempt(pod, victim)

    @property
    def reclaimable(self) -> type[ReclaimableResources]:
        return JobReclaimable


class JobPreemption(msgspec.Struct, frozen=True):
    """The result of a search: `nodes` by uid of the member, and the nodes that somebody has to leave."""

    nodes: Mapping[str, str]
    candidates: tuple[PreemptionCandidate, ...]

    def victims(self, rules: JobPreemptionRules) -> tuple[PodInfo, ...]:
        """Return the victims on all nodes, the most important first."""
        return tuple(sorted((v for one in self.candidates for v in one.victims), key=rules.importance))


def review_by_extenders(
    profile: SchedulerProfile, found: JobPreemption, members: Sequence[PodInfo], review: PreemptionReview
) -> JobPreemption | tuple[VictimProposal, ...] | str:
    """Return the result with the victims that extenders left; proposals if they have not seen all of them.

    The message is for a gang whose plans extenders refused too often. Members of one class are shown by the first of
    them, which extenders judge as the others.
    """
    by_class: dict[Hashable, tuple[PodInfo, set[str]]] = {}
    for member in members:
        if review.is_reviewed(member):
            by_class.setdefault(pod_class_of(profile, member), (member, set()))[1].add(found.nodes[member.uid])
    proposals = tuple(
        VictimProposal(member, shown)
        for member, nodes in by_class.values()
        if (shown := tuple(one for one in found.candidates if one.node in nodes))
    )
    asked = {one.node: review.answer_about(one) for proposal in proposals for one in proposal.candidates}
    if None in asked.values():
        refused = len(review.refused_nodes)
        told = f"extenders were shown {review.proposals} plans and let nobody be evicted on {refused} node(s)"
        return told if review.is_exhausted else proposals
    return JobPreemption(found.nodes, tuple(asked.get(one.node) or one for one in found.candidates))


class _NodeWithoutVictims:
    """One node without its possible victims, and with the members placed there. A dry run is made only if needed."""

    __slots__ = ("_group_trial", "_profile", "_trials", "node", "placed", "victims")

    def __init__(
        self, profile: SchedulerProfile, node: NodeInfo, victims: list[PodInfo], trials: TrialsByClass
    ) -> None:
        self._profile = profile
        self._trials = trials
        self._group_trial: GroupTrial | None = None
        self.node = node
        self.victims = victims
        self.placed: list[PodInfo] = []

    def empty_trial(self) -> GroupTrial:
        """Return a trial on the node without victims and without placed members."""
        group_trial = GroupTrial(self._profile, self.node, self._trials)
        for victim in self.victims:
            group_trial.remove(victim)
        return group_trial

    def rejection(self, member: PodInfo) -> RejectedBy | None:
        if self._group_trial is None:
            self._group_trial = self.empty_trial()
            for other in self.placed:
                self._group_trial.add(other)
        return self._group_trial.run_filters(member)

    def place(self, member: PodInfo) -> None:
        self.placed.append(member)
        if self._group_trial is not None:
            self._group_trial.add(member)


class JobPreemptionSearch:
    """All nodes on which evictions could help, as they would be without the possible victims."""

    def __init__(
        self, profile: SchedulerProfile, refused: PostFilterContext, trials: TrialsByClass, rules: JobPreemptionRules
    ) -> None:
        self._profile = profile
        self._refused = refused
        self._trials = trials
        self._rules = rules
        table, priority = refused.table, refused.pod.priority
        below = refused.cycle.state.derived(JobReclaimable).below(priority)
        self.rows = refused.resolvable_rows()
        self._refused_by_extenders = 0
        if refused.review is not None and refused.review.refused_nodes:
            rows = [table.index[name].row for name in refused.review.refused_nodes if name in table.index]
            left = self.rows[~np.isin(self.rows, rows)]
            self._refused_by_extenders, self.rows = len(self.rows) - len(left), left
        self.table = ReclaimedTable(table, below)
        self.helpful: Bools = np.zeros(table.size, np.bool_)
        self.helpful[self.rows] = True
        self._without_victims: Bools = below.count == 0
        self.costs = _costs(table, self.rows, priority)
        self._nodes: dict[int, _NodeWithoutVictims] = {}

    def node_without_victims(self, row: int) -> _NodeWithoutVictims:
        known = self._nodes.get(row)
        if known is None:
            node = self._refused.table.nodes[row]
            assert node is not None
            victims = [victim for victim in node.pods.values() if self._rules.may_preempt(self._refused.pod, victim)]
            known = self._nodes[row] = _NodeWithoutVictims(self._profile, node, victims, self._trials)
        return known

    def empty_trial(self, node: NodeInfo) -> GroupTrial:
        """Return a trial on the node without victims and without placed members."""
        return self.node_without_victims(node.row).empty_trial()

    def rows_by_cost(self) -> list[int]:
        names = self._refused.table.nodes
        return sorted(self.rows.tolist(), key=lambda row: (self.costs[row], node.name if (node := names[row]) else ""))

    def failure_message(self, told: Callable[[RowList], Counter[str]]) -> str:
        """Return why the members do not fit; `told` counts the rejections of rows that have victims."""
        nodes = self._refused.decision.node_count
        nobody = self._without_victims[self.rows]
        reasons = told(self.rows[~nobody])
        reasons[evaluator.NOT_HELPFUL] += nodes - len(self.rows) - self._refused_by_extenders
        reasons[NO_VICTIMS] += int(np.count_nonzero(nobody))
        reasons[REFUSED_BY_EXTENDERS] += self._refused_by_extenders
        listed = sorted(f"{count} {reason}" for reason, count in (+reasons).items())
        return f"0/{nodes} nodes are available: {', '.join(listed)}."

    def result(self) -> JobPreemption:
        used = [node for node in self._nodes.values() if node.placed]
        candidates = (_candidate_after_reprieve(node, self._rules) for node in used)
        return JobPreemption(
            {member.uid: node.node.name for node in used for member in node.placed},
            tuple(candidate for candidate in candidates if candidate.victims),
        )


def find_job_preemption(
    profile: SchedulerProfile,
    refused: PostFilterContext,
    members: Sequence[PodInfo],
    trials: TrialsByClass,
    rules: JobPreemptionRules,
) -> JobPreemption | str:
    """Place the members one by one where that costs least; return the result, or the message why they do not fit."""
    search = JobPreemptionSearch(profile, refused, trials, rules)
    order = search.rows_by_cost()
    load = ProjectedLoad(refused.table.size)
    kinds = pod_class_capacities(profile, trials, emptied=True)
    for key, run in groupby(members, key=lambda member: pod_class_of(profile, member)):
        kind, line = kinds[key], deque(run)
        room = kind.pods_per_row(search.table, load, len(line), search.helpful)
        came = np.zeros(len(room), np.int64)
        for row in order:
            if not line:
                break
            for _ in range(min(int(room[row]), len(line))):
                candidate = search.node_without_victims(row)
                if not kind.exact and candidate.rejection(line[0]) is not None:
                    break
                candidate.place(line.popleft())
                came[row] += 1
        load = load.with_pods(kind.pod, came)
        if line:
            return search.failure_message(partial(_count_rejections, kind, search, load, line[0]))
    return search.result()


def find_network_job_preemption(
    profile: SchedulerProfile,
    refused: PostFilterContext,
    members: Sequence[PodInfo],
    trials: TrialsByClass,
    rules: JobPreemptionRules,
    planner: NetworkPlanner,
    topology_spec: NetworkTopologySpec,
) -> JobPreemption | str:
    """Do the same for members that must be near each other: of domains that serve them alike, take the cheapest."""
    search = JobPreemptionSearch(profile, refused, trials, rules)
    capacity = NodeCapacity(
        profile, trials, members, search.table, search.empty_trial, emptied=True, among=search.helpful
    )
    costs = {row: -cost for row, cost in search.costs.items()}
    found = planner.place_members(
        members,
        topology_spec,
        capacity,
        lambda: search.failure_message(lambda rows: capacity.count_rejections(rows)[0]),
        costs,
    )
    if isinstance(found, str):
        return found
    index = refused.table.index
    for member, node in found:
        search.node_without_victims(index[node].row).place(member)
    return search.result()


def _count_rejections(
    kind: PodClassCapacity, search: JobPreemptionSearch, load: ProjectedLoad, member: PodInfo, rows: RowList
) -> Counter[str]:
    told, unknown = kind.count_rejections(search.table, load, rows)
    told += [
        (said, 1)
        for row in unknown.tolist()
        if (said := search.node_without_victims(row).rejection(member)) is not None
    ]
    reasons: Counter[str] = Counter()
    for (_, verdict), times in told:
        for reason in verdict.reasons:
            reasons[reason] += times
    return reasons


def preempt_for_single_pod(
    plugin: str, refused: PostFilterContext, rules: JobPreemptionRules
) -> PreemptionPlan | PostFilterRejection | Fault:
    """Preempt for a pod of no gang in the usual way, with the rules of this plugin."""
    pod = refused.pod
    if pod.shape.spec.preemption_policy == "Never":
        return PostFilterRejection((f"preemption: {evaluator.NEVER}",))
    node = refused.cycle.state.node(refused.nominated_node())
    if node is not None and any(other.preempted and rules.may_preempt(pod, other) for other in node.pods.values()):
        return PostFilterRejection((f"preemption: {evaluator.TERMINATING}",))
    found = evaluator.find_candidates(refused, rules, rules.budgets, evaluator.CandidateLimit())
    return evaluator.conclude_search(refused, plugin, found, lambda: _failure_message(refused, found))


def _failure_message(refused: PostFilterContext, found: evaluator.CandidateSearchResult) -> str:
    counts = Counter(found.without)
    counts[evaluator.NOT_HELPFUL] += refused.decision.node_count - found.nodes
    listed = sorted(f"{count} {reason}" for reason, count in (+counts).items())
    return f"0/{refused.decision.node_count} nodes are available: {', '.join(listed)}."


def _candidate_after_reprieve(node: _NodeWithoutVictims, rules: JobPreemptionRules) -> PreemptionCandidate:
    """Return who must be evicted: a victim is reprieved if all members placed here still fit beside it.

    Those whose eviction exceeds a disruption budget are reprieved first.
    """
    group_trial = node.empty_trial()
    by_importance = sorted(node.victims, key=lambda v: (-v.priority, _job_key(v), v.name))
    violating, others = rules.budgets.split(by_importance)
    victims: list[PodInfo] = []
    violations = 0
    for possible in (violating, others):
        for victim in possible:
            group_trial.add(victim)
            if not _all_fit(group_trial, node.placed):
                group_trial.remove(victim)
                victims.append(victim)
                violations += possible is violating
    return PreemptionCandidate(node.node.name, tuple(sorted(victims, key=rules.importance)), violations)


def _all_fit(group_trial: GroupTrial, members: Sequence[PodInfo]) -> bool:
    """Return whether the members fit one after another; the trial is left unchanged."""
    there: list[PodInfo] = []
    for member in members:
        if group_trial.run_filters(member, again=True) is not None:
            break
        group_trial.add(member)
        there.append(member)
    for member in reversed(there):
        group_trial.remove(member)
    return len(there) == len(members)


def _job_key(pod: PodInfo) -> str:
    return pod.labels.get(L_QUESTIONED_OBJECT_KEY, "")


def _is_protected(pod: PodInfo) -> bool:
    return not (is_preemptible(pod.labels) and is_quota_preemptible(pod.labels))


def _costs(table: NodeTable, rows: RowList, priority: int) -> dict[int, int]:
    """Return the cost of each row: the rank of the most important possible victim of each job there, summed."""
    jobs = table.column("jobs that may be preempted", object, _jobs_on)
    found = {row: [(job, p) for job, p in jobs[row] or () if p < priority] for row in rows.tolist()}
    ranks = {p: rank for rank, p in enumerate(sorted({p for pairs in found.values() for _, p in pairs}))}
    costs = {}
    for row, pairs in found.items():
        best: dict[str, int] = {}
        for job, p in pairs:
            best[job] = max(best.get(job, 0), ranks[p])
        costs[row] = sum(best.values())
    return costs


def _jobs_on(node: NodeInfo) -> tuple[tuple[str, int], ...]:
    takeable = (pod for pod in node.pods.values() if not pod.is_reserve_pod and not _is_protected(pod))
    return tuple({(_job_key(pod), pod.priority) for pod in takeable})
