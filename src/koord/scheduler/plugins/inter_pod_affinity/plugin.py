"""InterPodAffinity places pods near pods that they require and away from pods that they or others exclude.

Its queueing hints look closer where Kubernetes overlooks a cause and leaves the pod to its five-minute
timer: a namespace selector is matched with the namespace's labels, any of several anti-affinity terms
counts, and so does the end of a pod that kept others away.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec
import numpy as np

from koord.api.config.scheduler.in_tree_args import InterPodAffinityArgs
from koord.api.kubernetes.node import Node
from koord.scheduler.cache.cluster_state import ClusterState, TopologyDomainIndex
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.selector_counts import SelectorCounts
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import CLUSTER, SKIP, Fault, PreFilterResult, Reject, Skip, unresolvable
from koord.scheduler.plugins.inter_pod_affinity.filter import (
    REJECTIONS,
    AffinityFilterState,
    AffinityScoreNormaliser,
    AffinityScoreState,
    WeightedSource,
)
from koord.scheduler.plugins.inter_pod_affinity.term_counts import (
    NO_MATCHING_TERMS,
    ExistingTermCounts,
    ExistingTerms,
    MatchingExistingTerms,
    MatchingPodCounts,
)
from koord.scheduler.plugins.inter_pod_affinity.terms import (
    IncomingTerms,
    IncomingTermsCache,
    NamespaceLabels,
    PodAffinityTerms,
    affinity_terms_of,
)


def pod_event_helps(incoming: IncomingTerms | None, object_event: ObjectEvent) -> bool:
    """Return whether a pod event can make the waiting pod schedulable."""
    old: PodInfo | None = object_event.old
    new: PodInfo | None = object_event.new
    if any(pod is not None and not pod.node_name for pod in (old, new)):
        return False
    if _attracts(incoming, new) and not _attracts(incoming, old):
        return True
    if _repels(incoming, old) and not _repels(incoming, new):
        return True
    # A pod whose labels change holds the terms that it held.
    return old is not None and new is None and bool((affinity_terms_of(old) or PodAffinityTerms()).anti_affinity)


def _attracts(incoming: IncomingTerms | None, pod: PodInfo | None) -> bool:
    return bool(
        incoming is not None
        and pod is not None
        and incoming.affinity is not None
        and incoming.affinity.matches(pod.label_group)
    )


def _repels(incoming: IncomingTerms | None, pod: PodInfo | None) -> bool:
    if incoming is None or pod is None:
        return False
    return any(query.question.matches(pod.label_group) for query in incoming.anti_affinity)


def node_event_helps(
    incoming: IncomingTerms | None, existing: MatchingExistingTerms, object_event: ObjectEvent
) -> bool:
    """Return whether a node event can make the waiting pod schedulable."""
    old: Node | None = object_event.old
    new: Node | None = object_event.new
    if new is None:
        return False
    after = new.metadata.labels
    near = incoming.affinity_keys if incoming is not None else ()
    if old is None:
        return not near or any(key in after for key in near)
    before = old.metadata.labels
    if any(key in after and before.get(key) != after[key] for key in near):
        return True
    far = {held.term.topology_key for held in existing.required_anti_affinity}
    if incoming is not None:
        far.update(query.topology_key for query in incoming.anti_affinity)
    return any(key in before and before[key] != after.get(key) for key in far)


class _AffinityCycleState:
    """The state of one class of pods. Either part is None when no term applies."""

    __slots__ = ("hard", "soft")

    def __init__(self, hard: AffinityFilterState | None, soft: AffinityScoreState | None) -> None:
        self.hard = hard
        self.soft = soft

    def copy(self) -> _AffinityCycleState:
        return _AffinityCycleState(self.hard.copy() if self.hard is not None else None, self.soft)


class InterPodAffinity(Plugin):
    name = "InterPodAffinity"
    scope = CLUSTER
    normaliser = AffinityScoreNormaliser()
    wakes_on = (
        ClusterEvent("Pod", ADD),
        ClusterEvent("Pod", UPDATE, "labels"),
        ClusterEvent("Pod", DELETE),
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "labels"),
    )

    def __init__(self, args: InterPodAffinityArgs, state: ClusterState, namespaces: NamespaceLabels) -> None:
        """Take arguments that are already defaulted."""
        self._hard_weight = args.hard_pod_affinity_weight or 0
        self._ignores_preferred = args.ignore_preferred_terms_of_existing_pods
        self._namespaces = namespaces
        self._incoming_terms_cache = IncomingTermsCache(namespaces)
        self._atlas = state.derived(TopologyDomainIndex)
        self._tallies = state.derived(SelectorCounts)
        self._existing_terms = state.derived(ExistingTerms)

    def signature(self, pod: PodInfo) -> Hashable:
        """Return the pod's own terms, and the terms of placed pods that match it."""
        incoming, existing = self._incoming_terms(pod), self._matching_existing_terms(pod)
        return None if incoming is None and existing is NO_MATCHING_TERMS else (incoming, existing)

    def _incoming_terms(self, pod: PodInfo) -> IncomingTerms | None:
        terms = affinity_terms_of(pod)
        return None if terms is None else self._incoming_terms_cache.get(pod, terms)

    def _matching_existing_terms(self, pod: PodInfo) -> MatchingExistingTerms:
        existing = self._existing_terms.matching(pod.label_group, self._namespaces)
        if existing is NO_MATCHING_TERMS:
            return existing
        if self._ignores_preferred:
            incoming = self._incoming_terms(pod)
            if incoming is None or not incoming.preferred:
                existing = msgspec.structs.replace(existing, required_affinity=(), preferred_terms=())
        if not self._hard_weight and existing.required_affinity:
            existing = msgspec.structs.replace(existing, required_affinity=())
        return NO_MATCHING_TERMS if existing == NO_MATCHING_TERMS else existing

    def epoch(self, cycle: CycleState) -> Hashable:
        hard = cycle.read(self.name, _AffinityCycleState).hard
        if hard is None:
            return 0
        hard.refresh()
        return hard.version

    def moved_rows(self, cycle: CycleState) -> RowList | None:
        hard = cycle.read(self.name, _AffinityCycleState).hard
        return hard.moved_rows() if hard is not None else None

    def score_epoch(self, cycle: CycleState) -> Hashable:
        soft = cycle.read(self.name, _AffinityCycleState).soft
        if soft is None:
            return 0
        soft.refresh()
        return soft.version

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        incoming = self._incoming_terms(pod)
        if object_event.event.kind == "Pod":
            return pod_event_helps(incoming, object_event)
        return node_event_helps(incoming, self._matching_existing_terms(pod), object_event)

    # Filter ------------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        terms = affinity_terms_of(pod)
        if terms is not None and terms.error:
            return unresolvable(f"parsing pod: {terms.error}")
        incoming, existing = self._incoming_terms(pod), self._matching_existing_terms(pod)
        atlas, tallies, existing_terms = self._atlas, self._tallies, self._existing_terms
        hard = None
        if existing.required_anti_affinity or (
            incoming is not None and (incoming.affinity is not None or incoming.anti_affinity)
        ):
            hard = AffinityFilterState(incoming, existing.required_anti_affinity, atlas, tallies, existing_terms)
        weighted_sources = self._weighted_sources(incoming, existing)
        soft = AffinityScoreState(weighted_sources, atlas, tallies, existing_terms) if weighted_sources else None
        cycle.write(self.name, _AffinityCycleState(hard, soft))
        return None if hard is not None else SKIP

    def _weighted_sources(
        self, incoming: IncomingTerms | None, existing: MatchingExistingTerms
    ) -> tuple[WeightedSource, ...]:
        own = incoming.preferred if incoming is not None else ()
        return (
            *((MatchingPodCounts(query.question, self._tallies), query.topology_key, query.weight) for query in own),
            *(
                (ExistingTermCounts(held), held.term.topology_key, self._hard_weight)
                for held in existing.required_affinity
            ),
            *((ExistingTermCounts(held), held.term.topology_key, 1) for held in existing.preferred_terms),
        )

    def add_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        self._update_cycle(cycle, pod, other, node, 1)

    def remove_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        self._update_cycle(cycle, pod, other, node, -1)

    def _update_cycle(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo, by: int) -> None:
        rules = cycle.read(self.name, _AffinityCycleState).hard
        if rules is None:
            return
        theirs = affinity_terms_of(other)
        if theirs is not None:
            labels = self._namespaces.labels(pod.namespace)
            for term in theirs.anti_affinity:
                if term.matches(pod.namespace, pod.labels, labels):
                    rules.update_count("existing", term.topology_key, node.row, by)
        incoming = rules.incoming
        if incoming is None:
            return
        near, apart = rules.matched_terms(other.label_group)
        if near:
            for key in incoming.affinity_keys:
                rules.update_count("affinity", key, node.row, by)
        for query, is_meant in zip(incoming.anti_affinity, apart, strict=True):
            if is_meant:
                rules.update_count("anti", query.topology_key, node.row, by)

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        hard = cycle.read(self.name, _AffinityCycleState).hard
        return REJECTIONS.get(hard.code(node.row)) if hard is not None else None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        hard = cycle.read(self.name, _AffinityCycleState).hard
        return hard.codes(rows) if hard is not None else np.zeros(len(table.alive[rows]), np.int32)

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return REJECTIONS[code]

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return SKIP if cycle.read(self.name, _AffinityCycleState).soft is None else None

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        soft = cycle.read(self.name, _AffinityCycleState).soft
        return soft.score(node.row) if soft is not None else 0

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        soft = cycle.read(self.name, _AffinityCycleState).soft
        return soft.scores(rows) if soft is not None else np.zeros(len(table.alive[rows]), np.int64)
