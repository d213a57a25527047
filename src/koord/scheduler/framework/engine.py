"""Decide which node a pod gets. Synchronous, deterministic for a seed, and without I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import msgspec
import numpy as np

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_table import NodeTable
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import (
    MAX_NODE_NAMES,
    PRE_FILTER,
    AttemptError,
    ChosenNode,
    Decision,
    NodeRejections,
    PreemptionPlan,
    ScoredNode,
    Unschedulable,
    VictimSearch,
)
from koord.scheduler.framework.filtering import FilterResults
from koord.scheduler.framework.nominated_pods import NominatedOverlay, NoNominations, PodNominator
from koord.scheduler.framework.plugin import Plugin, Scores
from koord.scheduler.framework.post_filter import PostFilterContext, find_nearest_node
from koord.scheduler.framework.prefilter_hooks import (
    PickedNode,
    PluginRejection,
    run_admit,
    run_after_pre_filter,
    run_before_pre_filter,
    run_pick_node,
)
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.scoring import INFEASIBLE_SCORE, ScoreResults
from koord.scheduler.framework.verdict import SKIP, Fault, PreFilterResult, Reject, Skip, unresolvable

MAX_CLASSES = 128

OnPointEnd = Callable[[str], None]


class ClassEvaluation:
    """Keep the filter and score results of one class of equal pods for all nodes."""

    __slots__ = (
        "_layout",
        "_position",
        "cycle",
        "filter_results",
        "nominated_overlay",
        "pod",
        "prefilter_epochs",
        "score_results",
    )

    def __init__(
        self, profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, prefilter_epochs: Sequence[Hashable]
    ) -> None:
        self.cycle = cycle
        self.pod = pod  # as plugins see it
        self.prefilter_epochs = prefilter_epochs
        self.filter_results = FilterResults(profile, cycle, pod)
        self.score_results = ScoreResults(profile, cycle, pod, self.filter_results)
        self.nominated_overlay = NominatedOverlay(profile, cycle)
        self._layout = -1
        self._position = -1

    def refresh(
        self, table: NodeTable, pod: PodInfo, nominator: PodNominator, on_point_end: OnPointEnd | None = None
    ) -> None:
        """Recompute the rows that changed since the last refresh, and apply the nominations that matter to this pod."""
        filter_results, nominated_overlay = self.filter_results, self.nominated_overlay
        changed = table.changed_since(self._position) if self._layout == table.layout else None
        self._layout, self._position = table.layout, table.position
        if filter_results.node_views is not None:
            filter_results.node_views.invalidate(changed)
        if changed is None or 4 * len(changed) > table.size:
            filter_results.filter_all()
            nominated_overlay.apply(filter_results, pod, nominator, None)
            if on_point_end is not None:
                on_point_end("Filter")
            self.score_results.score_all()
            return
        across = filter_results.filter_changed(changed)
        flipped = nominated_overlay.apply(
            filter_results, pod, nominator, None if filter_results.crossed_rows else changed
        )
        if flipped:
            changed = [*changed, *sorted(set(flipped).difference(changed))]
        if on_point_end is not None:
            on_point_end("Filter")
        if changed or across:
            self.score_results.score_changed(changed, across=across)


class SchedulingEngine:
    """Run one profile over the shared cluster state. The same events and the same seed give the same decisions."""

    def __init__(
        self, profile: SchedulerProfile, state: ClusterState, seed: int = 0, nominator: PodNominator | None = None
    ) -> None:
        self.profile = profile
        self._state = state
        self._nominator: PodNominator = nominator if nominator is not None else NoNominations()
        self._last_decision: _LastDecision | None = None  # what the last decision was made from
        self._rng = np.random.default_rng(seed)
        self._classes: OrderedDict[Hashable, ClassEvaluation] = OrderedDict()
        self._ties: Scores = np.zeros(0, np.int64)
        self._begin_plugins = profile.plugins_at("begin_attempt")
        self._admit_plugins = profile.plugins_at("admit")
        self._has_find_one_node = bool(profile.plugins_at("find_one_node"))
        self._prefer_nodes_plugins = profile.plugins_at("prefer_nodes")
        self._picked_row: int | None = None  # the row that plugins picked, if the pod is known to fit there
        self.on_point_end: OnPointEnd | None = (
            None  # called at the end of each extension point while an attempt is timed
        )
        self.cycle = CycleState(state)  # of the last decision: Reserve and what follows it read what plugins kept there

    def decide(self, pod: PodInfo, runners_up: int = 0) -> Decision:
        """Choose a node for the pod, or say why there is none.

        `runners_up` is how many of the next best nodes to record for explanations: it costs a sort of all nodes.
        """
        evaluation = self.evaluate(pod)
        row, self._picked_row = self._picked_row, None
        if not isinstance(evaluation, ClassEvaluation):
            return evaluation
        if row is not None:
            return msgspec.structs.replace(self._chosen_node(evaluation, row), feasible=1)
        if evaluation.score_results.fault is not None and len(evaluation.filter_results.feasible_rows()) > 1:
            plugin, fault = evaluation.score_results.fault  # without a choice nobody would have asked for scores
            return AttemptError(plugin, fault.message, "PreScore")
        chosen = self._select_node(evaluation, pod)
        if chosen is None:
            return self._fallback_node(evaluation) or self._unschedulable(evaluation, pod)
        if runners_up:
            others = tuple(r for r in _best_nodes(self._state, evaluation, runners_up + 1) if r.node != chosen.node)
            chosen = msgspec.structs.replace(chosen, runners_up=others[:runners_up])
        return chosen

    def evaluate(self, pod: PodInfo) -> ClassEvaluation | Unschedulable | AttemptError:
        """Return the up-to-date results of the pod's class, or why no node needed to be evaluated."""
        if not self._state.node_count:  # no plugin rejected: the pod waits for any event
            return Unschedulable(0, ())
        for plugin in self.profile.expiring_plugins:
            plugin.note_expired_rows()
        for plugin in self._begin_plugins:
            answer = plugin.begin_attempt(pod)
            if answer is not None:
                self._last_decision = _LastDecision(pod.uid, self._state.table.position, CycleState(self._state), None)
                return self._rejected_early(PluginRejection(plugin.name, answer))
        key = self.profile.equivalence_key(pod)
        prefilter_epochs = self.profile.prefilter_epochs(self._state)
        kept = self._classes.get(key)
        if kept is None or kept.prefilter_epochs != prefilter_epochs:
            cycle = CycleState(self._state)
            seen = self._run_pre_filter_hooks(cycle, pod)
            if not isinstance(seen, PodInfo):
                self._last_decision = _LastDecision(pod.uid, self._state.table.position, cycle, None)
                return self._admit_after_rejection(seen, cycle, pod)
            if self.on_point_end is not None:
                self.on_point_end("PreFilter")
            kept = ClassEvaluation(self.profile, cycle, seen, prefilter_epochs)
            if key is not None:
                self._classes[key] = kept
                if len(self._classes) > MAX_CLASSES:
                    self._classes.popitem(last=False)
        if key is not None:
            self._classes.move_to_end(key)
        for plugin in self._admit_plugins:
            answer = plugin.admit(kept.cycle, pod)
            if answer is not None:
                self._last_decision = _LastDecision(pod.uid, self._state.table.position, kept.cycle, None)
                return self._rejected_early(PluginRejection(plugin.name, answer))
        self._refresh(kept, pod)
        if self._has_find_one_node:
            return self._apply_node_pick(kept, pod)
        for plugin in self._prefer_nodes_plugins:
            if plugin.prefer_nodes(kept.cycle, pod) is not SKIP:  # hardly ever
                return self._apply_node_pick(kept, pod)
        return kept

    def _admit_after_rejection(
        self, early: Unschedulable | AttemptError, cycle: CycleState, pod: PodInfo
    ) -> Unschedulable | AttemptError:
        """Run admit after a PreFilter rejection that preemption could resolve: the last plugin that rejects is
        reported.
        """
        if isinstance(early, Unschedulable) and early.pre_filter is not None and early.pre_filter[1].resolvable:
            rejection = run_admit(self.profile, cycle, pod)
            if rejection is not None:
                return self._rejected_early(rejection)
        return early

    def _refresh(self, evaluation: ClassEvaluation, pod: PodInfo) -> None:
        self.cycle = evaluation.cycle
        evaluation.refresh(self._state.table, pod, self._nominator, self.on_point_end)
        if self.on_point_end is not None:
            self.on_point_end("Score")
        self._last_decision = _LastDecision(
            pod.uid, self._state.table.position, evaluation.cycle, evaluation.filter_results
        )

    def _apply_node_pick(self, kept: ClassEvaluation, pod: PodInfo) -> ClassEvaluation | Unschedulable | AttemptError:
        """Return the results of the class, or those of the one node that plugins picked for this pod alone."""

        def fits(name: str) -> bool:
            node = self._state.node(name)
            return node is not None and bool(kept.score_results.total[node.row] != INFEASIBLE_SCORE)

        found = run_pick_node(self.profile, kept.cycle, pod, fits)
        if found is None:
            return kept
        if not isinstance(found, PluginRejection) and fits(found.node):  # there is nothing more to find out about it
            self._picked_row = self._state.table.index[found.node].row
            self.cycle = kept.cycle.fork()
            self.cycle.restrict_nodes(frozenset((found.node,)), found.plugin)
            return kept
        if isinstance(found, PluginRejection):
            self._last_decision = _LastDecision(pod.uid, self._state.table.position, kept.cycle, None)
            return self._rejected_early(found)
        return self._evaluate_single_node(kept, pod, found)

    def _evaluate_single_node(
        self, kept: ClassEvaluation, pod: PodInfo, picked: PickedNode
    ) -> ClassEvaluation | Unschedulable:
        cycle = kept.cycle.fork()
        cycle.restrict_nodes(frozenset((picked.node,)), picked.plugin)
        if not cycle.allowed_nodes:
            self._last_decision = _LastDecision(pod.uid, self._state.table.position, cycle, None)
            refused = (PRE_FILTER, _no_nodes_left(cycle.restricted_by))
            return Unschedulable(self._state.node_count, (), pre_filter=refused, restricted_by=cycle.restricted_by)
        alone = ClassEvaluation(self.profile, cycle, kept.pod, kept.prefilter_epochs)
        self._refresh(alone, pod)
        return alone

    def _rejected_early(self, rejection: PluginRejection) -> Unschedulable | AttemptError:
        if isinstance(rejection.answer, Fault):
            return AttemptError(rejection.plugin, rejection.answer.message)
        blamed = rejection.answer.blames
        return Unschedulable(
            self._state.node_count, (), pre_filter=(rejection.plugin, rejection.answer), restricted_by=blamed
        )

    def forget_class(self, pod: PodInfo) -> None:
        """Forget the cached results of the pod's class: a plugin raised, and they may be incomplete."""
        try:
            self._classes.pop(self.profile.equivalence_key(pod), None)
        except Exception:  # noqa: BLE001 - the plugin that raised may be the one that cannot name the class
            self._classes.clear()

    def _run_pre_filter_hooks(self, cycle: CycleState, pod: PodInfo) -> PodInfo | Unschedulable | AttemptError:
        """Run PreFilter and the hooks around it; return the pod as filters are to see it, or why nodes are not
        evaluated.
        """
        seen = run_before_pre_filter(self.profile, cycle, pod)
        if isinstance(seen, PluginRejection):
            return self._rejected_early(seen)
        early = self._run_pre_filter(cycle, seen)
        if early is not None:
            return early
        rejection = run_after_pre_filter(self.profile, cycle, seen)
        return seen if rejection is None else self._rejected_early(rejection)

    def _run_pre_filter(self, cycle: CycleState, pod: PodInfo) -> Unschedulable | AttemptError | None:
        """Run PreFilter of all plugins, even after a rejection that preemption could resolve: it needs what they
        wrote.
        """
        skipped: set[str] = set()
        refused: tuple[str, Reject] | None = None
        for plugin in self.profile.plugins_at("pre_filter"):
            answer = plugin.pre_filter(cycle, pod)
            if isinstance(answer, Skip):
                skipped.add(plugin.name)
            elif isinstance(answer, Reject):
                refused = (plugin.name, answer)
                if not answer.resolvable:
                    break
            elif isinstance(answer, Fault):
                return AttemptError(plugin.name, answer.message, "PreFilter")
            elif isinstance(answer, PreFilterResult):
                cycle.restrict_nodes(answer.node_names, plugin.name)
                if not cycle.allowed_nodes:
                    refused = (PRE_FILTER, _no_nodes_left(cycle.restricted_by))
                    break
        cycle.skip_filter = frozenset(skipped)
        if refused is None:
            return None
        narrowed_by = cycle.restricted_by if refused[0] == PRE_FILTER else ()
        return Unschedulable(self._state.node_count, (), pre_filter=refused, restricted_by=narrowed_by)

    # Choosing ----------------------------------------------------------------------------------------------------

    def _select_node(self, evaluation: ClassEvaluation, pod: PodInfo) -> ChosenNode | None:
        total = evaluation.score_results.total
        if self._nominator or pod.nominated_node:
            promised = self._nominated_row(evaluation, pod)
            if promised is not None:
                return self._chosen_node(evaluation, promised)
        if len(self._ties) != len(total):
            self._ties = self._rng.permutation(len(total))
        ranked = total * len(total) + self._ties  # equal scores: the shuffled order decides
        row = int(np.argmax(ranked))
        return None if total[row] == INFEASIBLE_SCORE else self._chosen_node(evaluation, row)

    def _nominated_row(self, evaluation: ClassEvaluation, pod: PodInfo) -> int | None:
        """Return the row of the pod's nominated node if the pod fits there: no other node is better."""
        name = self._nominator.node_of(pod.uid) or pod.nominated_node
        node = self._state.node(name) if name else None
        return node.row if node is not None and evaluation.score_results.total[node.row] != INFEASIBLE_SCORE else None

    def _chosen_node(self, evaluation: ClassEvaluation, row: int) -> ChosenNode:
        total = evaluation.score_results.total
        node = self._state.table.nodes[row]
        assert node is not None
        return ChosenNode(
            node=node.name,
            feasible=int(np.count_nonzero(total != INFEASIBLE_SCORE)),
            total=int(total[row]),
            scores=evaluation.score_results.breakdown(row),
        )

    def _fallback_node(self, evaluation: ClassEvaluation) -> ChosenNode | None:
        """Choose a node that only one plugin rejects, if that plugin offers it rather than letting the pod wait."""
        for plugin in self.profile.fallback_plugins:
            rows = evaluation.filter_results.rows_rejected_only_by(plugin.name)
            found = plugin.fallback_node(evaluation.cycle, evaluation.pod, rows) if len(rows) else None
            node = self._state.table.nodes[found[0]] if found is not None else None
            if found is not None and node is not None:
                return ChosenNode(node=node.name, feasible=0, total=0, scores={}, fallback_reason=found[1])
        return None

    def _unschedulable(self, evaluation: ClassEvaluation, pod: PodInfo) -> Unschedulable:
        if self._nominator:
            evaluation.nominated_overlay.reject_nominated_nodes(evaluation.filter_results, pod, self._nominator)
        refusals = tuple(
            NodeRejections(plugin, verdict, len(nodes), tuple(sorted(nodes)[:MAX_NODE_NAMES]))
            for (plugin, verdict), nodes in evaluation.filter_results.rejections().items()
        )
        miss = find_nearest_node(evaluation.filter_results, self._state.table, pod)
        return Unschedulable(
            self._state.node_count, refusals, restricted_by=evaluation.cycle.restricted_by, nearest=miss
        )

    def nominate(self, pod: PodInfo, node_name: str) -> tuple[str, Reject | Fault] | None:
        """Settle which reservation the pod takes on its chosen node before it is counted there; return the rejection,
        if any.

        Must follow `decide` with nothing in between.
        """
        if self.cycle.restored_nodes is None:  # there is nothing for it to take but room
            return None
        node = self._state.table.index[node_name]
        filter_results = self._last_decision.filter_results if self._last_decision is not None else None
        if filter_results is not None and filter_results.node_views is not None:
            node = filter_results.node_views.node(node.row) or node
        for plugin in self.profile.plugins_at("nominate_reservation"):
            answer = plugin.nominate_reservation(self.cycle, pod, node)
            if answer is not None:
                return plugin.name, answer
        return None

    # Making room -------------------------------------------------------------------------------------------------

    def post_filter(self, pod: PodInfo, decision: Unschedulable) -> Unschedulable:
        """Run PostFilter for a pod that was just found unschedulable. Must follow `decide` with nothing in between.

        The first plugin that finds a way, or knows that there is none, decides; otherwise all their reasons are
        reported. A
        plugin that fails is reported in the same place.
        """
        plugins, afterwards = self.profile.plugins_at("post_filter"), self.profile.plugins_at("after_post_filter")
        latest = self._last_decision
        if not decision.node_count or not (plugins or afterwards):
            return msgspec.structs.replace(decision, nominate="")
        if latest is None or latest.uid != pod.uid or latest.position != self._state.table.position:
            raise ValueError(f"{pod.key} is not the pod that was decided last, or the cluster has changed since")
        refused = PostFilterContext(
            self.profile, latest.cycle, pod, decision, latest.filter_results, self._nominator, self._rng
        )
        outcome = self._run_post_filter(plugins, refused) if plugins else msgspec.structs.replace(decision, nominate="")
        for plugin in afterwards:
            plugin.after_post_filter(latest.cycle, pod, refused)
        return outcome

    def _run_post_filter(self, plugins: Sequence[Plugin], refused: PostFilterContext) -> Unschedulable:
        decision, cycle, pod = refused.decision, refused.cycle, refused.pod
        reasons: list[str] = []
        searches: list[VictimSearch] = []
        nominate: str | None = None
        for plugin in plugins:
            answer = plugin.post_filter(cycle, pod, refused)
            if isinstance(answer, Fault):
                reasons, nominate = [answer.message], None
                break
            if answer is None:
                continue
            if answer.search is not None:
                searches.append(answer.search)
            if isinstance(answer, PreemptionPlan):
                return msgspec.structs.replace(
                    decision, post_filter="", preempt=answer, nominate=answer.node, searches=tuple(searches)
                )
            if answer.final:
                reasons, nominate = list(answer.reasons), answer.nominate
                break
            reasons += answer.reasons
            nominate = answer.nominate if answer.nominate is not None else nominate
        return msgspec.structs.replace(
            decision, post_filter=", ".join(reasons), nominate=nominate, searches=tuple(searches)
        )


class _LastDecision(msgspec.Struct, frozen=True):
    uid: str
    position: int  # in the log of changes
    cycle: CycleState
    filter_results: FilterResults | None  # None: PreFilter refused


def _no_nodes_left(plugins: tuple[str, ...]) -> Reject:
    if len(plugins) == 1:
        return unresolvable(f"node(s) didn't satisfy plugin {plugins[0]}")
    return unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}] simultaneously")


def _best_nodes(state: ClusterState, evaluation: ClassEvaluation, count: int) -> tuple[ScoredNode, ...]:
    """Return the best nodes with their scores by plugin."""
    total = evaluation.score_results.total
    rows = [int(row) for row in np.argsort(-total, kind="stable")[:count] if total[row] != INFEASIBLE_SCORE]
    return tuple(
        ScoredNode(node.name, int(total[row]), evaluation.score_results.breakdown(row))
        for row in rows
        if (node := state.table.nodes[row]) is not None
    )
