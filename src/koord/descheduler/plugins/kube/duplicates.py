"""RemoveDuplicates evicts pods of one owner and image that share a node while other nodes could take them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, ClassVar

from koord.api.config.descheduler.args import Namespaces, PluginArgs
from koord.api.node import Node
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.kube.args import Chosen, namespace_errors, read
from koord.descheduler.wire import Pod
from koord.policy.node_suitability import NO_EXECUTE, NO_SCHEDULE, selects, untolerated

Owner = tuple[str, str, str]  # namespace, kind, name
Make = tuple[tuple[str, str, str, str], ...]  # namespace, kind and name of each owner, with an image


class Args(PluginArgs, frozen=True, kw_only=True):
    namespaces: Namespaces | None = None
    exclude_owner_kinds: tuple[str, ...] = ()


class Duplicates(Plugin):
    name: ClassVar[str] = "RemoveDuplicates"

    def __init__(self, args: Args) -> None:
        self._args = args
        self._chosen = Chosen(args.namespaces, None)

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        crowds: dict[Make, dict[str, list[Pod]]] = {}
        for node in nodes:
            for pod in hand.snapshot.on(node.metadata.name):
                make = _make(pod)
                if make and not self._excluded(pod) and self._chosen.takes(pod, hand):
                    crowds.setdefault(make, {}).setdefault(node.metadata.name, []).append(pod)
        for crowd in crowds.values():
            if any(len(pods) > 1 for pods in crowd.values()):
                self._spread(crowd, nodes, hand)
        return None

    def _spread(self, crowd: dict[str, list[Pod]], nodes: Sequence[Node], hand: Hand) -> None:
        """Evict the pods above an even share over all nodes that accept them."""
        first = next(iter(crowd.values()))[0]
        suited = sum(1 for node in nodes if _suits(first, node))
        if suited < 2:
            return
        share = ceil(sum(len(pods) for pods in crowd.values()) / suited)
        for pods in crowd.values():
            for pod in pods[share:]:
                hand.evict(pod, "")

    def _excluded(self, pod: Pod) -> bool:
        return any(owner.kind in self._args.exclude_owner_kinds for owner in pod.metadata.owner_references)


def _make(pod: Pod) -> Make:
    images = sorted({container.image for container in pod.spec.containers})
    namespace = pod.metadata.namespace
    return tuple(sorted((namespace, o.kind, o.name, image) for o in pod.metadata.owner_references for image in images))


def _suits(pod: Pod, node: Node) -> bool:
    if node.spec.unschedulable or not selects(pod.spec, node):
        return False
    return untolerated(pod.spec.tolerations, node.spec.taints, (NO_SCHEDULE, NO_EXECUTE)) is None


def duplicates(raw: Any) -> Plugin | list[str]:
    args = read(Duplicates.name, Args, raw)
    if isinstance(args, list):
        return args
    return namespace_errors(args.namespaces) or Duplicates(args)
