"""Evict pods for preemption and for quotas that are over-used, and record every eviction."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal

import msgspec

MOST = 500

Outcome = Literal["evicted", "refused", "failed"]  # the server said no; there was no answer


class Departure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Record one eviction: who wanted it, by which rule, on which numbers, why this pod, and what came of it."""
    at: float
    actor: str  # the plugin
    rule: str
    pod: str  # namespace/name
    uid: str
    node: str
    measured: str
    threshold: str
    why: str
    outcome: Outcome
    detail: str = ""


class Departures:
    """Keep the newest eviction records: what is older is in events and in the log."""
    def __init__(self, most: int = MOST) -> None:
        self._held: deque[Departure] = deque(maxlen=most)

    def add(self, departure: Departure) -> None:
        self._held.append(departure)

    def __iter__(self) -> Iterator[Departure]:
        """Iterate over the records, newest first."""
        return reversed(self._held)

    def __len__(self) -> int:
        return len(self._held)
