"""NumaCycleState holds what the plugin keeps for one class of pods: the demand, rejections, and nodes of dry
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from koord.policy.topology.refusal import Short
from koord.policy.topology.score import MAX_SCORE, Scorer
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.allocation import Share, present_on_node
from koord.scheduler.plugins.node_numa_resource.book import Book
from koord.scheduler.plugins.node_numa_resource.demand import Demand
from koord.scheduler.state.node import NodeInfo

PASSES = 0


class Case:
    """The state of one class of pods in a cycle.

    `node_allocations` are the allocations of nodes changed by a dry run; other nodes are live. `is_skipped`:
    such pods demand nothing, and no node has a policy for all pods.
    """

    __slots__ = ("_codes", "_scorer", "books", "counted", "demand", "mean", "quiet", "theirs", "words")

    def __init__(self, demand: Demand, scorer: Scorer) -> None:
        self.demand = demand
        self.quiet = False
        self.books: dict[str, Book] = {}
        self.theirs: dict[str, int] = {}  # by node: CPUs of running pods that a reservation would take over there
        self.words: list[Reject | None] = [None]
        self._codes: dict[Reject, int] = {}
        self._scorer = scorer
        self.counted = [
            Share(name, demand.amounts.get(name, 0), weight, nonzero=False)
            for name, weight in scorer.counted(demand.amounts)
        ]
        self.mean: Callable[[NodeInfo], int]  # by the node's totals
        if scorer.fills_up:
            self.mean = lambda node: scorer.score(node.requested, node.allocatable, demand.amounts)
        elif len(self.counted) == 2:
            self.mean = _of_two(*self.counted)
        else:
            self.mean = _of_many(self.counted)

    def copy(self) -> Case:
        other = Case(self.demand, self._scorer)
        other.quiet = self.quiet
        other.books = dict(self.books)
        other.theirs = dict(self.theirs)
        return other

    def code(self, verdict: Reject | None) -> int:
        if verdict is None:
            return PASSES
        code = self._codes.get(verdict)
        if code is None:
            code = self._codes[verdict] = len(self.words)
            self.words.append(verdict)
        return code


def _of_two(first: Share, second: Share) -> Callable[[NodeInfo], int]:
    """Return `_mean_of_many` specialised for two resources, since every placement of a plain pod runs it."""
    a, asked_a, weight_a = first.name, first.request, first.weight
    b, asked_b, weight_b = second.name, second.request, second.weight
    both = weight_a + weight_b

    def mean(node: NodeInfo) -> int:
        there, taken = node.allocatable, node.requested
        there_a, there_b = there.get(a), there.get(b)
        if not there_a or not there_b:
            return _of_many((first, second))(node)
        left_a, left_b = there_a - taken.get(a, 0) - asked_a, there_b - taken.get(b, 0) - asked_b
        total = left_a * MAX_SCORE // there_a * weight_a if left_a > 0 else 0
        return (total + left_b * MAX_SCORE // there_b * weight_b if left_b > 0 else total) // both

    return mean


def _of_many(counted: Sequence[Share]) -> Callable[[NodeInfo], int]:
    """Return a function that computes the weighted mean of the free percentages."""

    def mean(node: NodeInfo) -> int:
        total = weights = 0
        for there, used, weight in present_on_node(counted, node):
            total += max(there - used, 0) * MAX_SCORE // there * weight
            weights += weight
        return total // weights if weights else 0

    return mean


def rejected(short: Short) -> Reject:
    return Reject(short.reasons, resolvable=not short.final)
