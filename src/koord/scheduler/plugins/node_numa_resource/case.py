"""What the plugin keeps of one class of pods: the demand, verdicts in words, and what-ifs of single nodes."""

from __future__ import annotations

from koord.policy.topology.refusal import Short
from koord.policy.topology.score import MAX_SCORE, Scorer
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.allocation import Share
from koord.scheduler.plugins.node_numa_resource.book import Book
from koord.scheduler.plugins.node_numa_resource.demand import Demand
from koord.scheduler.state.node import NodeInfo

PASSES = 0


class Case:
    """`books` are of nodes as they might be; a node that is not in it is as it is. `quiet`: such pods ask for nothing,
    and no node asks anything of them."""

    __slots__ = ("_codes", "_fills_up", "_scorer", "books", "counted", "demand", "quiet", "words")

    def __init__(self, demand: Demand, scorer: Scorer) -> None:
        self.demand = demand
        self.quiet = False
        self.books: dict[str, Book] = {}
        self.words: list[Reject | None] = [None]
        self._codes: dict[Reject, int] = {}
        self._scorer = scorer
        self._fills_up = scorer.fills_up
        self.counted = [
            Share(name, demand.amounts.get(name, 0), weight, nonzero=False)
            for name, weight in scorer.counted(demand.amounts)
        ]

    def copy(self) -> Case:
        other = Case(self.demand, self._scorer)
        other.quiet = self.quiet
        other.books = dict(self.books)
        return other

    def code(self, verdict: Reject | None) -> int:
        if verdict is None:
            return PASSES
        code = self._codes.get(verdict)
        if code is None:
            code = self._codes[verdict] = len(self.words)
            self.words.append(verdict)
        return code

    def by_totals(self, node: NodeInfo) -> int:
        """By the node's totals. Every placement of a plain pod comes by here."""
        if self._fills_up:
            return self._scorer.score(node.requested, node.allocatable, self.demand.amounts)
        requested = node.requested
        total = weights = 0
        for share in self.counted:
            name = share.name
            if there := node.allocatable.get(name):
                left = there - requested.get(name, 0) - share.request
                if left > 0:
                    total += left * MAX_SCORE // there * share.weight
                weights += share.weight
        return total // weights if weights else 0


def rejected(short: Short) -> Reject:
    return Reject(short.reasons, resolvable=not short.final)
