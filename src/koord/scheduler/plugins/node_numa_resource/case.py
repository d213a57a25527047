"""What the plugin keeps of one class of pods: the demand, verdicts in words, and what-ifs of single nodes."""

from __future__ import annotations

from koord.policy.topology.refusal import Short
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.node_numa_resource.book import Book
from koord.scheduler.plugins.node_numa_resource.demand import Demand
from koord.scheduler.plugins.node_numa_resource.site import Site

PASSES = 0


class Case:
    """`books` are of nodes as they might be; a node that is not in it is as it is. `known` are verdicts on nodes, each
    with the site and the book that it is of."""

    __slots__ = ("_codes", "books", "demand", "known", "scores", "words")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.books: dict[str, Book] = {}
        self.known: dict[str, tuple[Site, Book, object, Reject | None]] = {}
        self.scores: dict[str, tuple[Site, Book, object, int]] = {}
        self.words: list[Reject | None] = [None]
        self._codes: dict[Reject, int] = {}

    def copy(self) -> Case:
        other = Case(self.demand)
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


def rejected(short: Short) -> Reject:
    return Reject(short.reasons, resolvable=not short.final)
