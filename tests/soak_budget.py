"""This module sets how long stateful property tests run: little in every run, KOORD_SOAK events in `make
soak`.
"""

from __future__ import annotations

import os


def soak_events(usual: int) -> int:
    return max(usual, int(os.environ.get("KOORD_SOAK", "0")))


def soak_runs(usual: int, steps: int) -> int:
    """Return the number of runs of so many steps."""
    return soak_events(usual * steps) // steps
