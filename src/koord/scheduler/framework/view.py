"""View nodes without the reserve pods that hold resources for one class of pods."""

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
    """Cache the copies of restored nodes that one class of pods sees, until their rows change."""
    __slots__ = ("_known", "_restored", "_table", "_trials")

    def __init__(self, profile: Profile, cycle: Cycle, pod: PodInfo, restored: Restored) -> None:
        """Take a cycle state whose PreFilter has run."""
        self._trials = Trials(profile, cycle, pod)
        self._restored = restored
        self._table: NodeTable = cycle.state.table
        self._known: dict[int, Seen] = {}

    @staticmethod
    def of_class(profile: Profile, cycle: Cycle, pod: PodInfo) -> Views | None:
        """Return the views of a class; None for nearly every pod, which sees what everyone sees."""
        return None if cycle.restored is None else Views(profile, cycle, pod, cycle.restored)

    def rows(self) -> Collection[int]:
        return self._restored.rows()

    def of(self, row: int) -> Seen | None:
        """Return the node in this row with the cycle state to filter it by; None where it is as everyone sees it."""
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
        """Drop the views of these rows, None for all; plugins that count across nodes may have changed all of them."""
        if rows is None or self._trials.removing:
            self._known.clear()
        else:
            for row in rows:
                self._known.pop(row, None)
