"""This module keeps the allocated and free shares of all nodes as columns that the scoring plugins share.

What one plugin has computed for a pod the next one finds. What depends on nodes alone is kept as floats and
updated row by row.

It also says which resources are counted on nodes, and computes what a node has and a pod would use of
each.

A resource is scored on a node that has some of it; one that is not built in only if the pod requests it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from koord.api.config.scheduler.in_tree_args import ResourceWeight
from koord.api.koordinator.resource_name import CPU, EPHEMERAL_STORAGE, MEMORY
from koord.api.kubernetes.pod_resources import HUGE_PAGES_PREFIX, is_extended_resource
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Bools, Ints, NodeTable, Rows
from koord.scheduler.framework.plugin import MAX_SCORE, Scores

_NATIVE = "kubernetes.io/"
_ATTACHABLE_PREFIX = "attachable-volumes-"

# In the order in which refusals name them.
BUILT_IN = (CPU, MEMORY, EPHEMERAL_STORAGE)


@lru_cache(maxsize=4096)
def is_scalar(name: str) -> bool:
    """Return whether the resource is counted as a plain number when a pod requests it, and ignored otherwise."""
    return name.startswith((HUGE_PAGES_PREFIX, _ATTACHABLE_PREFIX)) or _NATIVE in name or is_extended_resource(name)


def is_counted(name: str) -> bool:
    return name in BUILT_IN or is_scalar(name)


class ScoredResource(msgspec.Struct, frozen=True):
    """One resource that is scored for this pod: what the pod adds, and the weight of the resource."""

    name: str
    request: int
    weight: int
    nonzero: bool  # cpu and memory are scored with a default for containers that state no request

    def allocatable_and_used(self, node: NodeInfo) -> tuple[int, int]:
        """Return what is allocatable on the node, and what would be used of it with the pod."""
        if self.nonzero:
            used = node.nonzero_cpu if self.name == CPU else node.nonzero_memory
        else:
            used = node.requested.get(self.name, 0)
        return node.allocatable.get(self.name, 0), used + self.request

    def allocatable_and_used_columns(self, table: NodeTable, rows: Rows) -> tuple[Ints, Ints]:
        if self.nonzero:
            used = table.nonzero_cpu if self.name == CPU else table.nonzero_memory
        else:
            used = table.requested(self.name)
        return table.allocatable(self.name)[rows], used[rows] + self.request


def scored_resources(
    resources: Iterable[ResourceWeight], requests: dict[str, int], *, nonzero: bool
) -> tuple[ScoredResource, ...]:
    """Return the resources of the arguments that are scored for a pod with these requests.

    `nonzero`: count cpu and memory of the pods on a node with the default for containers that state no request.
    """
    return tuple(
        ScoredResource(r.name, requests.get(r.name, 0), r.weight, nonzero and r.name in (CPU, MEMORY))
        for r in resources
        if r.name in BUILT_IN or (is_scalar(r.name) and requests.get(r.name, 0))
    )


def present_resources(counted: Sequence[ScoredResource], node: NodeInfo) -> Iterator[tuple[int, int, int]]:
    """Yield (allocatable, used, weight) of each resource that the node has."""
    for resource in counted:
        capacity, used = resource.allocatable_and_used(node)
        if capacity:
            yield capacity, used, resource.weight


Floats = npt.NDArray[np.float64]
K = TypeVar("K", bound=Hashable)

# As long as a hundredfold is exact as a float, cutting a quotient of floats gives what dividing whole numbers gives:
# the next whole number is at least 1/capacity away, and a quotient below 101 is off by less than 101 / 2^53.
EXACT_FLOAT_LIMIT = (1 << 53) // (MAX_SCORE + 1)
_COLUMNS_KEPT = 32
_MAX_STALE_ROWS = 64  # changed rows, up to which bringing a column up to date is cheaper than making it anew
_MEANS_KEPT = 4
_NONZERO_RESOURCES = (CPU, MEMORY)  # counted with a default where containers state nothing

MeanKey = tuple[bool, tuple[tuple[str, bool, int, int], ...]]


class AllocationColumns:
    """The columns of one node table; get them with `table.derived(AllocationColumns)`."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._by_resource: dict[tuple[str, bool], _ResourceColumns] = {}
        self._position = self._nodes_at = -1
        self._means: OrderedDict[MeanKey, Scores] = OrderedDict()  # of all rows, at this position

    def _refresh(self) -> None:
        table = self._table
        position, nodes_at = table.position, table.node_changes.position
        if position == self._position:
            return
        self._means.clear()
        changed = table.changed_since(self._position)
        if nodes_at != self._nodes_at or changed is None:
            self._by_resource.clear()
        else:
            for known in self._by_resource.values():
                known.update_rows(changed)
        self._position, self._nodes_at = position, nodes_at

    def resource(self, share: ScoredResource) -> _ResourceColumns:
        self._refresh()
        key = (share.name, share.nonzero)
        known = self._by_resource.get(key)
        if known is None or known.size != self._table.size:
            known = self._by_resource[key] = _ResourceColumns(self._table, share.name, nonzero=share.nonzero)
        return known

    def weighted_mean_percent(self, counted: Sequence[ScoredResource], rows: Rows, *, fills_up: bool) -> Scores:
        """Return the weighted mean percentage that is free (used, with `fills_up`) of each row's resources."""
        if not isinstance(rows, slice):
            return self._compute_mean(counted, rows, fills_up=fills_up)
        self._refresh()
        means = self._means
        key = (fills_up, tuple([(s.name, s.nonzero, s.request, s.weight) for s in counted]))
        found = means.get(key)
        if found is None:
            found = self._from_other_nonzero_mode(key, counted)
            if found is None:
                found = self._compute_mean(counted, rows, fills_up=fills_up)
            means[key] = found
            if len(means) > _MEANS_KEPT:
                means.popitem(last=False)
        return found.copy()

    def _from_other_nonzero_mode(self, key: MeanKey, counted: Sequence[ScoredResource]) -> Scores | None:
        """Derive the mean from the one that counts unstated requests the other way, if that is known.

        The two differ only on nodes with pods that state no request, which are few: only those rows are computed
        again.
        """
        unstated = self._table.rows_without_requests
        if not self._means or 4 * len(unstated) > self._table.size:
            return None
        fills_up, parts = key
        turned = [(name, not nonzero and name in _NONZERO_RESOURCES, n, weight) for name, nonzero, n, weight in parts]
        other = self._means.get((fills_up, tuple(turned)))
        if other is None:
            return None
        if not unstated:
            return other
        rows = np.fromiter(unstated, np.intp, len(unstated))
        found = other.copy()
        found[rows] = self._compute_mean(counted, rows, fills_up=fills_up)
        return found

    def _compute_mean(self, counted: Sequence[ScoredResource], rows: Rows, *, fills_up: bool) -> Scores:
        total: Floats | None = None
        weights, missing = 0, []
        for share in counted:
            known = self.resource(share)
            percent = known.percent(rows, share.request, fills_up=fills_up)
            if known.absent is not None:
                missing.append((known.absent[rows], share.weight))
            percent = percent if share.weight == 1 else percent * share.weight  # what is kept must stay as it is
            total = percent if total is None else total + percent
            weights += share.weight
        if total is None or not weights:
            return np.zeros(len(self._table.alive[rows]), np.int64)
        if missing:
            present = np.full(len(total), weights, np.int64)
            for absent, weight in missing:
                present -= absent * weight
            return (total / np.maximum(present, 1)).astype(np.int64)
        return (total / weights).astype(np.int64)


class _ResourceColumns:
    """The columns of one resource, with the percent and fraction columns of the last requested amounts.

    `exact`: all its amounts are exact as floats. `absent`: the rows without any of it, None when there are
    none. Many pods request the same round amounts, so the columns of the amounts requested last are kept.
    """

    __slots__ = (
        "_allocatable",
        "_capacity",
        "_fraction_columns",
        "_free_hundredfold",
        "_percent_columns",
        "_table",
        "_used",
        "_used_float",
        "absent",
        "exact",
        "size",
    )

    def __init__(self, table: NodeTable, name: str, *, nonzero: bool) -> None:
        self._table = table
        self._percent_columns: OrderedDict[tuple[int, bool], tuple[int, Floats]] = (
            OrderedDict()
        )  # with what it holds up to
        self._fraction_columns: OrderedDict[int, tuple[int, Floats]] = OrderedDict()
        there = self._allocatable = table.allocatable(name)
        if nonzero:
            self._used: Ints = table.nonzero_cpu if name == CPU else table.nonzero_memory
        else:
            self._used = table.requested(name)
        self.size = table.size
        self.exact = not there.size or int(there.max()) <= EXACT_FLOAT_LIMIT
        self._capacity: Floats = np.maximum(there, 1).astype(np.float64)
        self._used_float: Floats = self._used.astype(np.float64)
        self._free_hundredfold: Floats = (there - self._used).astype(np.float64) * MAX_SCORE
        self.absent: Bools | None = None if np.count_nonzero(there) == table.live else there == 0

    def update_rows(self, rows: Iterable[int]) -> None:
        for row in rows:
            used = self._used[row]
            self._used_float[row] = used
            self._free_hundredfold[row] = int(self._allocatable[row] - used) * MAX_SCORE

    def percent(self, rows: Rows, request: int, *, fills_up: bool) -> Floats:
        """Return the percentage truncated to integers, 0 where a row has none. The caller must not change it."""
        if not self.exact:
            return self._compute_percent_in_integers(rows, request, fills_up=fills_up)
        if not isinstance(rows, slice):
            return self._compute_percent(rows, request, fills_up=fills_up)
        key = (request, fills_up)
        column, stale = self._cached(self._percent_columns.pop(key, None))
        if column is None:
            column = self._compute_percent(rows, request, fills_up=fills_up)
        elif len(stale):
            column[stale] = self._compute_percent(stale, request, fills_up=fills_up)
        self._store(self._percent_columns, key, column)
        return column

    def fraction(self, rows: Rows, request: int) -> Floats:
        """Return what would be used as a fraction of capacity, at most 1. The caller must not change the result."""
        if not isinstance(rows, slice):
            return self._compute_fraction(rows, request)
        column, stale = self._cached(self._fraction_columns.pop(request, None))
        if column is None:
            column = self._compute_fraction(rows, request)
        elif len(stale):
            column[stale] = self._compute_fraction(stale, request)
        self._store(self._fraction_columns, request, column)
        return column

    def _cached(self, known: tuple[int, Floats] | None) -> tuple[Floats | None, npt.NDArray[np.intp]]:
        changed = self._table.changed_since(known[0]) if known is not None else None
        if known is None or changed is None or len(changed) > _MAX_STALE_ROWS:
            return None, np.zeros(0, np.intp)
        return known[1], np.asarray(changed, np.intp)

    def _store(self, among: OrderedDict[K, tuple[int, Floats]], key: K, column: Floats) -> None:
        among[key] = (self._table.position, column)
        if len(among) > _COLUMNS_KEPT:
            among.popitem(last=False)

    def _compute_percent(self, rows: Rows, request: int, *, fills_up: bool) -> Floats:
        share: Floats = self._free_hundredfold[rows] - request * MAX_SCORE
        np.maximum(share, 0, out=share)
        share /= self._capacity[rows]
        if fills_up:  # what is not left is taken; of nothing nothing is
            np.subtract(MAX_SCORE, np.ceil(share, out=share), out=share)
            if self.absent is not None:
                share[self.absent[rows]] = 0
            return share
        return np.floor(share, out=share)

    def _compute_percent_in_integers(self, rows: Rows, request: int, *, fills_up: bool) -> Floats:
        """Compute the percentage with integers, where floats would not be exact."""
        there, used = self._allocatable[rows], self._used[rows] + request
        part = np.minimum(used, there) if fills_up else np.maximum(there - used, 0)
        return (part * MAX_SCORE // np.maximum(there, 1)).astype(np.float64)

    def _compute_fraction(self, rows: Rows, request: int) -> Floats:
        if self.exact:
            taken: Floats = self._used_float[rows] + request
            taken /= self._capacity[rows]
        else:
            taken = (self._used[rows] + request) / np.maximum(self._allocatable[rows], 1)
        return np.minimum(taken, 1.0, out=taken)
