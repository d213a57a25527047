"""The plugins that evict pods whose node violates their node affinity or whose taints they do not tolerate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from koord.api.kubernetes.affinity import NodeAffinity, Taint
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.node_fit import NodeFitChecker
from koord.descheduler.framework.plugin import EvictorHandle
from koord.descheduler.plugins.kube import plugin_args
from koord.policy.node_match import (
    NO_SCHEDULE,
    PREFER_NO_SCHEDULE,
    PreferredNodeAffinity,
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
