"""The decision itself: which node for this pod. Synchronous, deterministic for a seed, and without any I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

import numpy as np

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import NAMES_KEPT, PRE_FILTER, Chosen, Decision, Failed, Refusal, Unschedulable
from koord.scheduler.framework.judgement import Judgement
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.scoring import UNFIT, Scoring
from koord.scheduler.framework.verdict import Fault, Only, Reject, Skip, unresolvable
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable

CLASSES_KEPT = 128


class Evaluation:
    """One class of equal pods against all nodes."""

    __slots__ = ("_layout", "_position", "cycle", "ground", "judgement", "scoring")

    def __init__(self, profile: Profile, cycle: Cycle, pod: PodInfo, ground: Hashable) -> None:
        self.cycle = cycle
        self.ground = ground
        self.judgement = Judgement(profile, cycle, pod)
        self.scoring = Scoring(profile, cycle, pod, self.judgement)
        self._layout = -1
        self._position = -1

    def refresh(self, table: NodeTable) -> None:
        changed = table.changed_since(self._position) if self._layout == table.layout else None
        self._layout, self._position = table.layout, table.position
        if changed is None or 4 * len(changed) > table.size:
            self.judgement.judge_all()
            self.scoring.score_all()
            return
        across = self.judgement.judge_again(changed)
        if changed or across:
            self.scoring.score_again(changed, across=across)


class Engine:
    """One profile over the shared state. The same events and the same seed give the same decisions."""

    def __init__(self, profile: Profile, state: ClusterState, seed: int = 0) -> None:
        self.profile = profile
        self._state = state
        self._chance = np.random.default_rng(seed)
        self._classes: OrderedDict[Hashable, Evaluation] = OrderedDict()
        self._ties: Scores = np.zeros(0, np.int64)

    def decide(self, pod: PodInfo) -> Decision:
        evaluation = self.evaluate(pod)
        if not isinstance(evaluation, Evaluation):
            return evaluation
        if evaluation.scoring.fault is not None:
            plugin, fault = evaluation.scoring.fault
            return Failed(plugin, fault.message)
        return self._chosen(evaluation) or self._refused(evaluation)

    def evaluate(self, pod: PodInfo) -> Evaluation | Unschedulable | Failed:
        """The class's verdicts, up to date; or why no node needed to be looked at."""
        if not self._state.node_count:  # nobody refused: the pod waits for anything at all to happen
            return Unschedulable(0, ())
        key = self.profile.class_of(pod)
        ground = self.profile.ground(self._state)
        kept = self._classes.get(key)
        if kept is None or kept.ground != ground:
            cycle = Cycle(self._state)
            early = self._pre_filter(cycle, pod)
            if early is not None:
                return early
            kept = Evaluation(self.profile, cycle, pod, ground)
            if key is not None:
                self._classes[key] = kept
                if len(self._classes) > CLASSES_KEPT:
                    self._classes.popitem(last=False)
        if key is not None:
            self._classes.move_to_end(key)
        kept.refresh(self._state.table)
        return kept

    def _pre_filter(self, cycle: Cycle, pod: PodInfo) -> Unschedulable | Failed | None:
        """All plugins are asked even after a refusal that preemption could lift, so that it finds what they kept."""
        skipped: set[str] = set()
        refused: tuple[str, Reject] | None = None
        for plugin in self.profile.at("pre_filter"):
            answer = plugin.pre_filter(cycle, pod)
            if isinstance(answer, Skip):
                skipped.add(plugin.name)
            elif isinstance(answer, Reject):
                refused = (plugin.name, answer)
                if not answer.resolvable:
                    break
            elif isinstance(answer, Fault):
                return Failed(plugin.name, answer.message)
            elif isinstance(answer, Only):
                cycle.narrow(answer.node_names, plugin.name)
                if not cycle.only:
                    refused = (PRE_FILTER, _nothing_left(cycle.narrowed_by))
                    break
        cycle.skip_filter = frozenset(skipped)
        if refused is None:
            return None
        narrowed_by = cycle.narrowed_by if refused[0] == PRE_FILTER else ()
        return Unschedulable(self._state.node_count, (), pre_filter=refused, narrowed_by=narrowed_by)

    # Choosing ----------------------------------------------------------------------------------------------------

    def _chosen(self, evaluation: Evaluation) -> Chosen | None:
        total = evaluation.scoring.total
        if len(self._ties) != len(total):
            self._ties = self._chance.permutation(len(total))
        ranked = total * len(total) + self._ties  # equal scores: the shuffled order decides
        row = int(np.argmax(ranked))
        best = int(total[row])
        if best == UNFIT:
            return None
        node = self._state.table.nodes[row]
        assert node is not None
        return Chosen(
            node=node.name,
            feasible=int(np.count_nonzero(total != UNFIT)),
            total=best,
            scores=evaluation.scoring.breakdown(row),
        )

    def _refused(self, evaluation: Evaluation) -> Unschedulable:
        refusals = tuple(
            Refusal(plugin, verdict, len(nodes), tuple(sorted(nodes)[:NAMES_KEPT]))
            for (plugin, verdict), nodes in evaluation.judgement.refusals().items()
        )
        return Unschedulable(self._state.node_count, refusals, narrowed_by=evaluation.cycle.narrowed_by)


def _nothing_left(plugins: tuple[str, ...]) -> Reject:
    if len(plugins) == 1:
        return unresolvable(f"node(s) didn't satisfy plugin {plugins[0]}")
    return unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}] simultaneously")
