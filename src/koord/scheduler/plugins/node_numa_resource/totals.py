"""The score of nodes by their totals: keep them even, or fill them up. Where nothing is amplified and no NUMA nodes
are chosen this is all there is to it, so it is worked out for all rows at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from koord.policy.topology.score import MAX_SCORE, Scorer
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.state.table import Ints, NodeTable, Rows

# As long as a hundredfold is exact as a float, cutting a quotient of floats gives what dividing whole numbers gives.
_EXACT = (1 << 53) // MAX_SCORE


def score_totals(scorer: Scorer, amounts: Mapping[str, int], table: NodeTable, rows: Rows) -> Scores:
    """As `Scorer.score` says of each node."""
    counted = scorer.counted(amounts)
    size = len(table.alive[rows])
    total: npt.NDArray[np.float64] = np.zeros(size)
    weights, missing = 0, []
    for name, weight in counted:
        there = table.allocatable(name)[rows]
        share = percent(scorer, there, table.requested(name)[rows], amounts.get(name, 0))
        if np.count_nonzero(there) != (table.live if isinstance(rows, slice) else size):
            missing.append((there == 0, weight))
        total += share if weight == 1 else share * weight
        weights += weight
    if not weights:
        return np.zeros(size, np.int64)
    if not missing:
        total /= weights
        return total.astype(np.int64)
    present = np.full(size, weights, np.int64)
    for absent, weight in missing:
        present -= absent * weight
    return (total / np.maximum(present, 1)).astype(np.int64)


def percent(scorer: Scorer, there: Ints, taken: Ints, asked: int) -> npt.NDArray[np.float64]:
    """In percent, cut to whole ones; nothing where there is none of it."""
    if scorer.fills_up:
        part = np.minimum(taken + asked, there)
    else:
        part = np.maximum(there - taken - asked, 0)
    part *= MAX_SCORE
    if there.size and int(there.max()) > _EXACT:
        found: npt.NDArray[np.float64] = (part // np.maximum(there, 1)).astype(np.float64)
        return found
    share: npt.NDArray[np.float64] = part / np.maximum(there, 1)
    return np.floor(share, out=share)
