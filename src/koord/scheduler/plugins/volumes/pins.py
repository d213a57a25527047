"""This module matches PersistentVolumes with claims: an index of all volumes, and the volumes that suit one
claim.

Thousands of local volumes or storage pools differ in one label value only; those cost one look per node,
not one each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from koord.scheduler.state.table import Bools, NodeTable, RowList, Rows

Pin = tuple[str, tuple[str, ...]]  # a label, and the values that it may have


def near_pins(pins: Mapping[str, Iterable[str]], table: NodeTable, rows: Rows) -> Bools:
    """Return the rows whose nodes have one of the values of one of the labels."""
    mask = np.zeros(len(table.alive[rows]), np.bool_)
    for key, values in pins.items():
        held = frozenset(values)
        if len(held) == 1:
            (only,) = held
            code = table.label(key).code_of(only)
            if code is not None:
                mask |= table.label(key).codes[rows] == code
        elif held:
            mask |= table.label(key).spread(rows, held.__contains__) != 0
    return mask


def alike(keys: Iterable[str], table: NodeTable, rows: Rows) -> tuple[RowList, RowList]:
    """Group rows whose nodes have equal values of these labels: return a row of each group, and each row's group."""
    alive = table.alive[rows]
    groups: RowList = alive.astype(np.intp)  # rows without a node are no match for nodes without labels
    for key in sorted(keys):
        label = table.label(key)
        _, groups = np.unique(groups * len(label.words) + label.codes[rows], return_inverse=True)
    _, firsts, groups = np.unique(groups, return_index=True, return_inverse=True)
    return firsts, groups
