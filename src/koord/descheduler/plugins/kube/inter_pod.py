"""The plugins that evict pods because of others: RemoveDuplicates and RemovePodsViolatingInterPodAntiAffinity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import ClassVar

from koord.api.config.descheduler.plugin_args import DeschedulerPluginArgs, NamespaceFilter
from koord.api.kubernetes.affinity import PodAffinityTerm
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictorHandle
from koord.descheduler.framework.pod_selection import build_selector
from koord.descheduler.plugins.kube import plugin_args
from koord.policy.node_match import find_untolerated_taint, matches_node_affinity

DuplicateKey = tuple[tuple[str, str, str, str], ...]  # namespace, kind and name of each owner, with an image


class RemoveDuplicatesArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    namespaces: NamespaceFilter | None = None
    exclude_owner_kinds: tuple[str, ...] = ()


class RemoveDuplicates(DeschedulerPlugin):
    name: ClassVar[str] = "RemoveDuplicates"

    def __init__(self, args: RemoveDuplicatesArgs) -> None:
        self._args = args
        self._evictable_filter = plugin_args.EvictablePodFilter(args.namespaces, None)

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        crowds: dict[DuplicateKey, dict[str, list[Pod]]] = {}
        for node in nodes:
            for pod in handle.snapshot.pods_on_node(node.metadata.name):
                make = _duplicate_key(pod)
                if make and not self._excluded(pod) and self._evictable_filter.is_evictable(pod, handle):
                    crowds.setdefault(make, {}).setdefault(node.metadata.name, []).append(pod)
        for crowd in crowds.values():
            if any(len(pods) > 1 for pods in crowd.values()):
                self._spread(crowd, nodes, handle)
        return None

    def _spread(self, crowd: dict[str, list[Pod]], nodes: Sequence[Node], handle: EvictorHandle) -> None:
        """Evict the pods above an even share over all nodes that accept them."""
        first = next(iter(crowd.values()))[0]
        suited = sum(1 for node in nodes if _accepts_pod(first, node))
        if suited < 2:
            return
        share = ceil(sum(len(pods) for pods in crowd.values()) / suited)
        for pods in crowd.values():
            for pod in pods[share:]:
                handle.evict(pod, "")

    def _excluded(self, pod: Pod) -> bool:
        return any(owner.kind in self._args.exclude_owner_kinds for owner in pod.metadata.owner_references)


def _duplicate_key(pod: Pod) -> DuplicateKey:
    images = sorted({container.image for container in pod.spec.containers})
    namespace = pod.metadata.namespace
    return tuple(sorted((namespace, o.kind, o.name, image) for o in pod.metadata.owner_references for image in images))


def _accepts_pod(pod: Pod, node: Node) -> bool:
    if node.spec.unschedulable or not matches_node_affinity(pod.spec, node):
        return False
    return find_untolerated_taint(pod.spec.tolerations, node.spec.taints) is None


build_remove_duplicates = plugin_args.plugin_factory(
    RemoveDuplicates, RemoveDuplicatesArgs, lambda args: plugin_args.namespace_errors(args.namespaces)
)


class RemovePodsViolatingInterPodAntiAffinity(DeschedulerPlugin):
    name: ClassVar[str] = "RemovePodsViolatingInterPodAntiAffinity"

    def __init__(self, args: plugin_args.PodSelectionArgs) -> None:
        self._evictable_filter = plugin_args.EvictablePodFilter(args.namespaces, args.label_selector)

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        labels = {node.metadata.name: node.metadata.labels for node in nodes}
        listed: dict[str, list[Pod]] = {
            name: [pod for pod in handle.snapshot.pods_on_node(name) if self._evictable_filter.matches(pod)]
            for name in labels
        }
        for name in labels:
            for pod in sorted(listed[name], key=plugin_args.priority_qos_sort_key):
                if not _violates(pod, name, labels, listed) or handle.filter(pod) is not None:
                    continue
                if handle.evict(pod, "") is None:  # its peers may stay now
                    listed[name] = [other for other in listed[name] if other is not pod]
        return None


def _violates(pod: Pod, node: str, labels: dict[str, dict[str, str]], listed: dict[str, list[Pod]]) -> bool:
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    terms = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else ()
    return any(_violates_term(pod, term, node, labels, listed) for term in terms)


def _violates_term(
    pod: Pod, term: PodAffinityTerm, node: str, labels: dict[str, dict[str, str]], listed: dict[str, list[Pod]]
) -> bool:
    here = labels[node].get(term.topology_key)
    selector = build_selector(term.label_selector)
    if here is None or selector is None:
        return False
    namespaces = term.namespaces or (pod.metadata.namespace,)
    near: Iterable[str] = (name for name, own in labels.items() if own.get(term.topology_key) == here)
    return any(
        other.metadata.name != pod.metadata.name
        and other.metadata.namespace in namespaces
        and selector.matches(other.metadata.labels)
        for name in near
        for other in listed[name]
    )


build_inter_pod_anti_affinity = plugin_args.plugin_factory(
    RemovePodsViolatingInterPodAntiAffinity, plugin_args.PodSelectionArgs, plugin_args.selection_errors
)
