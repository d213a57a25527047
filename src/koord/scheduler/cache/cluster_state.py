"""The one cluster state of the process: which pods are on which nodes, with those this scheduler assumed.

Single writer. Watch events come in through `set_node`, `drop_node`, `set_pod`, `drop_pod`; decisions through `assume`
and `forget`. A placed pod is in one of two conditions:

        assume                     set_pod (bound, seen)
    ----------->  assumed  --------------------------------->  confirmed
                     |  forget                                     |  drop_pod, or it ended
                     v                                             v
                   gone                                           gone

Listeners are called for every pod that comes to or leaves a node after the state shows it, so that what they derive can
always be rebuilt by replaying the present. `TopologyDomainIndex` is derived so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from koord.api.koordinator.protocol import (
    A_BIND_GANG_GROUP_ID,
    A_BIND_GANG_GROUP_ID_DEPRECATED,
    A_BIND_GANG_MEMBER_COUNT,
    A_BIND_GANG_MEMBER_COUNT_DEPRECATED,
)
from koord.api.kubernetes.node import Node
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable
from koord.scheduler.cache.pod_info import HeldResources, LabelGroups, PodInfo, PodShapes
from koord.scheduler.cache.pod_model import Pod, is_terminal

PlacementListener = Callable[[Literal["add", "remove"], PodInfo, NodeInfo], None]
PodUpdateListener = Callable[[PodInfo, PodInfo], None]


class DerivedState(Protocol):
    """Be kept in line with the placements by listening to them."""

    def __init__(self, state: ClusterState) -> None: ...


D = TypeVar("D", bound=DerivedState)


class ClusterState:
    """Hold all nodes and placed pods, and notify listeners of placements."""

    def __init__(self) -> None:
        self.table = NodeTable()
        self.shapes = PodShapes()
        self.label_groups = LabelGroups()
        self._derived: dict[type[Any], Any] = {}
        self._placed: dict[str, PodInfo] = {}  # by uid: every pod that holds room on a node, assumed ones included
        self._assumed: set[str] = set()
        self._held: dict[str, HeldResources] = {}  # by uid: pods that hold something else than their requests
        self._placement_listeners: list[PlacementListener] = []
        self._plain_add_listeners: list[PlacementListener] = []  # those that come to know of every pod that comes
        self._plain_add_logs: list[list[str]] = []
        self.prefilter_version = 0  # see `invalidate_prefilter`
        self._update_listeners: list[PodUpdateListener] = []

    def add_placement_listener(self, listener: PlacementListener, *, plain_adds: bool = True) -> None:
        """Call the listener for placements from now on, and at once for pods that are placed already.

        Without `plain_adds` it is not called when a pod without Koordinator's labels and annotations comes to a node.
        """
        self._placement_listeners.append(listener)
        if plain_adds:
            self._plain_add_listeners.append(listener)
        for pod in self._placed.values():
            listener("add", pod, self.table.index[pod.node_name])

    def add_plain_add_log(self, log: list[str]) -> None:
        """Append to this list the uids of pods without Koordinator's labels and annotations that come to a node.

        It is for a listener without `plain_adds` that counts such pods when somebody asks, and empties the list then.
        """
        self._plain_add_logs.append(log)

    def add_update_listener(self, listener: PodUpdateListener) -> None:
        """Call the listener with updates (before, after) of placed pods that hold what they held."""
        self._update_listeners.append(listener)

    def derived(self, kind: type[D]) -> D:
        """Return the one instance of that kind for this state, made on first use: plugins of all profiles share it."""
        known = self._derived.get(kind)
        if known is None:
            known = self._derived[kind] = kind(self)
        return known

    def invalidate_prefilter(self) -> None:
        """Note that what PreFilter or PreScore wrote for any pod, or their Skip, may no longer hold.

        For what changes seldom: it costs less than a `prefilter_epoch`, which is asked for every pod.
        """
        self.prefilter_version += 1

    def invalidate_idle(self) -> None:
        """Note that what a plugin said of pods for which it has nothing to do (`is_idle_for`) may no longer hold."""
        self.label_groups.idle_version += 1

    # Reading -----------------------------------------------------------------------------------------------------

    def node(self, name: str) -> NodeInfo | None:
        found = self.table.index.get(name)
        return found if found is not None and found.node is not None else None

    def nodes(self) -> Iterator[NodeInfo]:
        return (node for node in self.table.index.values() if node.node is not None)

    @property
    def node_count(self) -> int:
        return self.table.live

    def placed_pod(self, uid: str) -> PodInfo | None:
        return self._placed.get(uid)

    def pods(self) -> Iterator[PodInfo]:
        return iter(self._placed.values())

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def cache_size(self) -> dict[str, int]:
        """Return `scheduler_cache_size` by type."""
        return {"nodes": self.node_count, "pods": len(self._placed), "assumed_pods": len(self._assumed)}

    def pod_info(self, pod: Pod) -> PodInfo:
        """Return the PodInfo of a decoded pod, with its interned shape and label group."""
        meta = pod.metadata
        return PodInfo(pod, self.shapes.shape_of(pod), self.label_groups.group_of(meta.namespace, meta.labels))

    # Watch events ------------------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> NodeInfo:
        info = self.table.row_of(node.metadata.name)
        info.set_node(node)
        self.table.refresh_node_row(info)
        return info

    def drop_node(self, name: str) -> None:
        info = self.table.index.get(name)
        if info is None:
            return
        info.set_node(None)
        self.table.refresh_node_row(info)
        if not info.pods:  # pods that are still bound there keep the row, as they keep their claims
            self.table.drop(info)

    def set_pod(self, pod: Pod) -> PodInfo | None:
        """Update a pod as the server shows it; return it when it is placed on a node, else None."""
        uid = pod.metadata.uid
        if not pod.spec.node_name or is_terminal(pod):
            if uid not in self._assumed or is_terminal(pod):
                self._remove(uid)
            return self._placed.get(uid)
        info = self.pod_info(pod)
        if self._held:
            info.held = self._held.get(uid)
        known = self._placed.get(uid)
        self._assumed.discard(uid)
        if known is not None:
            if known.node_name == info.node_name and _holds_the_same(known, info):
                self.table.index[info.node_name].pods[uid] = info
                self._placed[uid] = info
                for listener in self._update_listeners:
                    listener(known, info)
                return info
            self._remove(uid)
        self._place(info)
        return info

    def drop_pod(self, uid: str) -> None:
        self._remove(uid)

    def set_held(self, uid: str, held: HeldResources | None) -> None:
        """Count a pod with this much on its node from now on, whenever it is placed; None for its requests.

        Update listeners are called, placement listeners are not, because its requests stay the same.
        """
        if held is None:
            self._held.pop(uid, None)
        else:
            self._held[uid] = held
        before = self._placed.get(uid)
        if before is None or before.held == held:
            return
        after = self._placed[uid] = before.with_held(held)
        node = self.table.index[after.node_name]
        node.remove(uid)
        node.add(after)
        self.table.refresh_row(node)
        for listener in self._update_listeners:
            listener(before, after)

    # Decisions ---------------------------------------------------------------------------------------------------

    def assume(self, pod: PodInfo, node_name: str) -> PodInfo:
        """Count the pod on that node from now on. Raise if it is placed already: that would be binding twice."""
        if pod.uid in self._placed:
            raise ValueError(f"{pod.key} is already on {self._placed[pod.uid].node_name}")
        placed = pod.placed_on(node_name)
        self._assumed.add(pod.uid)
        self._place(placed)
        return placed

    def forget(self, uid: str) -> bool:
        """Undo an assumption; return False when it was confirmed or dropped meanwhile, and nothing is to be undone."""
        if uid not in self._assumed:
            return False
        self._remove(uid)
        return True

    # Inside ------------------------------------------------------------------------------------------------------

    def _place(self, pod: PodInfo) -> None:
        node = self.table.row_of(pod.node_name)
        node.add(pod)
        self._placed[pod.uid] = pod
        self.table.refresh_row(node)
        if pod.has_koordinator_keys:
            for listener in self._placement_listeners:
                listener("add", pod, node)
            return
        for log in self._plain_add_logs:
            log.append(pod.uid)
        for listener in self._plain_add_listeners:
            listener("add", pod, node)

    def _remove(self, uid: str) -> None:
        pod = self._placed.pop(uid, None)
        self._assumed.discard(uid)
        if pod is None:
            return
        node = self.table.index[pod.node_name]
        node.remove(uid)
        self.table.refresh_row(node)
        for listener in self._placement_listeners:
            listener("remove", pod, node)
        if node.node is None and not node.pods:
            self.table.drop(node)


def _holds_the_same(a: PodInfo, b: PodInfo) -> bool:
    """Return whether b holds exactly what a held, so that sums and listeners are not affected by the difference."""
    return (
        a.shape is b.shape
        and a.requests == b.requests
        and a.label_group is b.label_group  # one object for equal labels of one namespace
        and _has_equal_annotations(a.annotations, b.annotations)
        and a.deleting == b.deleting
    )


# Written with a binding for others to read; nothing is held or given because of it.
_INFORMATIVE_ANNOTATIONS = frozenset(
    (
        A_BIND_GANG_GROUP_ID,
        A_BIND_GANG_GROUP_ID_DEPRECATED,
        A_BIND_GANG_MEMBER_COUNT,
        A_BIND_GANG_MEMBER_COUNT_DEPRECATED,
    )
)


def _has_equal_annotations(a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    return a == b or all(a.get(key) == b.get(key) for key in (a.keys() | b.keys()) - _INFORMATIVE_ANNOTATIONS)


DomainIds = npt.NDArray[np.intp]


class TopologyDomains:
    """Hold per row the number of its domain, 0 without such a label or node. Immutable: can be cached by identity."""

    __slots__ = ("ids", "size")

    def __init__(self, ids: DomainIds, size: int) -> None:
        self.ids = ids
        self.size = size  # one more than the highest number


class TopologyDomainIndex:
    """Keep the domains of every label that was asked for. Get it with `state.derived(TopologyDomainIndex)`."""

    def __init__(self, state: ClusterState) -> None:
        self._table = state.table
        self._known: dict[str, tuple[int, TopologyDomains]] = {}  # by key, with the node change up to which it holds

    def domains_of(self, key: str) -> TopologyDomains:
        table = self._table
        position = table.node_changes.position
        known = self._known.get(key)
        if known is not None and known[0] == position and len(known[1].ids) == table.size:
            return known[1]
        label = table.label_column(key)
        domains = known[1] if known is not None else None
        if domains is None or not np.array_equal(domains.ids, label.codes) or domains.size != len(label.values):
            domains = TopologyDomains(label.codes.astype(np.intp), len(label.values))
        self._known[key] = (position, domains)
        return domains
