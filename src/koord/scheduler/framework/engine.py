"""Decide which node a pod gets. Synchronous, deterministic for a seed, and without I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import msgspec
import numpy as np

from koord.scheduler.framework.around import Pick, Stopped, after, bar, before, pick
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import (
    NAMES_KEPT,
    PRE_FILTER,
    Chosen,
    Decision,
    Failed,
    Preempt,
    Ranked,
    Refusal,
    Search,
    Unschedulable,
)
from koord.scheduler.framework.judgement import Judgement
from koord.scheduler.framework.nearest import nearest
from koord.scheduler.framework.nominated import Nobody, Nominator, Overlay
from koord.scheduler.framework.plugin import Plugin, Scores
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.scoring import UNFIT, Scoring
from koord.scheduler.framework.verdict import SKIP, Fault, Only, Reject, Skip, unresolvable
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable

CLASSES_KEPT = 128

Lap = Callable[[str], None]


class Evaluation:
    """Keep the filter and score results of one class of equal pods for all nodes."""

    __slots__ = ("_layout", "_position", "cycle", "ground", "judgement", "overlay", "pod", "scoring")

    def __init__(self, profile: Profile, cycle: Cycle, pod: PodInfo, ground: Sequence[Hashable]) -> None:
        self.cycle = cycle
        self.pod = pod  # as plugins see it
        self.ground = ground
        self.judgement = Judgement(profile, cycle, pod)
        self.scoring = Scoring(profile, cycle, pod, self.judgement)
        self.overlay = Overlay(profile, cycle)
        self._layout = -1
        self._position = -1

    def refresh(self, table: NodeTable, pod: PodInfo, nominator: Nominator, lap: Lap | None = None) -> None:
        """Recompute the rows that changed since the last refresh, and apply the nominations that matter to this pod."""
        judgement, overlay = self.judgement, self.overlay
        changed = table.changed_since(self._position) if self._layout == table.layout else None
        self._layout, self._position = table.layout, table.position
        if judgement.views is not None:
            judgement.views.forget(changed)
        if changed is None or 4 * len(changed) > table.size:
            judgement.judge_all()
            overlay.lay(judgement, pod, nominator, None)
            if lap is not None:
                lap("Filter")
            self.scoring.score_all()
            return
        across = judgement.judge_again(changed)
        flipped = overlay.lay(judgement, pod, nominator, None if judgement.moved else changed)
        if flipped:
            changed = [*changed, *sorted(set(flipped).difference(changed))]
        if lap is not None:
            lap("Filter")
        if changed or across:
            self.scoring.score_again(changed, across=across)


class Engine:
    """Run one profile over the shared cluster state. The same events and the same seed give the same decisions."""

    def __init__(
        self, profile: Profile, state: ClusterState, seed: int = 0, nominator: Nominator | None = None
    ) -> None:
        self.profile = profile
        self._state = state
        self._nominator: Nominator = nominator if nominator is not None else Nobody()
        self._latest: _Latest | None = None  # what the last decision was made from
        self._chance = np.random.default_rng(seed)
        self._classes: OrderedDict[Hashable, Evaluation] = OrderedDict()
        self._ties: Scores = np.zeros(0, np.int64)
        self._beginning = profile.at("begin")
        self._admitting = profile.at("admit")
        self._plans = bool(profile.at("find_one_node"))
        self._preferring = profile.at("prefer_nodes")
        self._pinned: int | None = None  # the row that plugins picked, if the pod is known to fit there
        self.lap: Lap | None = None  # called at the end of each extension point while an attempt is timed
        self.cycle = Cycle(state)  # of the last decision: Reserve and what follows it read what plugins kept there

    def decide(self, pod: PodInfo, runners_up: int = 0) -> Decision:
        """Choose a node for the pod, or say why there is none.

        `runners_up` is how many of the next best nodes to record for explanations: it costs a sort of all nodes.
        """
        evaluation = self.evaluate(pod)
        row, self._pinned = self._pinned, None
        if not isinstance(evaluation, Evaluation):
            return evaluation
        if row is not None:
            return msgspec.structs.replace(self._choice(evaluation, row), feasible=1)
        if evaluation.scoring.fault is not None and len(evaluation.judgement.feasible_rows()) > 1:
            plugin, fault = evaluation.scoring.fault  # without a choice nobody would have asked for scores
            return Failed(plugin, fault.message, "PreScore")
        chosen = self._chosen(evaluation, pod)
        if chosen is None:
            return self._relented(evaluation) or self._refused(evaluation, pod)
        if runners_up:
            others = tuple(r for r in _ranked(self._state, evaluation, runners_up + 1) if r.node != chosen.node)
            chosen = msgspec.structs.replace(chosen, runners_up=others[:runners_up])
        return chosen

    def evaluate(self, pod: PodInfo) -> Evaluation | Unschedulable | Failed:
        """Return the up-to-date results of the pod's class, or why no node needed to be evaluated."""
        if not self._state.node_count:  # no plugin rejected: the pod waits for any event
            return Unschedulable(0, ())
        for plugin in self.profile.timed:
            plugin.catch_up()
        for plugin in self._beginning:
            answer = plugin.begin(pod)
            if answer is not None:
                self._latest = _Latest(pod.uid, self._state.table.position, Cycle(self._state), None)
                return self._stopped(Stopped(plugin.name, answer))
        key = self.profile.class_of(pod)
        ground = self.profile.ground(self._state)
        kept = self._classes.get(key)
        if kept is None or kept.ground != ground:
            cycle = Cycle(self._state)
            seen = self._prepared(cycle, pod)
            if not isinstance(seen, PodInfo):
                self._latest = _Latest(pod.uid, self._state.table.position, cycle, None)
                return self._last_word(seen, cycle, pod)
            if self.lap is not None:
                self.lap("PreFilter")
            kept = Evaluation(self.profile, cycle, seen, ground)
            if key is not None:
                self._classes[key] = kept
                if len(self._classes) > CLASSES_KEPT:
                    self._classes.popitem(last=False)
        if key is not None:
            self._classes.move_to_end(key)
        for plugin in self._admitting:
            answer = plugin.admit(kept.cycle, pod)
            if answer is not None:
                self._latest = _Latest(pod.uid, self._state.table.position, kept.cycle, None)
                return self._stopped(Stopped(plugin.name, answer))
        self._refresh(kept, pod)
        if self._plans:
            return self._picked(kept, pod)
        for plugin in self._preferring:
            if plugin.prefer_nodes(kept.cycle, pod) is not SKIP:  # hardly ever
                return self._picked(kept, pod)
        return kept

    def _last_word(self, early: Unschedulable | Failed, cycle: Cycle, pod: PodInfo) -> Unschedulable | Failed:
        """Run admit after a PreFilter rejection that preemption could resolve: the last plugin that rejects is
        reported.
        """
        if isinstance(early, Unschedulable) and early.pre_filter is not None and early.pre_filter[1].resolvable:
            stopped = bar(self.profile, cycle, pod)
            if stopped is not None:
                return self._stopped(stopped)
        return early

    def _refresh(self, evaluation: Evaluation, pod: PodInfo) -> None:
        self.cycle = evaluation.cycle
        evaluation.refresh(self._state.table, pod, self._nominator, self.lap)
        if self.lap is not None:
            self.lap("Score")
        self._latest = _Latest(pod.uid, self._state.table.position, evaluation.cycle, evaluation.judgement)

    def _picked(self, kept: Evaluation, pod: PodInfo) -> Evaluation | Unschedulable | Failed:
        """Return the results of the class, or those of the one node that plugins picked for this pod alone."""

        def fits(name: str) -> bool:
            node = self._state.node(name)
            return node is not None and bool(kept.scoring.total[node.row] != UNFIT)

        found = pick(self.profile, kept.cycle, pod, fits)
        if found is None:
            return kept
        if not isinstance(found, Stopped) and fits(found.node):  # there is nothing more to find out about it
            self._pinned = self._state.table.index[found.node].row
            self.cycle = kept.cycle.fork()
            self.cycle.narrow(frozenset((found.node,)), found.plugin)
            return kept
        if isinstance(found, Stopped):
            self._latest = _Latest(pod.uid, self._state.table.position, kept.cycle, None)
            return self._stopped(found)
        return self._alone(kept, pod, found)

    def _alone(self, kept: Evaluation, pod: PodInfo, picked: Pick) -> Evaluation | Unschedulable:
        cycle = kept.cycle.fork()
        cycle.narrow(frozenset((picked.node,)), picked.plugin)
        if not cycle.only:
            self._latest = _Latest(pod.uid, self._state.table.position, cycle, None)
            refused = (PRE_FILTER, _nothing_left(cycle.narrowed_by))
            return Unschedulable(self._state.node_count, (), pre_filter=refused, narrowed_by=cycle.narrowed_by)
        alone = Evaluation(self.profile, cycle, kept.pod, kept.ground)
        self._refresh(alone, pod)
        return alone

    def _stopped(self, stopped: Stopped) -> Unschedulable | Failed:
        if isinstance(stopped.answer, Fault):
            return Failed(stopped.plugin, stopped.answer.message)
        blamed = stopped.answer.blames
        return Unschedulable(
            self._state.node_count, (), pre_filter=(stopped.plugin, stopped.answer), narrowed_by=blamed
        )

    def discard(self, pod: PodInfo) -> None:
        """Forget the cached results of the pod's class: a plugin raised, and they may be incomplete."""
        try:
            self._classes.pop(self.profile.class_of(pod), None)
        except Exception:  # noqa: BLE001 - the plugin that raised may be the one that cannot name the class
            self._classes.clear()

    def _prepared(self, cycle: Cycle, pod: PodInfo) -> PodInfo | Unschedulable | Failed:
        """Run PreFilter and the hooks around it; return the pod as filters are to see it, or why nodes are not
        evaluated.
        """
        seen = before(self.profile, cycle, pod)
        if isinstance(seen, Stopped):
            return self._stopped(seen)
        early = self._pre_filter(cycle, seen)
        if early is not None:
            return early
        stopped = after(self.profile, cycle, seen)
        return seen if stopped is None else self._stopped(stopped)

    def _pre_filter(self, cycle: Cycle, pod: PodInfo) -> Unschedulable | Failed | None:
        """Run PreFilter of all plugins, even after a rejection that preemption could resolve: it needs what they
        wrote.
        """
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
                return Failed(plugin.name, answer.message, "PreFilter")
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

    def _chosen(self, evaluation: Evaluation, pod: PodInfo) -> Chosen | None:
        total = evaluation.scoring.total
        if self._nominator or pod.nominated_node:
            promised = self._promised_row(evaluation, pod)
            if promised is not None:
                return self._choice(evaluation, promised)
        if len(self._ties) != len(total):
            self._ties = self._chance.permutation(len(total))
        ranked = total * len(total) + self._ties  # equal scores: the shuffled order decides
        row = int(np.argmax(ranked))
        return None if total[row] == UNFIT else self._choice(evaluation, row)

    def _promised_row(self, evaluation: Evaluation, pod: PodInfo) -> int | None:
        """Return the row of the pod's nominated node if the pod fits there: no other node is better."""
        name = self._nominator.node_of(pod.uid) or pod.nominated_node
        node = self._state.node(name) if name else None
        return node.row if node is not None and evaluation.scoring.total[node.row] != UNFIT else None

    def _choice(self, evaluation: Evaluation, row: int) -> Chosen:
        total = evaluation.scoring.total
        node = self._state.table.nodes[row]
        assert node is not None
        return Chosen(
            node=node.name,
            feasible=int(np.count_nonzero(total != UNFIT)),
            total=int(total[row]),
            scores=evaluation.scoring.breakdown(row),
        )

    def _relented(self, evaluation: Evaluation) -> Chosen | None:
        """Choose a node that only one plugin rejects, if that plugin offers it rather than letting the pod wait."""
        for plugin in self.profile.relenting:
            rows = evaluation.judgement.refused_only_by(plugin.name)
            found = plugin.relent(evaluation.cycle, evaluation.pod, rows) if len(rows) else None
            node = self._state.table.nodes[found[0]] if found is not None else None
            if found is not None and node is not None:
                return Chosen(node=node.name, feasible=0, total=0, scores={}, despite=found[1])
        return None

    def _refused(self, evaluation: Evaluation, pod: PodInfo) -> Unschedulable:
        if self._nominator:
            evaluation.overlay.tell(evaluation.judgement, pod, self._nominator)
        refusals = tuple(
            Refusal(plugin, verdict, len(nodes), tuple(sorted(nodes)[:NAMES_KEPT]))
            for (plugin, verdict), nodes in evaluation.judgement.refusals().items()
        )
        miss = nearest(evaluation.judgement, self._state.table, pod)
        return Unschedulable(self._state.node_count, refusals, narrowed_by=evaluation.cycle.narrowed_by, nearest=miss)

    def nominate(self, pod: PodInfo, node_name: str) -> tuple[str, Reject | Fault] | None:
        """Settle which reservation the pod takes on its chosen node before it is counted there; return the rejection, if any.

        Must follow `decide` with nothing in between.
        """
        if self.cycle.restored is None:  # there is nothing for it to take but room
            return None
        node = self._state.table.index[node_name]
        judgement = self._latest.judgement if self._latest is not None else None
        if judgement is not None and judgement.views is not None:
            node = judgement.views.node(node.row) or node
        for plugin in self.profile.at("nominate"):
            answer = plugin.nominate(self.cycle, pod, node)
            if answer is not None:
                return plugin.name, answer
        return None

    # Making room -------------------------------------------------------------------------------------------------

    def post_filter(self, pod: PodInfo, decision: Unschedulable) -> Unschedulable:
        """Run PostFilter for a pod that was just found unschedulable. Must follow `decide` with nothing in between.

        The first plugin that finds a way, or knows that there is none, decides; otherwise all their reasons are reported. A
        plugin that fails is reported in the same place.
        """
        plugins, afterwards = self.profile.at("post_filter"), self.profile.at("after_post_filter")
        latest = self._latest
        if not decision.node_count or not (plugins or afterwards):
            return msgspec.structs.replace(decision, nominate="")
        if latest is None or latest.uid != pod.uid or latest.position != self._state.table.position:
            raise ValueError(f"{pod.key} is not the pod that was decided last, or the cluster has changed since")
        refused = Refused(self.profile, latest.cycle, pod, decision, latest.judgement, self._nominator, self._chance)
        outcome = self._way_out(plugins, refused) if plugins else msgspec.structs.replace(decision, nominate="")
        for plugin in afterwards:
            plugin.after_post_filter(latest.cycle, pod, refused)
        return outcome

    def _way_out(self, plugins: Sequence[Plugin], refused: Refused) -> Unschedulable:
        decision, cycle, pod = refused.decision, refused.cycle, refused.pod
        reasons: list[str] = []
        searches: list[Search] = []
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
            if isinstance(answer, Preempt):
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


class _Latest(msgspec.Struct, frozen=True):
    uid: str
    position: int  # in the log of changes
    cycle: Cycle
    judgement: Judgement | None  # None: PreFilter refused


def _nothing_left(plugins: tuple[str, ...]) -> Reject:
    if len(plugins) == 1:
        return unresolvable(f"node(s) didn't satisfy plugin {plugins[0]}")
    return unresolvable(f"node(s) didn't satisfy plugin(s) [{' '.join(plugins)}] simultaneously")


def _ranked(state: ClusterState, evaluation: Evaluation, count: int) -> tuple[Ranked, ...]:
    """Return the best nodes with their scores by plugin."""
    total = evaluation.scoring.total
    rows = [int(row) for row in np.argsort(-total, kind="stable")[:count] if total[row] != UNFIT]
    return tuple(
        Ranked(node.name, int(total[row]), evaluation.scoring.breakdown(row))
        for row in rows
        if (node := state.table.nodes[row]) is not None
    )
