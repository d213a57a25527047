"""This module holds the labels of namespaces, which affinity terms may select by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from koord.api.kubernetes.builtin_kinds import NAMESPACES
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.scheduler.framework.handle import Handle
from koord.values.selector import Selector

_NO_LABELS: Mapping[str, str] = {}


class NamespaceLabels(Protocol):
    @property
    def version(self) -> int:
        """Return a number that changes when an answer may have changed."""

    def labels(self, name: str) -> Mapping[str, str]:
        """Return the labels; empty for an unknown namespace."""

    def selected(self, selector: Selector) -> frozenset[str]: ...


class NamespaceIndex:
    """Namespace labels in memory. Only changed labels change the version."""

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


class NamespaceLister:
    """The namespace labels of the scheduler's lister."""

    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("", ("namespaces",), READ_VERBS),)

    def __init__(self, handle: Handle) -> None:
        self._lister = handle.lister(NAMESPACES)

    @property
    def version(self) -> int:
        return self._lister.version

    def labels(self, name: str) -> Mapping[str, str]:
        found = self._lister.get("", name)
        return found.metadata.labels if found is not None else _NO_LABELS

    def selected(self, selector: Selector) -> frozenset[str]:
        listed = self._lister.list()
        return frozenset(each.metadata.name for each in listed if selector.matches(each.metadata.labels))
