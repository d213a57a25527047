"""ReservationMatches holds the reservations that pods of one kind may use, by node, and follows the cache.

Only changed nodes are matched again. Such pods see these nodes without the reserve pods that hold room for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable

from koord.api.annotations.codec import MalformedAnnotation
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.reservation import MatchedReservation
from koord.scheduler.plugins.reservation.matching import ReservationMatch, ReservationMatcher
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_index import ReservationIndex
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage


def reservation_request_of(pod: PodInfo) -> ReservationRequest | MalformedAnnotation:
    return ReservationRequest.from_pod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        labels=pod.labels,
        annotations=pod.annotations,
        owners=pod.owners,
        requests=pod.requests,
    )


class ReservationMatches:
    """The matched reservations of one kind of pods; `id` is never used again."""

    def __init__(
        self,
        number: int,
        pod: PodInfo,
        state: ClusterState,
        register: ReservationIndex,
        *,
        omit_node_labels: bool = False,
    ) -> None:
        self.id = number
        self.fault = ""
        self.by_node: dict[str, tuple[ReservationUsage, ...]] = {}
        self.reserved: dict[str, tuple[MatchedReservation, ...]] = {}
        self.position = -1  # in the cache's log, up to which this is current
        self._omit = omit_node_labels
        self._nodes_read = -1
        self._state = state
        self._register = register
        self._rows: set[int] = set()
        self._layout = -1  # of the table that the rows are of
        request = reservation_request_of(pod)
        if isinstance(request, MalformedAnnotation):
            self.fault = str(request)
            request = ReservationRequest(uid=pod.uid, namespace=pod.namespace, name=pod.name)
        self.request: ReservationRequest = request
        self._matcher = ReservationMatcher(request)

    @property
    def signature(self) -> Hashable:
        """Return a key: pods with equal keys see the same nodes. None: such a pod sees what everyone sees."""
        if self.by_node:
            return self.id
        return (self.id, "nowhere") if self.fault or self.exclusive else None

    @property
    def exclusive(self) -> bool:
        return self.request.affinity is not None

    # Keeping up --------------------------------------------------------------------------------------------------

    def refresh(self, since: Callable[[int], Collection[str] | None], position: int) -> None:
        """Match again the nodes changed after a position of the cache's log, which `since` returns, None if unknown."""
        nodes: Iterable[str] | None = since(self.position) if self.position >= 0 else None
        labels = () if self._omit or self.request.affinity is None else self._nodes_with_changed_objects()
        self.position = position
        if self.fault:
            return
        if nodes is None or labels is None:
            nodes = {*self.by_node, *self._register.candidates(self.request)}
        for name in {*nodes, *labels} if labels else nodes:
            self._update_node(name)

    def _nodes_with_changed_objects(self) -> list[str] | None:
        changes, nodes = self._state.table.node_changes, self._state.table.nodes
        rows = changes.since(self._nodes_read) if self._nodes_read >= 0 else None
        self._nodes_read = changes.position
        return None if rows is None else [node.name for row in rows if (node := nodes[row]) is not None]

    def _update_node(self, name: str) -> None:
        self.by_node.pop(name, None)
        self.reserved.pop(name, None)
        found = tuple(s for s in self._register.on_node(name) if s.is_matchable and self._matches_reservation(s, name))
        if found:
            self.by_node[name] = found
            self.reserved[name] = tuple(r for s in found if (r := self._to_reserved(s)) is not None)
        node = self._state.table.index.get(name)
        if node is not None and self._layout == self._state.table.layout:
            (self._rows.add if found else self._rows.discard)(node.row)

    def _matches_reservation(self, usage: ReservationUsage, node_name: str) -> bool:
        return self.request.ignores_reservations or self.match_reservation(usage, node_name).matches

    def match_reservation(self, usage: ReservationUsage, node_name: str) -> ReservationMatch:
        node = None if self._omit else self._state.node(node_name)
        return self._matcher.match(usage.info, node.labels if node is not None else None)

    def _to_reserved(self, usage: ReservationUsage) -> MatchedReservation | None:
        held = usage.info
        holder = self._state.placed_pod(held.uid)
        if holder is None:
            return None
        parts = self._register.owner_pods(held.uid)
        return MatchedReservation(
            uid=held.uid,
            name=held.name,
            node_name=held.node,
            policy=held.effective_policy,
            reserve_pod=holder,
            owners=tuple(sorted(uid for uid, part in parts.items() if part.node == held.node)),
            allocate_once=held.allocate_once,
        )

    # What the framework asks -------------------------------------------------------------------------------------

    def rows(self) -> Collection[int]:
        table = self._state.table
        if self._layout != table.layout:
            self._layout = table.layout
            self._rows = {node.row for name in self.by_node if (node := table.index.get(name)) is not None}
        return self._rows

    def holders(self, node: NodeInfo) -> tuple[PodInfo, ...]:
        return tuple(reserved.reserve_pod for reserved in self.reserved.get(node.name, ()) if reserved.uid in node.pods)
