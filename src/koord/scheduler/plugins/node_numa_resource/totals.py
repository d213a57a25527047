"""Free or taken parts of NUMA nodes in percent, for all rows at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from koord.policy.topology.score import MAX_SCORE, Scorer
from koord.scheduler.plugins.fullness import EXACT
from koord.scheduler.state.table import Ints

Floats = npt.NDArray[np.float64]


def percent(scorer: Scorer, there: Ints, taken: Ints, asked: int) -> Floats:
    """In percent, cut to whole ones; nothing where there is none of it."""
    part = np.minimum(taken + asked, there) if scorer.fills_up else np.maximum(there - taken - asked, 0)
    return _percent(part, _divisor(there))


def _divisor(there: Ints) -> Ints | Floats:
    """As floats, which take a fraction of the time, where these are exact."""
    divisor: Ints = np.maximum(there, 1)
    return divisor.astype(np.float64) if not there.size or int(there.max()) <= EXACT else divisor


def _percent(part: Ints, divisor: Ints | Floats) -> Floats:
    """Changes `part`."""
    part *= MAX_SCORE
    if divisor.dtype != np.float64:
        return (part // divisor).astype(np.float64)
    share: Floats = part / divisor
    return np.floor(share, out=share)
