"""The plugins that evict pods whose node violates their node affinity or whose taints they do not tolerate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from koord.api.affinity import NodeAffinity, NodeSelector
from koord.api.config.descheduler.args import Namespaces, PluginArgs
from koord.api.meta import LabelSelector
from koord.api.node import Node
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.kube.args import Chosen, namespace_errors, read, selector_error
from koord.descheduler.plugins.node_fit import Fitting
from koord.descheduler.wire import Pod
from koord.policy.node_suitability import matches, selects

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class Args(PluginArgs, frozen=True, kw_only=True):
    namespaces: Namespaces | None = None
    label_selector: LabelSelector | None = None
    node_affinity_type: tuple[str, ...] = ()


class ViolatedNodeAffinity(Plugin):
    name: ClassVar[str] = "RemovePodsViolatingNodeAffinity"

    def __init__(self, args: Args) -> None:
        self._args = args
        self._chosen = Chosen(args.namespaces, args.label_selector)

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        fitting = Fitting(hand.snapshot)
        violates = {REQUIRED: self._misplaced, PREFERRED: self._better_elsewhere}
        for kind in self._args.node_affinity_type:
            for node in nodes:
                for pod in list(hand.snapshot.on(node.metadata.name)):
                    if violates[kind](pod, node, nodes, fitting) and self._chosen.takes(pod, hand):
                        hand.evict(pod, "")
        return None

    def _misplaced(self, pod: Pod, node: Node, nodes: Sequence[Node], fitting: Fitting) -> bool:
        affinity = _affinity(pod)
        if affinity is None or affinity.required_during_scheduling_ignored_during_execution is None:
            return False
        return not selects(pod.spec, node) and fitting.anywhere(pod, nodes) is not None

    def _better_elsewhere(self, pod: Pod, node: Node, nodes: Sequence[Node], fitting: Fitting) -> bool:
        affinity = _affinity(pod)
        if affinity is None or not affinity.preferred_during_scheduling_ignored_during_execution:
            return False
        here = preference(affinity, node)
        return max(preference(affinity, other) for other in nodes) > here and fitting.anywhere(pod, nodes) is not None


def _affinity(pod: Pod) -> NodeAffinity | None:
    return pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None


def preference(affinity: NodeAffinity, node: Node) -> int:
    """Return the sum of the weights of the preferred terms that the node satisfies."""
    return sum(
        term.weight
        for term in affinity.preferred_during_scheduling_ignored_during_execution
        if matches(NodeSelector(node_selector_terms=(term.preference,)), node)
    )


def violated_node_affinity(raw: Any) -> Plugin | list[str]:
    args = read(ViolatedNodeAffinity.name, Args, raw)
    if isinstance(args, list):
        return args
    errors = namespace_errors(args.namespaces) + selector_error(args.label_selector)
    if not args.node_affinity_type:
        errors.append("nodeAffinityType needs to be set")
    unknown = [kind for kind in args.node_affinity_type if kind not in (REQUIRED, PREFERRED)]
    if unknown:
        errors.append(f"nodeAffinityType must be {REQUIRED} or {PREFERRED}, not {', '.join(unknown)}")
    return errors or ViolatedNodeAffinity(args)
