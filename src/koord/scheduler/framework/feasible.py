"""Score every feasible node for one class of equal pods, row by row.

    raw[s][row]     the score of scorer s
    total[row]      the weighted sum of normalised scores; -1 where the pod does not fit

A scorer that depends on one row is run again for rows that changed. One that looks across nodes is run for all
feasible nodes when its epoch moves, and, if it has a PreScore, when the set of feasible nodes does. Normalised scores
depend on the other nodes through one number (`ScoreNormaliser.span`): only when that moves is the column recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import NodeTable, RowList


class FeasibleNodes(Sequence[NodeInfo]):
    """List the nodes that passed every filter for PreScore.

    Most PreScore plugins never look, and columnar ones take `rows`, so the list is made on demand.
    """

    __slots__ = ("_nodes", "_table", "rows")

    def __init__(self, table: NodeTable, rows: RowList) -> None:
        self._table = table
        self.rows = rows
        self._nodes: list[NodeInfo] | None = None

    def _listed(self) -> list[NodeInfo]:
        if self._nodes is None:
            self._nodes = [node for row in self.rows if (node := self._table.nodes[row]) is not None]
        return self._nodes

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> NodeInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[NodeInfo]: ...
    def __getitem__(self, index: int | slice) -> NodeInfo | list[NodeInfo]:
        return self._listed()[index]
