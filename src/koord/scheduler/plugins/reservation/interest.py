"""ReservationMatches holds the reservations that pods of one kind may use, by node, and follows the cache.

Only changed nodes are matched again. Such pods see these nodes without the reserve pods that hold room for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable

from koord.api.annotations.codec import Malformed
from koord.policy.reservation.matching import Answer, Wish
from koord.policy.reservation.register import Register
from koord.policy.reservation.seeker import Seeker
from koord.policy.reservation.standing import Standing
from koord.scheduler.framework.reserved import Reserved
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


def seeker_of(pod: PodInfo) -> Seeker | Malformed:
    return Seeker.of(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        labels=pod.labels,
        annotations=pod.annotations,
        owners=pod.owners,
        requests=pod.requests,
    )


class Interest:
    """The matched reservations of one kind of pods; `id` is never used again."""

    def __init__(
        self, number: int, pod: PodInfo, state: ClusterState, register: Register, *, omit_node_labels: bool = False
    ) -> None:
        self.number = number
        self.fault = ""
        self.by_node: dict[str, tuple[Standing, ...]] = {}
        self.reserved: dict[str, tuple[Reserved, ...]] = {}
        self.position = -1  # in the cache's log, up to which this is current
        self._omit = omit_node_labels
        self._nodes_read = -1
        self._state = state
        self._register = register
        self._rows: set[int] = set()
        self._layout = -1  # of the table that the rows are of
        seeker = seeker_of(pod)
        if isinstance(seeker, Malformed):
            self.fault = str(seeker)
            seeker = Seeker(uid=pod.uid, namespace=pod.namespace, name=pod.name)
        self.seeker: Seeker = seeker
        self._wish = Wish(seeker)

    @property
    def token(self) -> Hashable:
        """Return a key: pods with equal keys see the same nodes. None: such a pod sees what everyone sees."""
        if self.by_node:
            return self.number
        return (self.number, "nowhere") if self.fault or self.exclusive else None

    @property
    def exclusive(self) -> bool:
        return self.seeker.affinity is not None

    # Keeping up --------------------------------------------------------------------------------------------------

    def refresh(self, since: Callable[[int], Collection[str] | None], position: int) -> None:
        """Match changed nodes again. `since` returns the nodes changed after a position of the cache's log, None if
        unknown.
        """
        nodes: Iterable[str] | None = since(self.position) if self.position >= 0 else None
        labels = () if self._omit or self.seeker.affinity is None else self._relabelled()
        self.position = position
        if self.fault:
            return
        if nodes is None or labels is None:
            nodes = {*self.by_node, *self._register.candidates(self.seeker)}
        for name in {*nodes, *labels} if labels else nodes:
            self._look(name)

    def _relabelled(self) -> list[str] | None:
        changes, nodes = self._state.table.node_changes, self._state.table.nodes
        rows = changes.since(self._nodes_read) if self._nodes_read >= 0 else None
        self._nodes_read = changes.position
        return None if rows is None else [node.name for row in rows if (node := nodes[row]) is not None]

    def _look(self, name: str) -> None:
        self.by_node.pop(name, None)
        self.reserved.pop(name, None)
        found = tuple(s for s in self._register.on(name) if s.is_matchable and self._suits(s, name))
        if found:
            self.by_node[name] = found
            self.reserved[name] = tuple(r for s in found if (r := self._told(s)) is not None)
        node = self._state.table.index.get(name)
        if node is not None and self._layout == self._state.table.layout:
            (self._rows.add if found else self._rows.discard)(node.row)

    def _suits(self, standing: Standing, node_name: str) -> bool:
        return self.seeker.ignores or self.answer(standing, node_name).matches

    def answer(self, standing: Standing, node_name: str) -> Answer:
        node = None if self._omit else self._state.node(node_name)
        return self._wish.match(standing.holding, node.labels if node is not None else None)

    def _told(self, standing: Standing) -> Reserved | None:
        held = standing.holding
        holder = self._state.placed(held.uid)
        if holder is None:
            return None
        parts = self._register.parts(held.uid)
        return Reserved(
            uid=held.uid,
            name=held.name,
            node_name=held.node,
            policy=held.wire_policy,
            holder=holder,
            owners=tuple(sorted(uid for uid, part in parts.items() if part.node == held.node)),
            allocate_once=held.once,
        )

    # What the framework asks -------------------------------------------------------------------------------------

    def rows(self) -> Collection[int]:
        table = self._state.table
        if self._layout != table.layout:
            self._layout = table.layout
            self._rows = {node.row for name in self.by_node if (node := table.index.get(name)) is not None}
        return self._rows

    def holders(self, node: NodeInfo) -> tuple[PodInfo, ...]:
        return tuple(reserved.holder for reserved in self.reserved.get(node.name, ()) if reserved.uid in node.pods)
