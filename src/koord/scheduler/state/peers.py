"""Represent a pod in the scheduler's cache: its identity, its shape, its label group, and where it is.

A label group is all pods of one namespace with equal labels: no selector can tell them apart. Where they are placed is
counted by `selector_counts`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any
from weakref import WeakValueDictionary


class Peers:
    """Hold a namespace and a label set that some pods share.

    `memo` is where plugins keep what they derive from the two; it goes with the last such pod.
    """

    __slots__ = ("__weakref__", "labels", "memo", "namespace")

    def __init__(self, namespace: str, labels: Mapping[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        self.memo: dict[Hashable, Any] = {}

    def __repr__(self) -> str:
        return f"Peers({self.namespace}, {dict(self.labels)})"


class Crowd:
    """Intern one group for each namespace and label set that some pod has."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, Peers] = WeakValueDictionary()

    def of(self, namespace: str, labels: Mapping[str, str]) -> Peers:
        key = (namespace, frozenset(labels.items()))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Peers(namespace, labels)
        return known

    def __len__(self) -> int:
        return len(self._known)
