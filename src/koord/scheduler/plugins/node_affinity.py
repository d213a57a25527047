"""NodeAffinity enforces node selectors and required node affinity, and scores preferred node affinity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from koord.api.config.scheduler.in_tree_args import NodeAffinityArgs
from koord.api.kubernetes.affinity import NodeSelector
from koord.policy import node_match
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_shape import PodShape
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.normaliser import ScoreNormaliser
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, PreFilterResult, Reject, Skip, unresolvable
from koord.scheduler.plugins.node_selector import node_affinity_mask, node_term_mask, node_terms_mask

_NOT_ENFORCED = unresolvable("node(s) didn't match scheduler-enforced node affinity")
_NOT_MATCHED = unresolvable("node(s) didn't match Pod's node affinity/selector")
_CONFLICT = unresolvable("pod affinity terms conflict")
_CODES = {1: _NOT_ENFORCED, 2: _NOT_MATCHED}


class _PodNodeAffinity:
    """The node selector and node affinity of a pod's spec, parsed once per pod template."""

    __slots__ = ("is_unconstrained", "pinned_nodes", "preferred", "required")

    def __init__(self, shape: PodShape) -> None:
        spec = shape.spec
        required = node_match.required_node_selector(spec)
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else ()
        self.required = node_match.RequiredNodeAffinity.from_spec(spec)
        self.preferred = node_match.PreferredNodeAffinity(preferred) if preferred else None
        self.is_unconstrained = required is None and not spec.node_selector
        self.pinned_nodes = _pinned_node_names(required) if required is not None else None


class NodeAffinityPlugin(Plugin):
    name = "NodeAffinity"
    scope = ROW
    reads_pods = "nothing"
    normaliser = ScoreNormaliser()
    wakes_on = (ClusterEvent("Node", ADD), ClusterEvent("Node", UPDATE, "labels"))

    def __init__(self, args: NodeAffinityArgs) -> None:
        """Parse the added affinity, which applies to every pod of the profile. Raise ValueError when it is invalid."""
        added = args.added_affinity
        required = added.required_during_scheduling_ignored_during_execution if added is not None else None
        preferred = added.preferred_during_scheduling_ignored_during_execution if added is not None else ()
        self._enforced = node_match.NodeTerms(required) if required is not None else None
        self._added = node_match.PreferredNodeAffinity(preferred) if preferred else None
        for part, read in (("required", self._enforced), ("preferred", self._added)):
            if read is not None and read.error:
                raise ValueError(f"parsing addedAffinity.{part}DuringSchedulingIgnoredDuringExecution: {read.error}")

    def _pod_affinity(self, pod: PodInfo) -> _PodNodeAffinity:
        memo = pod.shape.memo
        pod_affinity = memo.get(self.name)
        if pod_affinity is None:
            pod_affinity = memo[self.name] = _PodNodeAffinity(pod.shape)
        assert isinstance(pod_affinity, _PodNodeAffinity)
        return pod_affinity

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        if self._enforced is not None and not self._enforced.matches(object_event.new):
            return False
        required = self._pod_affinity(pod).required
        return required.matches(object_event.new) and (
            object_event.old is None or not required.matches(object_event.old)
        )

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        pod_affinity = self._pod_affinity(pod)
        if pod_affinity.is_unconstrained and self._enforced is None:
            return SKIP
        if pod_affinity.pinned_nodes is None:
            return None
        return PreFilterResult(pod_affinity.pinned_nodes) if pod_affinity.pinned_nodes else _CONFLICT

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        assert node.node is not None
        if self._enforced is not None and not self._enforced.matches(node.node):
            return _NOT_ENFORCED
        return None if self._pod_affinity(pod).required.matches(node.node) else _NOT_MATCHED

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        codes = np.where(node_affinity_mask(self._pod_affinity(pod).required, table, rows), np.int32(0), np.int32(2))
        if self._enforced is not None:
            codes[~node_terms_mask(self._enforced, table, rows)] = 1
        return codes

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return _CODES[code]

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        preferred = self._pod_affinity(pod).preferred
        if preferred is not None and preferred.error:
            return Fault(preferred.error)
        return SKIP if preferred is None and self._added is None else None

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        assert node.node is not None
        return sum(wanted.score(node.node) for wanted in self._preferences(pod))

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        scores = np.zeros(len(table.alive[rows]), np.int64)
        for wanted in self._preferences(pod):
            for term in wanted.terms:
                scores[node_term_mask(term, table, rows)] += term.weight
        return scores

    def _preferences(self, pod: PodInfo) -> tuple[node_match.PreferredNodeAffinity, ...]:
        return tuple(wanted for wanted in (self._added, self._pod_affinity(pod).preferred) if wanted is not None)


def _pinned_node_names(required: NodeSelector) -> frozenset[str] | None:
    """Return the only node names that the terms allow; None when some term leaves the name open."""
    allowed: frozenset[str] = frozenset()
    for term in required.node_selector_terms:
        pinned = [
            frozenset(r.values) for r in term.match_fields if r.key == node_match.NAME_FIELD and r.operator == "In"
        ]
        if not pinned:
            return None
        allowed |= frozenset.intersection(*pinned)
    return allowed if required.node_selector_terms else None
