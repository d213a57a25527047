"""Hold the state of one scheduling cycle: what plugins write in PreFilter and PreScore and read later."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, TypeVar

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo


class RestoredNodes(Protocol):
    """Tell which nodes the pods of one class see without some of the pods on them, which hold resources for them.

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
    and are shared otherwise, so a plugin whose value changes in `add_pod` must give it a `copy`.
    """

    __slots__ = (
        "allowed_nodes",
        "plugin_data",
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
        # Nodes that such a pod sees without some of the pods on them; a plugin sets it before PreFilter.
        self.restored_nodes: RestoredNodes | None = None

    def restrict_nodes(self, names: frozenset[str], plugin: str) -> None:
        self.allowed_nodes = names if self.allowed_nodes is None else self.allowed_nodes & names
        self.restricted_by = tuple(sorted({*self.restricted_by, plugin}))

    def sees_without(self, other: PodInfo, node_name: str) -> bool:
        """Return whether the pod of this cycle sees the node without this pod."""
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
        other.restored_nodes = self.restored_nodes
        return other
