"""Hold the state of one scheduling cycle: what plugins write in PreFilter and PreScore and read later.

It also carries what the Reservation plugin says about reserved resources, for the plugins that allocate them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.values.bitmask import BitMask


class MatchedReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a reservation on a node that the pod of this cycle may use.

    `reserve_pod` is placed on the node like any other pod, under the reservation's UID, as long as the reservation
    lasts.
    `owners` are the pods that use it now; they are placed on the node as well. What they use is not counted twice: the
    caches take an owner's part out of the reserve pod's.
    """

    uid: str
    name: str
    node_name: str
    policy: str  # "", Aligned or Restricted
    reserve_pod: PodInfo
    owners: tuple[str, ...] = ()
    allocate_once: bool = False


class RestoredNodes(Protocol):
    """Tell which nodes the pods of one class see without the reserve pods that hold resources for them.

    A row that becomes restored or stops being so must be marked as changed in the node table.
    """

    @property
    def exclusive(self) -> bool:
        """Return whether no other nodes need to be evaluated."""

    def rows(self) -> Collection[int]: ...

    def holders(self, node: NodeInfo) -> tuple[PodInfo, ...]:
        """Return the pods that are taken away from the node."""


T = TypeVar("T")


class CycleState:
    """Hold what plugins computed for one pod, or for one class of equal pods, under their names in `plugin_data`.

    A dry run (preemption, what-if) works on `fork()`: values are copied by their own `copy` method if they have one,
    and
    are shared otherwise, so a plugin whose value changes in `add_pod` must give it a `copy`.
    """

    __slots__ = (
        "allowed_nodes",
        "matched_reservations",
        "nominated_reservations",
        "numa_affinity",
        "plugin_data",
        "pre_allocated_pods",
        "restored_nodes",
        "restricted_by",
        "skip_filter",
        "skip_score",
        "state",
    )

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.plugin_data: dict[str, Any] = {}
        self.allowed_nodes: frozenset[str] | None = None  # names that PreFilter narrowed the search to
        self.restricted_by: tuple[str, ...] = ()  # the plugins that did so
        self.skip_filter: frozenset[str] = frozenset()
        self.skip_score: frozenset[str] = frozenset()
        self.matched_reservations: Mapping[
            str, tuple[MatchedReservation, ...]
        ] = {}  # by node: the reservations that such a pod may use
        self.restored_nodes: RestoredNodes | None = None  # nodes that such a pod sees without the reserve pods on them
        self.nominated_reservations: dict[
            str, MatchedReservation
        ] = {}  # by pod uid: the reservation it is about to take, set before Reserve
        # By uid of a reserve pod: the running pods that become its owners, set before Reserve too.
        self.pre_allocated_pods: dict[str, tuple[str, ...]] = {}
        self.numa_affinity: dict[str, BitMask | None] = {}  # by uid: its NUMA nodes, set in Reserve; None: any of them

    def restrict_nodes(self, names: frozenset[str], plugin: str) -> None:
        self.allowed_nodes = names if self.allowed_nodes is None else self.allowed_nodes & names
        self.restricted_by = tuple(sorted({*self.restricted_by, plugin}))

    def pre_allocates(self, other: PodInfo, node_name: str) -> bool:
        """Return whether the pod of this cycle is a reserve pod that pre-allocates this running pod."""
        node = self.state.node(node_name) if self.restored_nodes is not None else None
        return node is not None and self.restored_nodes is not None and other in self.restored_nodes.holders(node)

    def write(self, plugin: str, value: Any) -> None:
        self.plugin_data[plugin] = value

    def read(self, plugin: str, kind: type[T]) -> T:
        """Return what the plugin wrote; a value of another type is a mistake in the plugin."""
        value = self.plugin_data.get(plugin)
        if not isinstance(value, kind):
            raise TypeError(f"{plugin} kept {type(value).__name__} where {kind.__name__} was expected")
        return value

    def fork(self) -> CycleState:
        other = CycleState(self.state)
        other.plugin_data = {name: v.copy() if hasattr(v, "copy") else v for name, v in self.plugin_data.items()}
        other.allowed_nodes = self.allowed_nodes
        other.restricted_by = self.restricted_by
        other.skip_filter = self.skip_filter
        other.skip_score = self.skip_score
        other.matched_reservations = self.matched_reservations
        other.restored_nodes = self.restored_nodes
        other.nominated_reservations = dict(self.nominated_reservations)
        other.pre_allocated_pods = dict(self.pre_allocated_pods)
        other.numa_affinity = dict(self.numa_affinity)
        return other
