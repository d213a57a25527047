"""Hold the state of one scheduling cycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from koord.scheduler.framework.reserved import Reserved, Restored
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.values.bitmask import BitMask

T = TypeVar("T")


class Cycle:
    """Hold what plugins computed for one pod, or for one class of equal pods, under their names in `plugin_data`.

    A dry run (preemption, what-if) works on `fork()`: values are copied by their own `copy` method if they have one, and
    are shared otherwise, so a plugin whose value changes in `add_pod` must give it a `copy`.
    """

    __slots__ = (
        "kept",
        "narrowed_by",
        "nominated",
        "only",
        "reserved",
        "restored",
        "skip_filter",
        "skip_score",
        "state",
        "taken_over",
        "zones",
    )

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.kept: dict[str, Any] = {}
        self.only: frozenset[str] | None = None  # names that PreFilter narrowed the search to
        self.narrowed_by: tuple[str, ...] = ()  # the plugins that did so
        self.skip_filter: frozenset[str] = frozenset()
        self.skip_score: frozenset[str] = frozenset()
        self.reserved: Mapping[str, tuple[Reserved, ...]] = {}  # by node: the reservations that such a pod may use
        self.restored: Restored | None = None  # nodes that such a pod sees without the reserve pods on them
        self.nominated: dict[str, Reserved] = {}  # by pod uid: the reservation it is about to take, set before Reserve
        # By uid of a reserve pod: the running pods that become its owners, set before Reserve too.
        self.taken_over: dict[str, tuple[str, ...]] = {}
        self.zones: dict[str, BitMask | None] = {}  # by uid: its NUMA nodes, set in Reserve; None: any of them

    def narrow(self, names: frozenset[str], plugin: str) -> None:
        self.only = names if self.only is None else self.only & names
        self.narrowed_by = tuple(sorted({*self.narrowed_by, plugin}))

    def takes_over(self, other: PodInfo, node_name: str) -> bool:
        """Return whether the pod of this cycle is a reserve pod that pre-allocates this running pod."""
        node = self.state.node(node_name) if self.restored is not None else None
        return node is not None and self.restored is not None and other in self.restored.holders(node)

    def keep(self, plugin: str, value: Any) -> None:
        self.kept[plugin] = value

    def of(self, plugin: str, kind: type[T]) -> T:
        """Return what the plugin wrote; a value of another type is a mistake in the plugin."""
        value = self.kept.get(plugin)
        if not isinstance(value, kind):
            raise TypeError(f"{plugin} kept {type(value).__name__} where {kind.__name__} was expected")
        return value

    def fork(self) -> Cycle:
        other = Cycle(self.state)
        other.kept = {name: v.copy() if hasattr(v, "copy") else v for name, v in self.kept.items()}
        other.only = self.only
        other.narrowed_by = self.narrowed_by
        other.skip_filter = self.skip_filter
        other.skip_score = self.skip_score
        other.reserved = self.reserved
        other.restored = self.restored
        other.nominated = dict(self.nominated)
        other.taken_over = dict(self.taken_over)
        other.zones = dict(self.zones)
        return other
