"""Decide which node a pod gets. Synchronous, deterministic for a seed, and without I/O."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
import numpy as np

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_table import NodeTable
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.attempt import SchedulingAttempt
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import (
    EXTENDER,
    MAX_NODE_NAMES,
    PRE_FILTER,
    AttemptError,
    ChosenNode,
    Decision,
    ExtenderResults,
    NodeRejections,
    ScoredNode,
    Unschedulable,
)
from koord.scheduler.framework.filtering import FilterResults
from koord.scheduler.framework.nominated_pods import NominatedOverlay, NoNominations, PodNominator
from koord.scheduler.framework.plugin import Plugin, Scores
from koord.scheduler.framework.plugin_timing import AttemptTimer
from koord.scheduler.framework.post_filter import PostFilterContext, find_nearest_node
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.runtime import (
    PickedNode,
    PluginRejection,
    no_nodes_left,
    run_admit,
    run_begin_attempt,
    run_find_one_node,
    run_post_filter,
    run_pre_filter,
    run_prefer_nodes,
)
from koord.scheduler.framework.scoring import INFEASIBLE_SCORE, ScoreResults
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable

MAX_CLASSES = 128
# What is kept of a class takes about a hundred bytes for each node: a very large cluster keeps fewer classes.
MAX_CLASS_ROWS = MAX_CLASSES * 20_000
_NOT_ASKED = unresolvable()  # it is not reported: extenders are asked again while there are such nodes


class ClassEvaluation:
    """Keep the filter and score results of one class of equal pods for all nodes."""

    __slots__ = (
        "_layout",
        "_position",
        "attempts",
        "cycle",
        "filter_results",
        "has_unasked_nodes",
        "nominated_overlay",
        "pod",
        "prefilter_epochs",
        "refreshes",
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
        self.has_unasked_nodes = False  # nodes fit by now that extenders were not asked about
        self.refreshes = 0  # how often the results were brought up to date
        self.attempts = 0  # that were decided with these results
        self._layout = -1
        self._position = -1

    def refresh(
        self, table: NodeTable, pod: PodInfo, nominator: PodNominator, timer: AttemptTimer | None = None
    ) -> None:
        """Recompute the rows that changed since the last refresh, and apply the nominations that matter to this pod."""
        filter_results, nominated_overlay = self.filter_results, self.nominated_overlay
        filter_results.timer = self.score_results.timer = timer
        self.refreshes += 1
        changed = table.changed_since(self._position) if self._layout == table.layout else None
        self._layout, self._position = table.layout, table.position
        if filter_results.node_views is not None:
            filter_results.node_views.invalidate(changed)
        if changed is None or 4 * len(changed) > table.size:
            filter_results.filter_all()
            nominated_overlay.apply(filter_results, pod, nominator, None)
            if timer is not None:
                timer.point_ended("Filter")
            self.score_results.score_all()
            return
        across = filter_results.filter_changed(changed)
        flipped = nominated_overlay.apply(
            filter_results, pod, nominator, None if filter_results.crossed_rows else changed
        )
        if flipped:
            changed = [*changed, *sorted(set(flipped).difference(changed))]
        if timer is not None:
            timer.point_ended("Filter")
        if changed or across:
            self.score_results.score_changed(changed, across=across)

    def apply_extender_results(self, table: NodeTable, results: ExtenderResults) -> None:
        """Reject the feasible nodes that extenders reject or were not asked about, and score the rest with theirs.

        The results are one pod's: nobody else may use this evaluation afterwards.
        """
        scores: dict[int, int] = {}
        for row in self.filter_results.feasible_rows().tolist():
            node = table.nodes[row]
            assert node is not None
            rejection = results.rejections.get(node.name)
            if node.name not in results.asked:
                self.has_unasked_nodes = True
                rejection = _NOT_ASKED
            if rejection is not None:
                self.filter_results.block_row(row, (EXTENDER, rejection))
            elif results.scores:
                scores[row] = results.scores.get(node.name, 0)
        self.score_results.score_all()
        self.score_results.add_extender_scores(scores)


class SchedulingEngine:
    """Run one profile over the shared cluster state. The same events and the same seed give the same decisions."""

    def __init__(
        self, profile: SchedulerProfile, state: ClusterState, seed: int = 0, nominator: PodNominator | None = None
    ) -> None:
        self.profile = profile
        self._state = state
        self._nominator: PodNominator = nominator if nominator is not None else NoNominations()
        self._rng = np.random.default_rng(seed)
        self._classes: OrderedDict[Hashable, ClassEvaluation] = OrderedDict()
        self._ties: Scores = np.zeros(0, np.int64)
        # Attempts by who skipped the pod at Filter and at Score, of classes that are no longer kept.
        self._attempts: Counter[tuple[frozenset[str], frozenset[str]]] = Counter()
        self._pre_filter_rejections: Counter[tuple[str, str]] = Counter()  # evaluations in attempts that ended there

    def plugin_evaluations(self) -> Counter[tuple[str, str]]:
        """Return in how many attempts each plugin was evaluated, by plugin and extension point.

        Plugins that skipped a pod are not counted for it; those whose results for its class still held are.
        """
        attempts, profile = Counter(self._attempts), self.profile
        for kept in self._classes.values():
            attempts[kept.cycle.skip_filter, kept.cycle.skip_score] += kept.attempts
        counts = Counter(self._pre_filter_rejections)
        for (skip_filter, skip_score), times in attempts.items():
            for point, plugins, skipped in (
                ("PreFilter", profile.plugins_at(Plugin.pre_filter), skip_filter),
                ("Filter", profile.plugins_at(Plugin.filter), skip_filter),
                ("PreScore", profile.pre_score_plugins, skip_score),
                ("Score", profile.plugins_at(Plugin.score), skip_score),
            ):
                for plugin in plugins:
                    if plugin.name not in skipped:
                        counts[plugin.name, point] += times
        return counts

    def _count_attempts(self, dropped: ClassEvaluation) -> None:
        """Count the attempts of a class whose results are no longer kept; nearly free, as each new class drops one."""
        self._attempts[dropped.cycle.skip_filter, dropped.cycle.skip_score] += dropped.attempts

    def decide(
        self,
        pod: PodInfo,
        runners_up: int = 0,
        timer: AttemptTimer | None = None,
        extender_results: ExtenderResults | None = None,
    ) -> SchedulingAttempt:
        """Choose a node for the pod, or say why there is none.

        `runners_up` is how many of the next best nodes to record for explanations: it costs a sort of all nodes.
        `timer` is told the end of each extension point and plugin in an attempt that is timed. With `extender_results`
        only nodes that extenders were asked about and did not reject are chosen.
        """
        profile, state = self.profile, self._state
        if not state.node_count:  # no plugin rejected: the pod waits for any event
            return SchedulingAttempt(profile, pod, CycleState(state), Unschedulable(0, ()))
        for plugin in profile.row_expirers:
            plugin.note_expired_rows()
        hooks = profile.hooks_for(pod)
        if hooks.begin_attempt and (rejection := run_begin_attempt(hooks.begin_attempt, pod)) is not None:
            return self._rejected(pod, CycleState(state), rejection)
        key = profile.class_key(pod, hooks)
        evaluation = self._class_evaluation(pod, key, timer)
        if isinstance(evaluation, SchedulingAttempt):
            return evaluation
        if hooks.admit and (rejection := run_admit(hooks.admit, evaluation.cycle, pod)) is not None:
            return self._rejected(pod, evaluation.cycle, rejection)
        if extender_results is not None:
            self._classes.pop(profile.equivalence_key(pod), None)  # it is this pod's alone from now on
        self._refresh(evaluation, pod, timer, extender_results)
        if extender_results is not None or key is None:
            self._count_attempts(evaluation)
        if hooks.find_one_node or hooks.prefer_nodes:
            picked = self._pick_node(evaluation, pod)
            if isinstance(picked, PluginRejection):
                return self._rejected(pod, evaluation.cycle, picked)
            if picked is not None:
                return self._decide_on_picked_node(evaluation, pod, picked, runners_up, timer, extender_results)
        decision = self._decision(evaluation, pod, runners_up, extender_results)
        return SchedulingAttempt(profile, pod, evaluation.cycle, decision, evaluation)

    def _class_evaluation(
        self, pod: PodInfo, key: Hashable, timer: AttemptTimer | None
    ) -> ClassEvaluation | SchedulingAttempt:
        """Return the results of the pod's class, not yet refreshed; or the attempt, if it is over after PreFilter."""
        profile, state = self.profile, self._state
        prefilter_epochs = profile.prefilter_epochs(state)
        kept = self._classes.get(key)
        if kept is None or kept.prefilter_epochs != prefilter_epochs:
            cycle = CycleState(state)
            seen = run_pre_filter(profile, cycle, pod, timer)
            if isinstance(seen, PluginRejection):
                return self._rejected_by_pre_filter(pod, cycle, seen)
            if kept is not None:
                self._count_attempts(kept)
            kept = ClassEvaluation(profile, cycle, seen, prefilter_epochs)
            if key is not None:
                self._classes[key] = kept
                while len(self._classes) > max(1, min(MAX_CLASSES, MAX_CLASS_ROWS // state.table.size)):
                    _, dropped = self._classes.popitem(last=False)
                    self._count_attempts(dropped)
        if key is not None:
            self._classes.move_to_end(key)
        return kept

    def _rejected_by_pre_filter(self, pod: PodInfo, cycle: CycleState, rejection: PluginRejection) -> SchedulingAttempt:
        """End the attempt. If preemption could help, admit runs as well: the last rejecting plugin is reported."""
        for plugin in self.profile.hooks_for(pod).pre_filter:
            if plugin.name not in cycle.skip_filter:
                self._pre_filter_rejections[plugin.name, "PreFilter"] += 1
            if plugin.name == rejection.plugin and not (
                isinstance(rejection.answer, Reject) and rejection.answer.resolvable
            ):
                break
        if isinstance(rejection.answer, Reject) and rejection.answer.resolvable:
            rejection = run_admit(self.profile.hooks_for(pod).admit, cycle, pod) or rejection
        return self._rejected(pod, cycle, rejection)

    def _rejected(self, pod: PodInfo, cycle: CycleState, rejection: PluginRejection) -> SchedulingAttempt:
        """End an attempt for which no node was evaluated."""
        decision: Decision
        if isinstance(rejection.answer, Fault):
            decision = AttemptError(rejection.plugin, rejection.answer.message, rejection.point)
        else:
            narrowed_by = cycle.restricted_by if rejection.plugin == PRE_FILTER else rejection.answer.blames
            refused = (rejection.plugin, rejection.answer)
            decision = Unschedulable(self._state.node_count, (), pre_filter=refused, restricted_by=narrowed_by)
        return SchedulingAttempt(self.profile, pod, cycle, decision)

    def _refresh(
        self,
        evaluation: ClassEvaluation,
        pod: PodInfo,
        timer: AttemptTimer | None,
        extender_results: ExtenderResults | None,
    ) -> None:
        evaluation.refresh(self._state.table, pod, self._nominator, timer)
        evaluation.attempts += 1
        if extender_results is not None:
            evaluation.apply_extender_results(self._state.table, extender_results)
        if timer is not None:
            timer.point_ended("Score")

    def _pick_node(self, evaluation: ClassEvaluation, pod: PodInfo) -> PickedNode | PluginRejection | None:
        """Return the node that a plugin planned for this pod alone; else the first preferred node that fits."""
        found = run_find_one_node(self.profile, evaluation.cycle, pod)
        if found is not None:
            return found
        return run_prefer_nodes(self.profile, evaluation.cycle, pod, lambda name: self._fits(evaluation, name))

    def _fits(self, evaluation: ClassEvaluation, name: str) -> bool:
        node = self._state.node(name)
        return node is not None and bool(evaluation.score_results.total[node.row] != INFEASIBLE_SCORE)

    def _decide_on_picked_node(
        self,
        evaluation: ClassEvaluation,
        pod: PodInfo,
        picked: PickedNode,
        runners_up: int,
        timer: AttemptTimer | None,
        extender_results: ExtenderResults | None,
    ) -> SchedulingAttempt:
        cycle = evaluation.cycle.fork()
        cycle.restrict_nodes(frozenset((picked.node,)), picked.plugin)
        if self._fits(evaluation, picked.node):  # there is nothing more to find out about it
            chosen = self._chosen_node(evaluation, self._state.table.index[picked.node].row)
            chosen = msgspec.structs.replace(chosen, feasible=1)
            return SchedulingAttempt(self.profile, pod, cycle, chosen, evaluation)
        if not cycle.allowed_nodes:
            return self._rejected(pod, cycle, no_nodes_left(cycle))
        alone = ClassEvaluation(self.profile, cycle, evaluation.pod, evaluation.prefilter_epochs)
        self._refresh(alone, pod, timer, extender_results)
        self._count_attempts(alone)
        decision = self._decision(alone, pod, runners_up, extender_results)
        return SchedulingAttempt(self.profile, pod, cycle, decision, alone)

    def forget_class(self, pod: PodInfo) -> None:
        """Forget the cached results of the pod's class: a plugin raised, and they may be incomplete."""
        try:
            forgotten = self._classes.pop(self.profile.equivalence_key(pod), None)
        except Exception:  # noqa: BLE001 - the plugin that raised may be the one that cannot name the class
            for kept in self._classes.values():
                self._count_attempts(kept)
            self._classes.clear()
        else:
            if forgotten is not None:
                self._count_attempts(forgotten)

    # Choosing ----------------------------------------------------------------------------------------------------

    def _decision(
        self, evaluation: ClassEvaluation, pod: PodInfo, runners_up: int, extender_results: ExtenderResults | None
    ) -> Decision:
        failed = evaluation.filter_results.fault()
        if failed is not None:
            self.forget_class(pod)
            return AttemptError(*failed, "Filter")
        fault = evaluation.score_results.fault
        if fault is not None and len(evaluation.filter_results.feasible_rows()) > 1:
            assert isinstance(fault.answer, Fault)  # without a choice nobody would have asked for scores
            return AttemptError(fault.plugin, fault.answer.message, fault.point)
        chosen = self._select_node(evaluation, pod)
        if chosen is None:
            fallback = self._fallback_node(evaluation)
            if fallback is not None and (extender_results is None or fallback.node not in extender_results.rejections):
                return fallback
            return self._unschedulable(evaluation, pod)
        if runners_up:
            others = tuple(r for r in _best_nodes(self._state, evaluation, runners_up + 1) if r.node != chosen.node)
            chosen = msgspec.structs.replace(chosen, runners_up=others[:runners_up])
        return chosen

    def _select_node(self, evaluation: ClassEvaluation, pod: PodInfo) -> ChosenNode | None:
        total = evaluation.score_results.total
        if self._nominator or pod.nominated_node:
            promised = self._nominated_row(evaluation, pod)
            if promised is not None:
                return self._chosen_node(evaluation, promised)
        if len(self._ties) != len(total):
            self._ties = self._rng.permutation(len(total))
        row = evaluation.score_results.best_row(self._ties)  # equal scores: the shuffled order decides
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
            feasible=evaluation.score_results.feasible_count(),
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
        self._reject_nominated_nodes(evaluation, pod)
        refusals = tuple(
            NodeRejections(plugin, verdict, len(nodes), tuple(sorted(nodes)[:MAX_NODE_NAMES]))
            for (plugin, verdict), nodes in evaluation.filter_results.rejections().items()
        )
        miss = find_nearest_node(evaluation.filter_results, self._state.table, pod)
        return Unschedulable(
            self._state.node_count, refusals, restricted_by=evaluation.cycle.restricted_by, nearest=miss
        )

    # Making room -------------------------------------------------------------------------------------------------

    def post_filter(
        self,
        attempt: SchedulingAttempt,
        review: Any = None,
        timer: AttemptTimer | None = None,
    ) -> Unschedulable:
        """Run PostFilter for a pod that was found unschedulable; the attempt's decision becomes the outcome.

        With a `review` (a PreemptionReview) there may be proposals for extenders in `attempt.post_filter_context` in
        place of an outcome.
        Raise ValueError if the cluster state has changed since: what PostFilter would read no longer holds.
        """
        decision, pod, profile = attempt.decision, attempt.pod, self.profile
        assert isinstance(decision, Unschedulable)
        if not decision.node_count or not (
            profile.plugins_at(Plugin.post_filter) or profile.plugins_at(Plugin.after_post_filter)
        ):
            outcome = msgspec.structs.replace(decision, nominate="")
        else:
            if attempt.position != self._state.table.position:
                raise ValueError(f"the cluster has changed since {pod.key} was decided")
            self._restore_results(attempt)
            results, nominator = attempt.filter_results, self._nominator
            context = PostFilterContext(profile, attempt.cycle, pod, decision, results, nominator, self._rng, review)
            outcome = run_post_filter(profile, context, timer)
            attempt.post_filter_context = context
        attempt.decision = outcome
        return outcome

    def _restore_results(self, attempt: SchedulingAttempt) -> None:
        """Bring the results of the attempt's class back to what they were for its pod, after other pods of the class
        were decided: the nominated pods that count may differ.
        """
        evaluation = attempt.evaluation
        if evaluation is not None and evaluation.refreshes != attempt.refreshes:
            evaluation.refresh(self._state.table, attempt.pod, self._nominator)
            self._reject_nominated_nodes(evaluation, attempt.pod)

    def _reject_nominated_nodes(self, evaluation: ClassEvaluation, pod: PodInfo) -> None:
        if self._nominator:
            evaluation.nominated_overlay.reject_nominated_nodes(evaluation.filter_results, pod, self._nominator)


def best_rows(total: Scores, count: int) -> list[int]:
    """Return the rows with the highest totals, the lower row first of equal ones, without sorting all of them."""
    count = min(count, len(total))
    least = np.partition(total, -count)[-count]
    above = np.flatnonzero(total > least)
    above = above[np.argsort(-total[above], kind="stable")]
    return [*above.tolist(), *np.flatnonzero(total == least)[: count - len(above)].tolist()]


def _best_nodes(state: ClusterState, evaluation: ClassEvaluation, count: int) -> tuple[ScoredNode, ...]:
    """Return the best nodes with their scores by plugin."""
    total = evaluation.score_results.total
    rows = [row for row in best_rows(total, count) if total[row] != INFEASIBLE_SCORE]
    return tuple(
        ScoredNode(node.name, int(total[row]), evaluation.score_results.breakdown(row))
        for row in rows
        if (node := state.table.nodes[row]) is not None
    )
