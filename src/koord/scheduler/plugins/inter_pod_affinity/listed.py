"""NamespaceLister reads namespace labels from the scheduler's lister."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.builtin import NAMESPACES
from koord.scheduler.framework.handle import Handle
from koord.values.selector import Selector

_NO_LABELS: Mapping[str, str] = {}


class ListedNamespaces:
    """The namespace labels of the scheduler's lister."""
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
