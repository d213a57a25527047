"""NodeAffinity enforces node selectors and required node affinity, and scores preferred node affinity.

Compiled node selector terms and label selectors are evaluated on the columns of many nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from koord.api.config.scheduler.in_tree_args import NodeAffinityArgs
from koord.api.kubernetes.affinity import NodeSelector
from koord.policy import node_match
from koord.policy.node_match import NAME_FIELD, NodeTerm, NodeTerms, RequiredNodeAffinity
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Bools, NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo, PodShape
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Codes, Plugin, ScoreNormaliser, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, PreFilterResult, Reject, Skip, unresolvable
from koord.values.selector import Operator, Requirement, Selector

_NOT_ENFORCED = unresolvable("node(s) didn't match scheduler-enforced node affinity")
_NOT_MATCHED = unresolvable("node(s) didn't match Pod's node affinity/selector")
_CONFLICT = unresolvable("pod affinity terms conflict")
_CODES = {1: _NOT_ENFORCED, 2: _NOT_MATCHED}


def node_term_mask(term: NodeTerm, table: NodeTable, rows: Rows) -> Bools:
    if term.error:
        return np.zeros(len(table.alive[rows]), np.bool_)
    mask = selector_mask(term.labels, table, rows)
    for field, value, equal in term.fields:
        mask &= _field_mask(table, rows, field, value) == equal
    return mask


def node_terms_mask(selector: NodeTerms, table: NodeTable, rows: Rows) -> Bools:
    mask = np.zeros(len(table.alive[rows]), np.bool_)
    for term in selector.terms:
        mask |= node_term_mask(term, table, rows)
    return mask


def node_affinity_mask(required: RequiredNodeAffinity, table: NodeTable, rows: Rows) -> Bools:
    if required.labels is None:
        if required.affinity is None:
            return np.ones(len(table.alive[rows]), np.bool_)
        return node_terms_mask(required.affinity, table, rows)
    mask = selector_mask(required.labels, table, rows)
    return mask if required.affinity is None else mask & node_terms_mask(required.affinity, table, rows)


def selector_mask(selector: Selector, table: NodeTable, rows: Rows) -> Bools:
    """Compute `selector.matches` on the labels of many nodes."""
    if selector.matches_nothing:
        return np.zeros(len(table.alive[rows]), np.bool_)
    mask = np.ones(len(table.alive[rows]), np.bool_)
    for requirement in selector.requirements:
        mask &= _requirement_mask(requirement, table, rows)
    return mask


def _requirement_mask(requirement: Requirement, table: NodeTable, rows: Rows) -> Bools:
    values = table.label_column(requirement.key)
    codes = values.codes[rows]
    operator = requirement.operator
    mask: Bools
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        mask = (codes != 0) == (operator is Operator.EXISTS)
    elif operator in (Operator.GREATER_THAN, Operator.LESS_THAN):
        mask = values.map_values(rows, lambda value: requirement.matches({requirement.key: value})) != 0
    else:
        wanted = [code for value in requirement.values if (code := values.code_of(value)) is not None]
        mask = np.isin(codes, wanted) if len(wanted) > 1 else codes == (wanted[0] if wanted else -1)
        if operator in (Operator.NOT_IN, Operator.NOT_EQUALS):
            mask = ~mask
    return mask


def _field_mask(table: NodeTable, rows: Rows, field: str, value: str) -> Bools:
    mask = np.full(table.size, field != NAME_FIELD and value == "", np.bool_)
    named = table.index.get(value) if field == NAME_FIELD else None
    if named is not None:
        mask[named.row] = True
    return mask[rows]


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
