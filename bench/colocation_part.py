"""What a part of the co-location benchmark measured: each measure alone, beside unmanaged and beside managed work."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

ALONE, UNMANAGED, MANAGED = "alone", "unmanaged", "managed"
LESS, MORE = "less", "more"
STATES = (ALONE, UNMANAGED, MANAGED)


def medians(rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the median over the rounds of each number, for each state."""
    return {
        state: {key: statistics.median(one[key] for one in rows) for key in rows[0]} for state, rows in rounds.items()
    }


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the service or of batch work, in each state."""

    name: str
    unit: str
    alone: float
    unmanaged: float
    managed: float
    better: str = LESS

    @staticmethod
    def of(name: str, unit: str, states: Mapping[str, Mapping[str, float]], key: str, *, better: str = LESS) -> Measure:
        alone, unmanaged, managed = (float(states[state][key]) for state in STATES)
        return Measure(name=name, unit=unit, alone=alone, unmanaged=unmanaged, managed=managed, better=better)

    @property
    def against_alone(self) -> float | None:
        """Return the managed value in terms of the one alone; None where there is nothing to compare with."""
        return self.managed / self.alone if self.alone else None


class PartResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="measured"):
    """A part that ran. Its first measures are those that the chart shows."""

    part: str
    goal: str
    goal_met: bool
    measures: tuple[Measure, ...]
    charted: int = 1  # how many of the measures the chart shows
    details: Mapping[str, Any] = {}


class Skipped(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="skipped"):
    part: str
    reason: str
