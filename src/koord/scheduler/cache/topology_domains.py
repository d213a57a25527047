"""Number the topology domains of a label, as arrays that stay the same object while no node changes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.cluster_state import ClusterState

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
