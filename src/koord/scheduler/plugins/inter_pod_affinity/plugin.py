"""InterPodAffinity places pods near pods that they require and away from pods that they or others exclude."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec
import numpy as np

from koord.api.config.scheduler.in_tree import InterPodAffinityArgs
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import CLUSTER, SKIP, Fault, Only, Reject, Skip, unresolvable
from koord.scheduler.plugins.inter_pod_affinity.filter import VERDICTS, Rules
from koord.scheduler.plugins.inter_pod_affinity.hint import node_helps, pod_helps
from koord.scheduler.plugins.inter_pod_affinity.holders import NO_CONCERN, Concern, Holders
from koord.scheduler.plugins.inter_pod_affinity.namespaces import Namespaces
from koord.scheduler.plugins.inter_pod_affinity.score import Leaning, Leanings, Range
from koord.scheduler.plugins.inter_pod_affinity.source import Holding, Matching
from koord.scheduler.plugins.inter_pod_affinity.term import terms_of
from koord.scheduler.plugins.inter_pod_affinity.wish import Wish, Wishes
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.domain import Atlas
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, RowList, Rows
from koord.scheduler.state.tally import Tallies


class _Kept:
    """The state of one class of pods. Either part is None when no term applies."""

    __slots__ = ("hard", "soft")

    def __init__(self, hard: Rules | None, soft: Leanings | None) -> None:
        self.hard = hard
        self.soft = soft

    def copy(self) -> _Kept:
        return _Kept(self.hard.copy() if self.hard is not None else None, self.soft)


class InterPodAffinity(Plugin):
    name = "InterPodAffinity"
    scope = CLUSTER
    normaliser = Range()
    wakes_on = (
        Event("Pod", ADD),
        Event("Pod", UPDATE, "labels"),
        Event("Pod", DELETE),
        Event("Node", ADD),
        Event("Node", UPDATE, "labels"),
    )

    def __init__(self, args: InterPodAffinityArgs, state: ClusterState, namespaces: Namespaces) -> None:
        """Take arguments that are already defaulted."""
        self._hard_weight = args.hard_pod_affinity_weight or 0
        self._ignores_preferred = args.ignore_preferred_terms_of_existing_pods
        self._namespaces = namespaces
        self._wishes = Wishes(namespaces)
        self._atlas = state.derived(Atlas)
        self._tallies = state.derived(Tallies)
        self._holders = state.derived(Holders)

    def signature(self, pod: PodInfo) -> Hashable:
        """Return the pod's own terms, and the terms of placed pods that match it."""
        wish, concern = self._wish(pod), self._concern(pod)
        return None if wish is None and concern is NO_CONCERN else (wish, concern)

    def _wish(self, pod: PodInfo) -> Wish | None:
        terms = terms_of(pod)
        return None if terms is None else self._wishes.of(pod, terms)

    def _concern(self, pod: PodInfo) -> Concern:
        concern = self._holders.concern(pod.peers, self._namespaces)
        if concern is NO_CONCERN:
            return concern
        if self._ignores_preferred:
            wish = self._wish(pod)
            if wish is None or not wish.preferred:
                concern = msgspec.structs.replace(concern, draws=(), leans=())
        if not self._hard_weight and concern.draws:
            concern = msgspec.structs.replace(concern, draws=())
        return NO_CONCERN if concern == NO_CONCERN else concern

    def epoch(self, cycle: Cycle) -> Hashable:
        hard = cycle.of(self.name, _Kept).hard
        if hard is None:
            return 0
        hard.refresh()
        return hard.version

    def moved_rows(self, cycle: Cycle) -> RowList | None:
        hard = cycle.of(self.name, _Kept).hard
        return hard.moved_rows() if hard is not None else None

    def score_epoch(self, cycle: Cycle) -> Hashable:
        soft = cycle.of(self.name, _Kept).soft
        if soft is None:
            return 0
        soft.refresh()
        return soft.version

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        wish = self._wish(pod)
        if happened.event.kind == "Pod":
            return pod_helps(wish, happened)
        return node_helps(wish, self._concern(pod), happened)

    # Filter ------------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        terms = terms_of(pod)
        if terms is not None and terms.error:
            return unresolvable(f"parsing pod: {terms.error}")
        wish, concern = self._wish(pod), self._concern(pod)
        atlas, tallies, holders = self._atlas, self._tallies, self._holders
        hard = None
        if concern.keeps_away or (wish is not None and (wish.affinity is not None or wish.anti_affinity)):
            hard = Rules(wish, concern.keeps_away, atlas, tallies, holders)
        leanings = self._leanings(wish, concern)
        soft = Leanings(leanings, atlas, tallies, holders) if leanings else None
        cycle.keep(self.name, _Kept(hard, soft))
        return None if hard is not None else SKIP

    def _leanings(self, wish: Wish | None, concern: Concern) -> tuple[Leaning, ...]:
        own = wish.preferred if wish is not None else ()
        return (
            *((Matching(ask.question, self._tallies), ask.topology_key, ask.weight) for ask in own),
            *((Holding(held), held.term.topology_key, self._hard_weight) for held in concern.draws),
            *((Holding(held), held.term.topology_key, 1) for held in concern.leans),
        )

    def add_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        self._what_if(cycle, pod, other, node, 1)

    def remove_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        self._what_if(cycle, pod, other, node, -1)

    def _what_if(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo, by: int) -> None:
        rules = cycle.of(self.name, _Kept).hard
        if rules is None:
            return
        theirs = terms_of(other)
        if theirs is not None:
            labels = self._namespaces.labels(pod.namespace)
            for term in theirs.anti_affinity:
                if term.matches(pod.namespace, pod.labels, labels):
                    rules.shift("existing", term.topology_key, node.row, by)
        wish = rules.wish
        if wish is None:
            return
        near, apart = rules.wants(other.peers)
        if near:
            for key in wish.affinity_keys:
                rules.shift("affinity", key, node.row, by)
        for ask, is_meant in zip(wish.anti_affinity, apart, strict=True):
            if is_meant:
                rules.shift("anti", ask.topology_key, node.row, by)

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        hard = cycle.of(self.name, _Kept).hard
        return VERDICTS.get(hard.code(node.row)) if hard is not None else None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        hard = cycle.of(self.name, _Kept).hard
        return hard.codes(rows) if hard is not None else np.zeros(len(table.alive[rows]), np.int32)

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return VERDICTS[code]

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return SKIP if cycle.of(self.name, _Kept).soft is None else None

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        soft = cycle.of(self.name, _Kept).soft
        return soft.score(node.row) if soft is not None else 0

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        soft = cycle.of(self.name, _Kept).soft
        return soft.scores(rows) if soft is not None else np.zeros(len(table.alive[rows]), np.int64)
