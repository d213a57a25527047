"""The plugins that evict pods whose node violates their node affinity, whose taints they do not tolerate, or that are
there with pods they should be apart from: RemoveDuplicates and RemovePodsViolatingInterPodAntiAffinity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import ClassVar

from koord.api.config.descheduler.plugin_args import DeschedulerPluginArgs, NamespaceFilter
from koord.api.kubernetes.affinity import NodeAffinity, PodAffinityTerm, Taint
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictorHandle
from koord.descheduler.framework.pod_selection import build_selector
from koord.descheduler.framework.snapshot import NodeFitChecker
from koord.descheduler.plugins.kube import plugin_args
from koord.policy.node_match import (
    NO_SCHEDULE,
    PREFER_NO_SCHEDULE,
    PreferredNodeAffinity,
    find_untolerated_taint,
    is_tolerated,
    matches_node_affinity,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class RemovePodsViolatingNodeAffinityArgs(plugin_args.PodSelectionArgs, frozen=True, kw_only=True):
    node_affinity_type: tuple[str, ...] = ()


class RemovePodsViolatingNodeAffinity(plugin_args.PodSelectionPlugin[RemovePodsViolatingNodeAffinityArgs]):
    name: ClassVar[str] = "RemovePodsViolatingNodeAffinity"

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        fit_checker = NodeFitChecker(handle.snapshot)
        violates = {REQUIRED: self._violates_required, PREFERRED: self._prefers_other_node}
        for kind in self._args.node_affinity_type:
            for node in nodes:
                for pod in list(handle.snapshot.pods_on_node(node.metadata.name)):
                    if violates[kind](pod, node, nodes, fit_checker) and self._evictable_filter.is_evictable(
                        pod, handle
                    ):
                        handle.evict(pod, "")
        return None

    def _violates_required(self, pod: Pod, node: Node, nodes: Sequence[Node], fit_checker: NodeFitChecker) -> bool:
        affinity = _node_affinity(pod)
        if affinity is None or affinity.required_during_scheduling_ignored_during_execution is None:
            return False
        return not matches_node_affinity(pod.spec, node) and fit_checker.first_fit(pod, nodes) is not None

    def _prefers_other_node(self, pod: Pod, node: Node, nodes: Sequence[Node], fit_checker: NodeFitChecker) -> bool:
        affinity = _node_affinity(pod)
        if affinity is None or not affinity.preferred_during_scheduling_ignored_during_execution:
            return False
        preferred = PreferredNodeAffinity(affinity.preferred_during_scheduling_ignored_during_execution)
        here = preferred.score(node)
        return max(map(preferred.score, nodes)) > here and fit_checker.first_fit(pod, nodes) is not None


def _node_affinity(pod: Pod) -> NodeAffinity | None:
    return pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None


def _violated_node_affinity_errors(args: RemovePodsViolatingNodeAffinityArgs) -> list[str]:
    errors = plugin_args.selection_errors(args)
    if not args.node_affinity_type:
        errors.append("nodeAffinityType needs to be set")
    unknown = [kind for kind in args.node_affinity_type if kind not in (REQUIRED, PREFERRED)]
    if unknown:
        errors.append(f"nodeAffinityType must be {REQUIRED} or {PREFERRED}, not {', '.join(unknown)}")
    return errors


build_violated_node_affinity = plugin_args.plugin_factory(
    RemovePodsViolatingNodeAffinity, RemovePodsViolatingNodeAffinityArgs, _violated_node_affinity_errors
)


class RemovePodsViolatingNodeTaintsArgs(plugin_args.PodSelectionArgs, frozen=True, kw_only=True):
    include_prefer_no_schedule: bool = False
    excluded_taints: tuple[str, ...] = ()
    included_taints: tuple[str, ...] = ()


class RemovePodsViolatingNodeTaints(plugin_args.PodSelectionPlugin[RemovePodsViolatingNodeTaintsArgs]):
    name: ClassVar[str] = "RemovePodsViolatingNodeTaints"

    def deschedule(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        for node in nodes:
            taints = [taint for taint in node.spec.taints if self._counts(taint)]
            for pod in list(handle.snapshot.pods_on_node(node.metadata.name)) if taints else ():
                bears = all(is_tolerated(pod.spec.tolerations, taint) for taint in taints)
                if not bears and self._evictable_filter.is_evictable(pod, handle):
                    handle.evict(pod, "")
        return None

    def _counts(self, taint: Taint) -> bool:
        effects = (NO_SCHEDULE, PREFER_NO_SCHEDULE) if self._args.include_prefer_no_schedule else (NO_SCHEDULE,)
        if taint.effect not in effects or _is_taint_listed(taint, self._args.excluded_taints):
            return False
        return not self._args.included_taints or _is_taint_listed(taint, self._args.included_taints)


def _is_taint_listed(taint: Taint, names: Sequence[str]) -> bool:
    """Return whether the taint is listed by key, or by key and value."""
    return taint.key in names or f"{taint.key}={taint.value}" in names


def _violated_node_taints_errors(args: RemovePodsViolatingNodeTaintsArgs) -> list[str]:
    errors = plugin_args.selection_errors(args)
    if args.excluded_taints and args.included_taints:
        errors.append("either includedTaints or excludedTaints can be set, but not both")
    return errors


build_violated_node_taints = plugin_args.plugin_factory(
    RemovePodsViolatingNodeTaints, RemovePodsViolatingNodeTaintsArgs, _violated_node_taints_errors
)


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
