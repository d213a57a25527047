"""NodeAffinity enforces node selectors and required node affinity, and scores preferred node affinity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from koord.api.affinity import NodeSelector
from koord.api.config.scheduler.in_tree import NodeAffinityArgs
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, UPDATE, Event, Happened
from koord.scheduler.framework.normaliser import Normaliser
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Only, Reject, Skip, unresolvable
from koord.scheduler.plugins.node_selector import NAME_FIELD, Preferred, Required, Terms, required_of
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.shape import Shape
from koord.scheduler.state.table import NodeTable, Rows

_NOT_ENFORCED = unresolvable("node(s) didn't match scheduler-enforced node affinity")
_NOT_MATCHED = unresolvable("node(s) didn't match Pod's node affinity/selector")
_CONFLICT = unresolvable("pod affinity terms conflict")
_CODES = {1: _NOT_ENFORCED, 2: _NOT_MATCHED}


class _Wish:
    """The node selector and node affinity of a pod's spec, parsed once per pod template."""

    __slots__ = ("names", "preferred", "required", "says_nothing")

    def __init__(self, shape: Shape) -> None:
        spec = shape.spec
        required = required_of(spec)
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else ()
        self.required = Required.of(spec)
        self.preferred = Preferred(preferred) if preferred else None
        self.says_nothing = required is None and not spec.node_selector
        self.names = _names(required) if required is not None else None


class NodeAffinity(Plugin):
    name = "NodeAffinity"
    scope = ROW
    reads_pods = "nothing"
    normaliser = Normaliser()
    wakes_on = (Event("Node", ADD), Event("Node", UPDATE, "labels"))

    def __init__(self, args: NodeAffinityArgs) -> None:
        """Parse the added affinity, which applies to every pod of the profile. Raise ValueError when it is invalid."""
        added = args.added_affinity
        required = added.required_during_scheduling_ignored_during_execution if added is not None else None
        preferred = added.preferred_during_scheduling_ignored_during_execution if added is not None else ()
        self._enforced = Terms(required) if required is not None else None
        self._added = Preferred(preferred) if preferred else None
        for part, read in (("required", self._enforced), ("preferred", self._added)):
            if read is not None and read.error:
                raise ValueError(f"parsing addedAffinity.{part}DuringSchedulingIgnoredDuringExecution: {read.error}")

    def _wish(self, pod: PodInfo) -> _Wish:
        memo = pod.shape.memo
        wish = memo.get(self.name)
        if wish is None:
            wish = memo[self.name] = _Wish(pod.shape)
        assert isinstance(wish, _Wish)
        return wish

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        if self._enforced is not None and not self._enforced.matches(happened.new):
            return False
        required = self._wish(pod).required
        return required.matches(happened.new) and (happened.old is None or not required.matches(happened.old))

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        wish = self._wish(pod)
        if wish.says_nothing and self._enforced is None:
            return SKIP
        if wish.names is None:
            return None
        return Only(wish.names) if wish.names else _CONFLICT

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        assert node.node is not None
        if self._enforced is not None and not self._enforced.matches(node.node):
            return _NOT_ENFORCED
        return None if self._wish(pod).required.matches(node.node) else _NOT_MATCHED

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        codes = np.where(self._wish(pod).required.mask(table, rows), np.int32(0), np.int32(2))
        if self._enforced is not None:
            codes[~self._enforced.mask(table, rows)] = 1
        return codes

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return _CODES[code]

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        preferred = self._wish(pod).preferred
        if preferred is not None and preferred.error:
            return Fault(preferred.error)
        return SKIP if preferred is None and self._added is None else None

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        assert node.node is not None
        return sum(wanted.score(node.node) for wanted in self._preferences(pod))

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        scores = np.zeros(len(table.alive[rows]), np.int64)
        for wanted in self._preferences(pod):
            for term in wanted.terms:
                scores[term.mask(table, rows)] += term.weight
        return scores

    def _preferences(self, pod: PodInfo) -> tuple[Preferred, ...]:
        return tuple(wanted for wanted in (self._added, self._wish(pod).preferred) if wanted is not None)


def _names(required: NodeSelector) -> frozenset[str] | None:
    """Return the only node names that the terms allow; None when some term leaves the name open."""
    allowed: frozenset[str] = frozenset()
    for term in required.node_selector_terms:
        pinned = [frozenset(r.values) for r in term.match_fields if r.key == NAME_FIELD and r.operator == "In"]
        if not pinned:
            return None
        allowed |= frozenset.intersection(*pinned)
    return allowed if required.node_selector_terms else None
