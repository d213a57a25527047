"""Loading and validation of the arguments that these plugins share, and the pod filter that they describe."""

from __future__ import annotations

from typing import Any, TypeVar

from koord.api.config.decode import decode_strict
from koord.api.config.descheduler.plugin_args import API_VERSION, DeschedulerPluginArgs, NamespaceFilter
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.pod_filter import PodFilter, build_selector
from koord.descheduler.framework.round import EvictorHandle
from koord.values.selector import SelectorError

A = TypeVar("A", bound=DeschedulerPluginArgs)

BOTH_NAMESPACES = "only one of Include/Exclude namespaces can be set"


def load_args(plugin: str, model: type[A], raw: Any) -> A | list[str]:
    document = raw or {}
    for field, wanted in (("apiVersion", API_VERSION), ("kind", f"{plugin}Args")):
        if document.get(field, wanted) != wanted:
            return [f"args for plugin {plugin} were not of type {plugin}Args: {field} is {document[field]!r}"]
    made = decode_strict(document, model)
    return [str(error) for error in made] if isinstance(made, list) else made


def namespace_errors(given: NamespaceFilter | None) -> list[str]:
    return [BOTH_NAMESPACES] if given is not None and given.include and given.exclude else []


def selector_errors(given: LabelSelector | None) -> list[str]:
    try:
        build_selector(given)
    except SelectorError as error:
        return [f"failed to get label selectors from strategy's params: {error}"]
    return []


class EvictablePodFilter:
    """Matches the pods that a plugin may evict: by namespace, by label, and by the filters of the profile."""

    def __init__(self, namespaces: NamespaceFilter | None, labels: LabelSelector | None) -> None:
        self._pod_filter = PodFilter(namespaces)
        self._label_selector = build_selector(labels)

    def matches(self, pod: Pod) -> bool:
        if not self._pod_filter.matches_namespace(pod.metadata.namespace):
            return False
        return self._label_selector is None or self._label_selector.matches(pod.metadata.labels)

    def is_evictable(self, pod: Pod, handle: EvictorHandle) -> bool:
        return self.matches(pod) and handle.filter(pod) is None
