"""Counters, gauges and histograms of one program instance, one series for each set of label values, and
their registry.

Not thread-safe: a program changes its metrics from its event loop only, which saves a lock per
observation. Names are served as given; koord's are Kubernetes' and Koordinator's, and some of those break
the rules that client libraries enforce (a counter without `_total`), which is why this is not one of
them. There is no global registry: two programs in a process never share a number.
"""

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
