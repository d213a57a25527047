"""The policies of the published experiment as scheduler plugins: BestFit and FGD, which keep count of cards
themselves, and the order of nodes that decides ties. For replays only; no product profile can name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from koord.api.resource_name import CPU, GPU_CORE
from koord.policy.device.fragmentation import Choice, Room, Shape, Typical, best_fit
from koord.policy.device.prospect import Ints, Prospect, percent_of
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, Reject
from koord.scheduler.plugins.fragmentation_aware.asked import shape_of
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows
from koord.sim.openb.scene import models_of

_PLACES = 8
_NO_CARDS = Reject(("not enough GPU cards with that much left",))
_MEMO = "openb"


def asked(pod: PodInfo) -> Shape:
    known: Shape | None = pod.shape.memo.get(_MEMO)
    if known is None:
        shape = shape_of(pod.shape)
        known = Shape(shape.cpu_milli, shape.gpu_milli, shape.gpu_count, "|".join(models_of(pod.shape)))
        pod.shape.memo[_MEMO] = known
    return known


class Packing(Plugin):
    """The common part of both policies: cards are counted here, fitting is by counting, and Reserve takes the cards."""

    scope = ROW

    def __init__(self, state: ClusterState) -> None:
        """Count the cards; all nodes exist from the start."""
        table = state.table
        self._left: Ints = np.zeros((table.size, _PLACES), np.int64)  # percents; 0 where there is no card
        self._cards: list[int] = [0] * table.size
        for node in state.nodes():
            cards = self._cards[node.row] = node.allocatable.get(GPU_CORE, 0) // 100
            self._left[node.row, :cards] = 100

    def percents(self, node: NodeInfo) -> list[int]:
        found: list[int] = self._left[node.row, : self._cards[node.row]].tolist()
        return found

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        shape = asked(pod)
        need = percent_of(shape)
        fitting = sum(left >= need for left in self.percents(node))
        return None if fitting >= shape.gpu_count else _NO_CARDS

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        shape = asked(pod)
        fitting = np.count_nonzero(self._left[rows] >= max(percent_of(shape), 1), axis=1)
        codes: Codes = (fitting < shape.gpu_count).astype(np.int32)
        return codes

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return _NO_CARDS

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        found = self.choice(asked(pod), node, cpu_left(node))
        return 0 if found is None else found.score

    def reserve(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> None:
        shape = asked(pod)
        found = self.choice(shape, node, cpu_left(node) + shape.cpu_milli)  # it is counted on the node already
        assert found is not None, f"{pod.key} was promised {node.name} and does not fit there"
        for card in found.cards:
            self._left[node.row, card] -= percent_of(shape)

    def choice(self, shape: Shape, node: NodeInfo, cpu_milli: int) -> Choice | None:
        raise NotImplementedError


def cpu_left(node: NodeInfo) -> int:
    return node.allocatable.get(CPU, 0) - node.requested.get(CPU, 0)


class OpenbBestFit(Packing):
    name = "OpenbBestFit"

    def choice(self, shape: Shape, node: NodeInfo, cpu_milli: int) -> Choice | None:
        return best_fit(Room(cpu_milli, tuple(10 * left for left in self.percents(node))), _anywhere(shape))

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        shape = asked(pod)
        cpu = (table.allocatable(CPU) - table.requested(CPU))[rows] - shape.cpu_milli
        gpu = 10 * self._left[rows].sum(axis=1) - shape.gpu_milli * shape.gpu_count
        scores: Scores = (100 * (1 - (0.5 * cpu / 128_000 + 0.5 * gpu / 8_000))).astype(np.int64)
        return np.maximum(scores, 0)


class OpenbFGD(Packing):
    name = "OpenbFGD"

    def __init__(self, state: ClusterState, expected: Sequence[Typical], models: Mapping[str, str]) -> None:
        """Build the scorers. `expected` is of the whole trace, known beforehand; `models` is by node."""
        super().__init__(state)
        kinds = sorted(set(models.values()))
        self._prospects = [_prospect(expected, model) for model in kinds]
        self._kinds: Ints = np.zeros(state.table.size, np.int64)
        for node in state.nodes():
            self._kinds[node.row] = kinds.index(models[node.name])

    def choice(self, shape: Shape, node: NodeInfo, cpu_milli: int) -> Choice | None:
        return self._prospects[int(self._kinds[node.row])].choice(cpu_milli, self.percents(node), shape)

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        shape = asked(pod)
        cpu = (table.allocatable(CPU) - table.requested(CPU))[rows]
        left, kinds = self._left[rows], self._kinds[rows]
        scores = np.zeros(len(kinds), np.int64)
        for kind, prospect in enumerate(self._prospects):
            places = np.flatnonzero(kinds == kind)
            scores[places] = prospect.scores(cpu[places], left[places], shape)
        return np.maximum(scores, 0)


class OpenbRank(Plugin):
    """Breaks ties: the lower a node's rank, the better; it counts below anything else."""

    name = "OpenbRank"
    scope = ROW

    def __init__(self, rank: Mapping[str, int]) -> None:
        self._rank = rank

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        return len(self._rank) - self._rank[node.name]

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        return table.node_column(self.name, np.int64, lambda node: len(self._rank) - self._rank[node.name])[rows]


def _prospect(expected: Sequence[Typical], model: str) -> Prospect:
    return Prospect(expected, lambda shape: shape.takes(model))


def _anywhere(shape: Shape) -> Shape:
    """Drop the models, which NodeAffinity checks."""
    return Shape(shape.cpu_milli, shape.gpu_milli, shape.gpu_count) if shape.gpu_spec else shape
