"""This module sets how long stateful property tests run: little in every run, KOORD_SOAK events in `make
soak`.
"""

from __future__ import annotations

import os


def events(usual: int) -> int:
    return max(usual, int(os.environ.get("KOORD_SOAK", "0")))


def runs(usual: int, steps: int) -> int:
    """Return the number of runs of so many steps."""
    return events(usual * steps) // steps
