"""Bounds of histograms, computed as Kubernetes computes them so that the served numbers are the same text."""

from __future__ import annotations

DEFAULT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def exponential(first: float, factor: float, count: int) -> tuple[float, ...]:
    bounds = []
    for _ in range(count):
        bounds.append(first)
        first *= factor
    return tuple(bounds)


def linear(first: float, width: float, count: int) -> tuple[float, ...]:
    bounds = []
    for _ in range(count):
        bounds.append(first)
        first += width
    return tuple(bounds)
