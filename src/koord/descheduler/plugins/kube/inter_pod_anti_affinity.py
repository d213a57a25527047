"""RemovePodsViolatingInterPodAntiAffinity evicts pods that run beside pods of their anti-affinity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from koord.api.config.descheduler.plugin_args import DeschedulerPluginArgs, NamespaceFilter
from koord.api.koordinator.qos_class import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.api.kubernetes.affinity import PodAffinityTerm
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import recorded_qos_class
from koord.descheduler.framework.plugin import DeschedulerPlugin
from koord.descheduler.framework.pod_filter import build_selector
from koord.descheduler.framework.round import EvictorHandle
from koord.descheduler.plugins.kube.plugin_args import EvictablePodFilter, load_args, namespace_errors, selector_errors

_QOS_ORDER = {BEST_EFFORT: 0, BURSTABLE: 1, GUARANTEED: 2}


class RemovePodsViolatingInterPodAntiAffinityArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    namespaces: NamespaceFilter | None = None
    label_selector: LabelSelector | None = None


class RemovePodsViolatingInterPodAntiAffinity(DeschedulerPlugin):
    name: ClassVar[str] = "RemovePodsViolatingInterPodAntiAffinity"

    def __init__(self, args: RemovePodsViolatingInterPodAntiAffinityArgs) -> None:
        self._evictable_filter = EvictablePodFilter(args.namespaces, args.label_selector)

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        labels = {node.metadata.name: node.metadata.labels for node in nodes}
        listed: dict[str, list[Pod]] = {
            name: [pod for pod in handle.snapshot.pods_on_node(name) if self._evictable_filter.matches(pod)]
            for name in labels
        }
        for name in labels:
            for pod in sorted(listed[name], key=priority_qos_sort_key):
                if not _violates(pod, name, labels, listed) or handle.filter(pod) is not None:
                    continue
                if handle.evict(pod, "") is None:  # its peers may stay now
                    listed[name] = [other for other in listed[name] if other is not pod]
        return None


def priority_qos_sort_key(pod: Pod) -> tuple[int, int]:
    return pod.spec.priority or 0, _QOS_ORDER.get(pod.status.qos_class or recorded_qos_class(pod), 0)


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


def build_inter_pod_anti_affinity(raw: Any) -> DeschedulerPlugin | list[str]:
    args = load_args(RemovePodsViolatingInterPodAntiAffinity.name, RemovePodsViolatingInterPodAntiAffinityArgs, raw)
    if isinstance(args, list):
        return args
    errors = namespace_errors(args.namespaces) + selector_errors(args.label_selector)
    return errors or RemovePodsViolatingInterPodAntiAffinity(args)
