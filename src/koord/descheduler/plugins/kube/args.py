"""Loading and validation of the arguments that these plugins share, and the pod filter that they describe."""

from __future__ import annotations

from typing import Any, TypeVar

from koord.api.config.descheduler.args import API_VERSION, Namespaces, PluginArgs
from koord.api.config.document import load
from koord.api.meta import LabelSelector
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.choice import Choice, selector_of
from koord.descheduler.wire import Pod
from koord.values.selector import SelectorError

A = TypeVar("A", bound=PluginArgs)

BOTH_NAMESPACES = "only one of Include/Exclude namespaces can be set"


def read(plugin: str, model: type[A], raw: Any) -> A | list[str]:
    document = raw or {}
    for field, wanted in (("apiVersion", API_VERSION), ("kind", f"{plugin}Args")):
        if document.get(field, wanted) != wanted:
            return [f"args for plugin {plugin} were not of type {plugin}Args: {field} is {document[field]!r}"]
    made = load(document, model)
    return [str(error) for error in made] if isinstance(made, list) else made


def namespace_errors(given: Namespaces | None) -> list[str]:
    return [BOTH_NAMESPACES] if given is not None and given.include and given.exclude else []


def selector_error(given: LabelSelector | None) -> list[str]:
    try:
        selector_of(given)
    except SelectorError as error:
        return [f"failed to get label selectors from strategy's params: {error}"]
    return []


class Chosen:
    """Matches the pods that a plugin may evict: by namespace, by label, and by the filters of the profile."""

    def __init__(self, namespaces: Namespaces | None, labels: LabelSelector | None) -> None:
        self._choice = Choice(namespaces)
        self._labels = selector_of(labels)

    def of(self, pod: Pod) -> bool:
        if not self._choice.takes_namespace(pod.metadata.namespace):
            return False
        return self._labels is None or self._labels.matches(pod.metadata.labels)

    def takes(self, pod: Pod, hand: Hand) -> bool:
        return self.of(pod) and hand.refuses(pod) is None
