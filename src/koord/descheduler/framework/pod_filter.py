"""The pod filter that a plugin's arguments describe: namespaces and label selectors."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.config.descheduler.plugin_args import DeschedulerPodSelector, NamespaceFilter
from koord.api.kubernetes.meta import LabelSelector, label_selector_as_selector
from koord.api.kubernetes.pod import Pod
from koord.values.selector import Selector


def build_selector(given: LabelSelector | None) -> Selector | None:
    """Build a selector; None selects everything. Raise SelectorError, which validation has reported before."""
    return None if given is None else label_selector_as_selector(given)


class PodFilter:
    """Matches pods by namespace, then by label selectors of which one is enough."""

    def __init__(
        self, namespaces: NamespaceFilter | None = None, selectors: Iterable[DeschedulerPodSelector] = ()
    ) -> None:
        self._include = frozenset(namespaces.include if namespaces is not None else ())
        self._exclude = frozenset(namespaces.exclude if namespaces is not None else ())
        self._selectors = tuple(found for each in selectors if (found := build_selector(each.selector)) is not None)

    def matches_namespace(self, namespace: str) -> bool:
        return (not self._include or namespace in self._include) and namespace not in self._exclude

    def matches_labels(self, pod: Pod) -> bool:
        return not self._selectors or any(s.matches(pod.metadata.labels) for s in self._selectors)

    def matches(self, pod: Pod) -> bool:
        return self.matches_namespace(pod.metadata.namespace) and self.matches_labels(pod)
