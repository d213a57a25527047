"""This module maps the network between the nodes, ranks nodes by proximity, and plans the nodes of a whole
gang.

The tree is kept until the topology labels of a node change. The choice of domains itself is in
`network_topology`; the planner finds how many members fit each node, by dry runs with the filters of the
profile.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from koord.api.custom import CLUSTER_NETWORK_TOPOLOGIES
from koord.api.koord_scheduling import ClusterNetworkTopologySpec
from koord.policy.gang.network import Broken, Place, tree_of
from koord.scheduler.framework.handle import Handle
from koord.scheduler.state.table import Ints, RowList

NAME = "default"  # of the one ClusterNetworkTopology that counts


class NetworkMap:
    def __init__(self, handle: Handle) -> None:
        self.topologies = handle.lister(CLUSTER_NETWORK_TOPOLOGIES)
        self._state = handle.state
        self._of: tuple[ClusterNetworkTopologySpec, int] | None = None  # with the layout of the table
        self._position = -1
        self._labels: dict[int, Mapping[str, str]] = {}  # by row, as the tree knows them
        self._tree: Place | Broken | None = None
        self.leaves: list[tuple[int, Place]] = []  # by row
        # The same in columns: per leaf its row, its place by name, and the number of its domain in each layer upwards.
        self.rows: RowList = np.zeros(0, np.intp)
        self.order: Ints = np.zeros(0, np.int64)
        self.domains: tuple[RowList, ...] = ()

    @property
    def declared(self) -> ClusterNetworkTopologySpec | None:
        topology = self.topologies.get("", NAME)
        return topology.spec if topology is not None else None

    def tree(self) -> Place | Broken | None:
        """Return the tree; None when no network topology is declared. The counts on its leaves are the last caller's.

        """
        declared = self.declared
        if declared is None:
            return None
        of = (declared, self._state.table.layout)
        if of != self._of or self._relabelled():
            self._of = of
            self._labels = {node.row: node.labels or {} for node in self._state.nodes() if node.node}
            named = ((n.name, self._labels[n.row]) for n in self._state.nodes() if n.node)
            self._tree = tree_of(declared, named)
            index = self._state.table.index
            leaves = self._tree.leaves() if isinstance(self._tree, Place) else ()
            self.leaves = [(index[leaf.name].row, leaf) for leaf in leaves]
            self._lay_out()
        self._position = self._state.table.node_changes.position
        return self._tree

    def _lay_out(self) -> None:
        self.rows = np.asarray([row for row, _ in self.leaves], np.intp)
        by_name = sorted(range(len(self.leaves)), key=lambda i: self.leaves[i][1].name)
        self.order = np.zeros(len(by_name), np.int64)
        self.order[by_name] = np.arange(len(by_name))
        layers: list[RowList] = []
        places = [leaf.parent for _, leaf in self.leaves]
        while places and places[0] is not None:
            numbers: dict[int, int] = {}
            layers.append(np.asarray([numbers.setdefault(id(place), len(numbers)) for place in places], np.intp))
            places = [place.parent if place is not None else None for place in places]
        self.domains = tuple(layers)

    def _relabelled(self) -> bool:
        """Return whether the labels of a node changed: nodes change all the time, where they are hardly ever."""
        table = self._state.table
        changed = table.node_changes.since(self._position)
        if changed is None:
            return True
        for row in changed:
            node = table.nodes[row]
            labels = node.labels or {} if node is not None and node.node is not None else None
            if self._labels.get(row) != labels:
                return True
        return False
