"""Labels of namespaces, which affinity terms may select by. The program feeds the index from its watch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from koord.values.selector import Selector

_NO_LABELS: Mapping[str, str] = {}


class Namespaces(Protocol):
    @property
    def version(self) -> int:
        """Moves when an answer may have changed."""

    def labels(self, name: str) -> Mapping[str, str]:
        """Empty for a namespace that is not known."""

    def selected(self, selector: Selector) -> frozenset[str]: ...


class NamespaceIndex:
    """Namespaces in memory. Only changed labels move the version."""

    def __init__(self) -> None:
        self.version = 0
        self._labels: dict[str, Mapping[str, str]] = {}

    def labels(self, name: str) -> Mapping[str, str]:
        return self._labels.get(name, _NO_LABELS)

    def selected(self, selector: Selector) -> frozenset[str]:
        return frozenset(name for name, labels in self._labels.items() if selector.matches(labels))

    def set(self, name: str, labels: Mapping[str, str]) -> None:
        if self._labels.get(name) != labels:
            self._labels[name] = dict(labels)
            self.version += 1

    def drop(self, name: str) -> None:
        if self._labels.pop(name, None) is not None:
            self.version += 1
