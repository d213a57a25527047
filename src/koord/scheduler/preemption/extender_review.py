"""Keep what extenders said about the victims of a plan that needs several nodes at once, as one for a gang does.

A plan for one pod is picked from candidates that extenders have seen (`evaluator.replan_preemption`). A plan for many
pods cannot be: which nodes it takes depends on each other. It is proposed instead, and made anew without the nodes that
an extender refused, until extenders have seen every node of it.

    search -> a node whose victims were not shown: propose -> extenders -> search again, without the refused nodes
           -> all were shown: the plan, with the victims that extenders left
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.preemption.victims import PreemptionCandidate

# How many plans are shown to extenders in one attempt.
MAX_PROPOSALS = 16


class VictimProposal(msgspec.Struct, frozen=True):
    """Name nodes with victims whose places pods like `pod` are to get."""

    pod: PodInfo
    candidates: tuple[PreemptionCandidate, ...]


class PreemptionReview:
    """Collect the answers of extenders within one attempt."""

    def __init__(self, is_reviewed: Callable[[PodInfo], bool]) -> None:
        """Take who tells whether an extender is to see the victims that make room for a pod."""
        self.is_reviewed = is_reviewed
        self.refused_nodes: set[str] = set()
        self.error = ""  # of an extender that is not ignorable: there can be no plan in this attempt
        self.proposals = 0
        self._answers: dict[tuple[str, frozenset[str]], PreemptionCandidate] = {}

    def answer_about(self, candidate: PreemptionCandidate) -> PreemptionCandidate | None:
        """Return the candidate as extenders left it; None when they have not seen it."""
        return self._answers.get(_key(candidate))

    def add(self, shown: Sequence[PreemptionCandidate], left: Sequence[PreemptionCandidate]) -> None:
        """Record which of the shown candidates extenders left, and with which victims."""
        self.proposals += 1
        by_node = {candidate.node: candidate for candidate in left}
        for candidate in shown:
            kept = by_node.get(candidate.node)
            if kept is None:
                self.refused_nodes.add(candidate.node)
            else:
                self._answers[_key(candidate)] = kept

    @property
    def is_exhausted(self) -> bool:
        """Return whether extenders have seen so many plans that no other is shown to them in this attempt."""
        return self.proposals >= MAX_PROPOSALS


def _key(candidate: PreemptionCandidate) -> tuple[str, frozenset[str]]:
    return candidate.node, frozenset(victim.uid for victim in candidate.victims)
