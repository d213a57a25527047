"""Evaluate preemption for an unschedulable pod: find candidate nodes, pick one, and make the plan.

    nodes whose rejection evictions could resolve
        | columns: would it fit if all pods below its priority left?  no -> reasons are counted without a dry run
        v
    dry runs on copies, from a random node on, until there are enough candidates

The upper bound reads sums only, so that thousands of nodes cost less than one dry run each. Nodes with nominated pods
or resources reserved for the pod always get a dry run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.decision import (
    NearestNode,
    PostFilterRejection,
    PreemptionPlan,
    Unschedulable,
    VictimSearch,
)
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.preemption.reclaimable import ReclaimUpperBound
from koord.scheduler.preemption.victims import (
    DisruptionBudgets,
    PreemptionCandidate,
    VictimRules,
    pick_candidate,
    rejection_without_victims,
    select_victims_on_node,
)


class PreemptionsInProgress:
    """Track the pods whose victims are being evicted. They wait: another attempt would only find more victims.

    The evictor calls `begin`, then `begin_last_victim` before it evicts the last victim, and `end` in any case. The
    last victim's deletion wakes the pod, so once that has begun the pod is free, whether or not the eviction has been
    reported as done. Get it with `state.derived(PreemptionsInProgress)`.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._last_victim: dict[str, str | None] = {}  # pod -> its last victim, by UID

    def begin(self, uid: str) -> None:
        self._last_victim[uid] = None

    def begin_last_victim(self, uid: str, victim: str) -> None:
        if uid in self._last_victim:
            self._last_victim[uid] = victim

    def end(self, uid: str) -> None:
        self._last_victim.pop(uid, None)

    def is_waiting(self, uid: str) -> bool:
        if uid not in self._last_victim:
            return False
        last = self._last_victim[uid]
        if last is None:
            return True
        victim = self._state.placed_pod(last)
        return victim is not None and not victim.deleting

    def __len__(self) -> int:
        return len(self._last_victim)


NO_VICTIMS = "No preemption victims found for incoming pod"


class CandidateSearchResult(msgspec.Struct, frozen=True):
    """Hold the candidates in the order in which they were found, those without budget violations first.

    `without` counts the reasons of the other nodes: of all of them when there are no candidates, else of those that
    were dry-run. `inconsistencies` should not happen: they name nodes that take the pod as they are.
    """

    nodes: int
    candidates: tuple[PreemptionCandidate, ...]
    without: dict[str, int]
    inconsistencies: tuple[str, ...] = ()
    nearest: NearestNode | None = None


class CandidateLimit(msgspec.Struct, frozen=True):
    """Define how many candidates are enough to choose from: a share of the nodes, but at least a number."""

    percent: int = 10
    at_least: int = 100

    def count_for(self, nodes: int) -> int:
        return min(max(nodes * self.percent // 100, self.at_least), nodes)


def find_candidates(
    context: PostFilterContext,
    rules: VictimRules,
    budgets: DisruptionBudgets,
    limit: CandidateLimit,
    among: RowList | None = None,
) -> CandidateSearchResult:
    """Find candidate nodes for the pod among the resolvable rows, or among the rows that the caller names."""
    rows = context.resolvable_rows() if among is None else among
    if not len(rows):
        return CandidateSearchResult(0, (), {})
    if context.not_admitted_by and context.not_admitted_by != rules.name:
        return CandidateSearchResult(len(rows), (), {NO_VICTIMS: len(rows)})  # nobody is sent away in vain
    rows = np.roll(rows, -int(context.rng.integers(len(rows))))
    return _CandidateSearch(context, rules, budgets, rows).run(limit.count_for(len(rows)))


class _CandidateSearch:
    def __init__(
        self, context: PostFilterContext, rules: VictimRules, budgets: DisruptionBudgets, rows: RowList
    ) -> None:
        self._context = context
        self._rules = rules
        self._budgets = budgets
        self._rows = rows
        self._always_tried = _rows_to_dry_run(context)
        self._without: Counter[str] = Counter()
        self._inconsistencies: list[str] = []

    def run(self, wanted: int) -> CandidateSearchResult:
        reclaimable = self._rules.reclaimable
        bound = ReclaimUpperBound(self._context, self._rows, reclaimable) if reclaimable is not None else None
        tried = self._rows if bound is None else self._worth_trying(bound)
        fine: list[PreemptionCandidate] = []
        violating: list[PreemptionCandidate] = []
        for node in self._nodes(tried):
            found = self._try(node)
            if found is not None:
                (violating if found.violations else fine).append(found)
                if fine and len(fine) + len(violating) >= wanted:
                    break
        candidates = (*fine[:wanted], *violating[:wanted])
        nearest = None
        if not candidates and bound is not None:
            self._count_reasons(bound)
            nearest = bound.nearest()
        return CandidateSearchResult(
            len(self._rows), candidates, dict(self._without), tuple(self._inconsistencies), nearest
        )

    def _worth_trying(self, bound: ReclaimUpperBound) -> RowList:
        passing = bound.passing
        if self._always_tried:
            passing = passing | np.isin(self._rows, list(self._always_tried))
        return self._rows[passing]

    def _try(self, node: NodeInfo) -> PreemptionCandidate | None:
        found = select_victims_on_node(
            self._context.dry_runs, node, self._nominated_ahead(node), self._rules, self._budgets
        )
        if isinstance(found, PreemptionCandidate):
            if found.victims:
                return found
            self._inconsistencies.append(f'expected at least one victim pod on node "{node.name}"')
        else:
            self._without.update((NO_VICTIMS,) if found is None else found[1].reasons)
        return None

    def _count_reasons(self, bound: ReclaimUpperBound) -> None:
        """Count the reasons of the nodes that the upper bound ruled out without a dry run."""
        left = ~bound.passing
        if self._always_tried:
            left &= ~np.isin(self._rows, list(self._always_tried))
        self._without.update({NO_VICTIMS: int(np.count_nonzero(left & bound.without_victims))})
        known, unknown = bound.reasons(left & ~bound.without_victims)
        self._without.update(known)
        for node in self._nodes(unknown):
            rejection = rejection_without_victims(
                self._context.dry_runs, node, self._nominated_ahead(node), self._rules
            )
            if rejection is not None:
                self._without.update(rejection[1].reasons)
        self._without = +self._without

    def _nominated_ahead(self, node: NodeInfo) -> Sequence[PodInfo]:
        if not self._always_tried:
            return ()
        return self._context.nominator.ahead_of(self._context.pod, node.name)

    def _nodes(self, rows: RowList) -> list[NodeInfo]:
        nodes = self._context.table.nodes
        return [node for row in rows.tolist() if (node := nodes[row]) is not None]


def _rows_to_dry_run(context: PostFilterContext) -> frozenset[int]:
    """Return the rows where sums do not show what the pod would see: nominated pods, or its own reservations."""
    index, nominator = context.table.index, context.nominator
    restored = context.cycle.restored_nodes
    held = frozenset(restored.rows()) if restored is not None else frozenset()
    if not nominator:
        return held
    return held | {index[name].row for name in nominator.nodes() if name in index}


NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
NO_CANDIDATE = "no candidate node for preemption"  # extenders left none
NOT_HELPFUL = "Preemption is not helpful for scheduling"


def not_eligible_reason(context: PostFilterContext, makes_way: Callable[[PodInfo], bool]) -> str:
    """Return why the pod may not preempt, or not now; "" when it may. `makes_way`: a pod is leaving for its sake."""
    if context.pod.shape.spec.preemption_policy == "Never":
        return NEVER
    node = context.cycle.state.node(context.nominated_node())
    if node is None:
        return ""
    rejection = context.rejection_of(node)
    if rejection is not None and not rejection[1].resolvable:
        return ""  # what was made there is of no use any more
    return TERMINATING if any(makes_way(other) for other in node.pods.values()) else ""


def conclude_search(
    context: PostFilterContext, plugin: str, found: CandidateSearchResult, futile: Callable[[], str]
) -> PreemptionPlan | PostFilterRejection | Fault:
    """Return the plan that a search leads to; `futile` words the rejection of one that found nothing."""
    search = VictimSearch(plugin, found.nodes, len(found.candidates), found.without, found.nearest)
    if found.candidates:
        context.offered_candidates = (plugin, found.candidates, search)
        return make_preemption_plan(context, plugin, pick_candidate(found.candidates), search)
    if found.inconsistencies:
        return Fault(f"preemption: {join_errors(found.inconsistencies)}")
    return PostFilterRejection((f"preemption: {futile()}",), nominate="", search=search)


def replan_preemption(context: PostFilterContext, left: Sequence[PreemptionCandidate] | Fault) -> Unschedulable:
    """Return the outcome of PostFilter after extenders left these candidates of those that a plan was made from."""
    assert context.offered_candidates is not None
    plugin, _, search = context.offered_candidates
    if isinstance(left, Fault):
        return msgspec.structs.replace(context.decision, post_filter=f"preemption: {left.message}", nominate=None)
    if not left:
        return msgspec.structs.replace(
            context.decision, post_filter=f"preemption: {NO_CANDIDATE}", nominate="", searches=(search,)
        )
    plan = make_preemption_plan(context, plugin, pick_candidate(left), search)
    return msgspec.structs.replace(
        context.decision, post_filter="", preempt=plan, nominate=plan.node, searches=(search,)
    )


def make_preemption_plan(
    context: PostFilterContext, plugin: str, best: PreemptionCandidate, search: VictimSearch
) -> PreemptionPlan:
    pod = context.pod
    nominated = context.nominator.pods_on(best.node)
    going = any(not victim.deleting for victim in best.victims)
    return PreemptionPlan(
        plugin=plugin,
        node=best.node,
        victims=best.victims,
        # They may no longer fit beside this pod; if all victims are on their way out, that was settled before.
        clear_nominations=tuple(other.uid for other in nominated if other.priority < pod.priority) if going else (),
        violations=best.violations,
        why=_why(pod, best, search),
        search=search,
    )


def join_errors(errors: tuple[str, ...]) -> str:
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"


def _why(pod: PodInfo, best: PreemptionCandidate, search: VictimSearch) -> str:
    victims = best.victims
    broken = f", {best.violations} against their disruption budgets" if best.violations else ""
    return (
        f"{pod.key} has priority {pod.priority}; {best.node} has room for it without {len(victims)} pod(s) of priority "
        f"at most {victims[0].priority}{broken}; best of {search.candidates} node(s) where that helps"
    )
