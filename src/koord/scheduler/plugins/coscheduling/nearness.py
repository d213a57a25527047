"""This module ranks nodes by their proximity in the network to pods with the same network topology selector."""

from __future__ import annotations

from collections import Counter

import numpy as np

from koord.api.annotations.network_topology import selector
from koord.scheduler.plugins.coscheduling.network_map import NetworkMap
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import Ints, NodeTable, RowList


def existing_of(table: NodeTable, kind: str) -> dict[int, int]:
    """Return the number of pods with this selector by row, where there are any. Only changed nodes are counted
    again.
    """
    counts = table.column("network topology selectors", object, _selectors)
    return {row: found[kind] for row, found in enumerate(counts.tolist()) if found and kind in found}


def _selectors(node: NodeInfo) -> dict[str, int] | None:
    found = Counter(kind for pod in node.pods.values() if (kind := selector(pod.annotations)))
    return dict(found) if found else None


def distances(network: NetworkMap, table: NodeTable, kind: str, feasible: RowList) -> Ints:
    """Return each feasible row's rank by proximity.

    Rows are ordered by the pods with the selector on the node, then in each domain upwards; then by the fewest
    feasible nodes; then by name. Nodes outside the network come last.
    """
    rows, domains = network.rows, network.domains
    fits = np.zeros(table.size, np.bool_)
    fits[feasible] = True
    offer = fits[rows].astype(np.int64)
    existing = np.zeros(table.size, np.int64)
    for row, count in existing_of(table, kind).items():
        existing[row] = count
    there = existing[rows]
    offers, counts = [offer], [there]
    for domain in domains:
        offers.append(np.bincount(domain, offer).astype(np.int64)[domain])
        counts.append(np.bincount(domain, there).astype(np.int64)[domain])
    # The last key counts most.
    keys = [network.order, *reversed(offers), *(-count for count in reversed(counts))]
    line = np.lexsort(keys)
    line = line[offer[line] == 1]
    found = np.full(table.size, len(line), np.int64)
    found[rows[line]] = np.arange(len(line))
    return found
