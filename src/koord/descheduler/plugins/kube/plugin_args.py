"""Loading and validation of the arguments that these plugins share, and the pod filter that they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from koord.api.config.decode import decode_strict
from koord.api.config.descheduler.plugin_args import API_VERSION, DeschedulerPluginArgs, NamespaceFilter
from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import recorded_qos_class
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictorHandle
from koord.descheduler.framework.pod_selection import PodFilter, build_selector
from koord.values.selector import SelectorError

A = TypeVar("A", bound=DeschedulerPluginArgs)

BOTH_NAMESPACES = "only one of Include/Exclude namespaces can be set"
_QOS_ORDER = {BEST_EFFORT: 0, BURSTABLE: 1, GUARANTEED: 2}


class PodSelectionArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    """The arguments that select the pods of most plugins."""

    namespaces: NamespaceFilter | None = None
    label_selector: LabelSelector | None = None


S = TypeVar("S", bound=PodSelectionArgs)


def selection_errors(args: PodSelectionArgs) -> list[str]:
    return namespace_errors(args.namespaces) + selector_errors(args.label_selector)


def namespace_errors(given: NamespaceFilter | None) -> list[str]:
    return [BOTH_NAMESPACES] if given is not None and given.include and given.exclude else []


def selector_errors(given: LabelSelector | None) -> list[str]:
    try:
        build_selector(given)
    except SelectorError as error:
        return [f"failed to get label selectors from strategy's params: {error}"]
    return []


def plugin_factory(
    plugin: type[DeschedulerPlugin], model: type[A], errors: Callable[[A], list[str]]
) -> Callable[[Any], DeschedulerPlugin | list[str]]:
    """Return the factory of a plugin: it decodes raw arguments strictly, then validates them."""

    def build(raw: Any) -> DeschedulerPlugin | list[str]:
        document, kind = raw or {}, f"{plugin.name}Args"
        for field, wanted in (("apiVersion", API_VERSION), ("kind", kind)):
            if document.get(field, wanted) != wanted:
                return [f"args for plugin {plugin.name} were not of type {kind}: {field} is {document[field]!r}"]
        args = decode_strict(document, model)
        return [str(error) for error in args] if isinstance(args, list) else errors(args) or plugin(args)

    return build


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


class PodSelectionPlugin(DeschedulerPlugin, Generic[S]):
    """A plugin whose arguments select the pods that it may evict."""

    def __init__(self, args: S) -> None:
        self._args = args
        self._evictable_filter = EvictablePodFilter(args.namespaces, args.label_selector)


def priority_qos_sort_key(pod: Pod) -> tuple[int, int]:
    return pod.spec.priority or 0, _QOS_ORDER.get(pod.status.qos_class or recorded_qos_class(pod), 0)
