"""The pod filter that a plugin's arguments describe: namespaces and label selectors."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.config.descheduler.args import Namespaces, PodSelector
from koord.api.meta import LabelSelector
from koord.descheduler.wire import Pod
from koord.values.selector import Selector


def selector_of(given: LabelSelector | None) -> Selector | None:
    """Build a selector; None selects everything. Raise SelectorError, which validation has reported before."""
    if given is None:
        return None
    return Selector.of(given.match_labels, [(e.key, e.operator, e.values) for e in given.match_expressions])


class Choice:
    """Matches pods by namespace, then by label selectors of which one is enough."""

    def __init__(self, namespaces: Namespaces | None = None, selectors: Iterable[PodSelector] = ()) -> None:
        self._include = frozenset(namespaces.include if namespaces is not None else ())
        self._exclude = frozenset(namespaces.exclude if namespaces is not None else ())
        self._selectors = tuple(found for each in selectors if (found := selector_of(each.selector)) is not None)

    def takes_namespace(self, namespace: str) -> bool:
        return (not self._include or namespace in self._include) and namespace not in self._exclude

    def takes_labels(self, pod: Pod) -> bool:
        return not self._selectors or any(s.matches(pod.metadata.labels) for s in self._selectors)

    def takes(self, pod: Pod) -> bool:
        return self.takes_namespace(pod.metadata.namespace) and self.takes_labels(pod)
