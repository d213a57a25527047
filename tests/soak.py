"""How long machines of events run: a little in every run, and for as many events as KOORD_SOAK says in `make soak`."""

from __future__ import annotations

import os


def events(usual: int) -> int:
    return max(usual, int(os.environ.get("KOORD_SOAK", "0")))


def runs(usual: int, steps: int) -> int:
    """As many runs of so many steps."""
    return events(usual * steps) // steps
