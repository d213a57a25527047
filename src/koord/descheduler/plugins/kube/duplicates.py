"""RemoveDuplicates evicts pods of one owner and image that share a node while other nodes could take them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, ClassVar

from koord.api.config.descheduler.plugin_args import DeschedulerPluginArgs, NamespaceFilter
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import DeschedulerPlugin
from koord.descheduler.framework.round import EvictorHandle
from koord.descheduler.plugins.kube.plugin_args import EvictablePodFilter, load_args, namespace_errors
from koord.policy.node_match import find_untolerated_taint, matches_node_affinity

Owner = tuple[str, str, str]  # namespace, kind, name
DuplicateKey = tuple[tuple[str, str, str, str], ...]  # namespace, kind and name of each owner, with an image


class RemoveDuplicatesArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    namespaces: NamespaceFilter | None = None
    exclude_owner_kinds: tuple[str, ...] = ()


class RemoveDuplicates(DeschedulerPlugin):
    name: ClassVar[str] = "RemoveDuplicates"

    def __init__(self, args: RemoveDuplicatesArgs) -> None:
        self._args = args
        self._evictable_filter = EvictablePodFilter(args.namespaces, None)

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


def build_remove_duplicates(raw: Any) -> DeschedulerPlugin | list[str]:
    args = load_args(RemoveDuplicates.name, RemoveDuplicatesArgs, raw)
    if isinstance(args, list):
        return args
    return namespace_errors(args.namespaces) or RemoveDuplicates(args)
