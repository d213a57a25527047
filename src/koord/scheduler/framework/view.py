"""Nodes as one class of pods sees them where that differs from what everyone sees: without those who hold room for it.

What is looked at is a copy; it is kept until its row changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.reserved import Restored
from koord.scheduler.framework.trial import Trials
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable

Seen = tuple[Cycle, NodeInfo]


class Views:
    __slots__ = ("_known", "_restored", "_table", "_trials")

    def __init__(self, profile: Profile, cycle: Cycle, pod: PodInfo, restored: Restored) -> None:
        """`cycle` has PreFilter behind it."""
        self._trials = Trials(profile, cycle, pod)
        self._restored = restored
        self._table: NodeTable = cycle.state.table
        self._known: dict[int, Seen] = {}

    @staticmethod
    def of_class(profile: Profile, cycle: Cycle, pod: PodInfo) -> Views | None:
        """None for nearly every pod: it sees what everyone sees."""
        return None if cycle.restored is None else Views(profile, cycle, pod, cycle.restored)

    def rows(self) -> Collection[int]:
        return self._restored.rows()

    def of(self, row: int) -> Seen | None:
        """The node in this row with the cycle to judge it by; None where it is as everyone sees it."""
        if row not in self._restored.rows():
            return None
        known = self._known.get(row)
        if known is None:
            node = self._table.nodes[row]
            if node is None or node.node is None:
                return None
            known = self._known[row] = self._trials.seen(node)
        return known

    def node(self, row: int) -> NodeInfo | None:
        seen = self.of(row)
        return self._table.nodes[row] if seen is None else seen[1]

    def forget(self, rows: Iterable[int] | None) -> None:
        """These rows changed; None for any of them. Plugins that count across nodes may have moved all of them."""
        if rows is None or self._trials.removing:
            self._known.clear()
        else:
            for row in rows:
                self._known.pop(row, None)
