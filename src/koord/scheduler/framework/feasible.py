"""The nodes that passed every filter, as PreScore sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import NodeTable, RowList


class FeasibleNodes(Sequence[NodeInfo]):
    """Reads like a list. Most PreScore plugins never look, and columnar ones take `rows`, so it is made when asked."""

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
