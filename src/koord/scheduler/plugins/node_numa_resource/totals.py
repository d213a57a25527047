"""ZoneColumns keeps the NUMA nodes of all nodes as columns, for pods that must fit into one NUMA node.

It says exactly what hints and their merging say where these come down to comparing numbers: nodes with a
few NUMA nodes, equal cores and no amplification. Other nodes (not in `decidable_rows`) are evaluated one by one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from koord.policy.topology.score import MAX_SCORE, Scorer
from koord.scheduler.plugins.fullness import EXACT
from koord.scheduler.state.table import Ints

Floats = npt.NDArray[np.float64]


def percent(scorer: Scorer, there: Ints, taken: Ints, asked: int) -> Floats:
    """Return the free or used percentage truncated to integers; 0 where there is no capacity."""
    part = np.minimum(taken + asked, there) if scorer.fills_up else np.maximum(there - taken - asked, 0)
    return _percent(part, _divisor(there))


def _divisor(there: Ints) -> Ints | Floats:
    """Return the divisor as floats, which are much faster, where these are exact."""
    divisor: Ints = np.maximum(there, 1)
    return divisor.astype(np.float64) if not there.size or int(there.max()) <= EXACT else divisor


def _percent(part: Ints, divisor: Ints | Floats) -> Floats:
    """Compute the percentage in place: `part` is changed."""
    part *= MAX_SCORE
    if divisor.dtype != np.float64:
        return (part // divisor).astype(np.float64)
    share: Floats = part / divisor
    return np.floor(share, out=share)
