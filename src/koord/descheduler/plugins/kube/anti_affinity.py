"""RemovePodsViolatingInterPodAntiAffinity evicts pods that run beside pods of their anti-affinity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from koord.api.affinity import PodAffinityTerm
from koord.api.config.descheduler.args import Namespaces, PluginArgs
from koord.api.meta import LabelSelector
from koord.api.node import Node
from koord.api.pod_qos import pod_qos
from koord.api.qos_class import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.choice import selector_of
from koord.descheduler.plugins.kube.args import Chosen, namespace_errors, read, selector_error
from koord.descheduler.wire import Pod

_QOS = {BEST_EFFORT: 0, BURSTABLE: 1, GUARANTEED: 2}


class Args(PluginArgs, frozen=True, kw_only=True):
    namespaces: Namespaces | None = None
    label_selector: LabelSelector | None = None


class ViolatedAntiAffinity(Plugin):
    name: ClassVar[str] = "RemovePodsViolatingInterPodAntiAffinity"

    def __init__(self, args: Args) -> None:
        self._chosen = Chosen(args.namespaces, args.label_selector)

    def deschedule(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        labels = {node.metadata.name: node.metadata.labels for node in nodes}
        listed: dict[str, list[Pod]] = {
            name: [pod for pod in hand.snapshot.on(name) if self._chosen.of(pod)] for name in labels
        }
        for name in labels:
            for pod in sorted(listed[name], key=least_first):
                if not _violates(pod, name, labels, listed) or hand.refuses(pod) is not None:
                    continue
                if hand.evict(pod, "") is None:  # its peers may stay now
                    listed[name] = [other for other in listed[name] if other is not pod]
        return None


def least_first(pod: Pod) -> tuple[int, int]:
    return pod.spec.priority or 0, _QOS.get(pod.status.qos_class or pod_qos(pod), 0)


def _violates(pod: Pod, node: str, labels: dict[str, dict[str, str]], listed: dict[str, list[Pod]]) -> bool:
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    terms = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else ()
    return any(_beside(pod, term, node, labels, listed) for term in terms)


def _beside(
    pod: Pod, term: PodAffinityTerm, node: str, labels: dict[str, dict[str, str]], listed: dict[str, list[Pod]]
) -> bool:
    here = labels[node].get(term.topology_key)
    selector = selector_of(term.label_selector)
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


def violated_anti_affinity(raw: Any) -> Plugin | list[str]:
    args = read(ViolatedAntiAffinity.name, Args, raw)
    if isinstance(args, list):
        return args
    errors = namespace_errors(args.namespaces) + selector_error(args.label_selector)
    return errors or ViolatedAntiAffinity(args)
