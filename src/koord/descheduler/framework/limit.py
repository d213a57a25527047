"""One descheduling round: run every profile's plugins and collect what they propose within the limits.

    ready nodes -> all Deschedule plugins -> all Balance plugins -> effects
                        |  filters, limits, evictor accepts  |
                        +-- later plugins see each proposal as if it were already under way
"""

from __future__ import annotations

from collections import Counter

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How many pods one round may evict per node, per namespace and in total, over all profiles. None is no limit."""

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None


class Tally:
    """Counts the evictions of one round and compares them with its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()
        self._total = 0

    def refuses(self, node: str, namespace: str) -> str | None:
        limits = self._limits
        if node and limits.per_node is not None and self._nodes[node] >= limits.per_node:
            return f"the limit of {limits.per_node} evictions per node is reached on {node}"
        if limits.per_namespace is not None and self._namespaces[namespace] >= limits.per_namespace:
            return f"the limit of {limits.per_namespace} evictions per namespace is reached in {namespace}"
        if limits.total is not None and self._total >= limits.total:
            return f"the limit of {limits.total} evictions per round is reached"
        return None

    def count(self, node: str, namespace: str) -> None:
        if node:
            self._nodes[node] += 1
        self._namespaces[namespace] += 1
        self._total += 1

    def node_is_full(self, node: str) -> bool:
        return self._limits.per_node is not None and self._nodes[node] >= self._limits.per_node
