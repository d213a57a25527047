"""Detect latency-sensitive pods that run worse than their own past: more cycles per instruction, or more stalls.

A baseline is a mean and a spread that follow slowly; an outlier enters it only up to the edge, so that a long
disturbance does not become normal within minutes, while a lasting change does in the end. One bad sample is noise: a
finding takes several in a row, and ends after as many good ones. Whether to act on it is left to others.
"""

from __future__ import annotations

import math

HALF_LIFE_S = 3600.0
LEAST_SAMPLES = 10


class Baseline:
    """The normal range of one metric of one pod. `floor` is the smallest spread: below it, differences are noise."""

    __slots__ = ("_floor", "_half_life_s", "_last_s", "_mean", "_square", "_weight", "samples")

    def __init__(self, floor: float, half_life_s: float = HALF_LIFE_S) -> None:
        self._floor = floor
        self._half_life_s = half_life_s
        self._mean = 0.0
        self._square = 0.0  # the mean of squared distances
        self._weight = 0.0
        self._last_s = 0.0
        self.samples = 0

    @property
    def mean(self) -> float:
        return self._mean

    @property
    def spread(self) -> float:
        """Return the standard deviation; never below the floor, nor below a twentieth of the mean."""
        return max(math.sqrt(max(self._square, 0.0)), self._floor, abs(self._mean) / 20)

    @property
    def known(self) -> bool:
        return self.samples >= LEAST_SAMPLES

    @property
    def last_s(self) -> float:
        return self._last_s

    def score(self, value: float) -> float:
        """Return by how many spreads the value is above normal; negative below it."""
        return (value - self._mean) / self.spread

    def add(self, at_s: float, value: float, edge: float) -> None:
        """Add a sample; it counts as at most `edge` spreads above normal."""
        if self.known:
            value = min(value, self._mean + edge * self.spread)
        gap_s = max(at_s - self._last_s, 0.0) if self.samples else 0.0
        self._weight = self._weight * 0.5 ** (gap_s / self._half_life_s) + 1.0
        step = value - self._mean
        self._mean += step / self._weight
        self._square += (step * (value - self._mean) - self._square) / self._weight
        self._last_s = max(at_s, self._last_s)
        self.samples += 1
