"""CustomPriority moves pods from expensive nodes to cheaper ones, pod by pod or node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from koord.api.config.descheduler.plugin_args import CUSTOM_PRIORITY_DRAIN_NODE, CustomPriorityArgs
from koord.api.koordinator.resource_name import CPU, MEMORY, PODS
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictorHandle
from koord.descheduler.framework.pod_selection import PodFilter, build_selector
from koord.descheduler.framework.snapshot import NodeFitChecker, allocatable

# So many pods in a row that cannot move end the search on a node.
MAX_CONSECUTIVE_MISSES = 5
MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"


class CustomPriority(DeschedulerPlugin):
    name: ClassVar[str] = "CustomPriority"

    def __init__(self, args: CustomPriorityArgs) -> None:
        """Take defaulted and validated arguments."""
        self._args = args
        self._pod_filter = PodFilter(args.evictable_namespaces, args.pod_selectors)
        self._nodes = build_selector(args.node_selector)
        self._levels = [(level.name, build_selector(level.node_selector)) for level in args.eviction_order]

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        if self._args.paused:
            return None
        levels: list[tuple[str, list[Node]]] = [(name, []) for name, _ in self._levels]
        for node in nodes:
            if self._nodes is not None and not self._nodes.matches(node.metadata.labels):
                continue
            for (_, selector), (_, held) in zip(self._levels, levels, strict=True):
                if selector is None or selector.matches(node.metadata.labels):
                    held.append(node)
                    break
        if sum(1 for _, held in levels if held) < 2:
            return None
        fit_checker = NodeFitChecker(handle.snapshot)
        left: dict[str, dict[str, int]] = {}
        for index, (level, sources) in enumerate(levels):
            targets = [node for _, held in levels[index + 1 :] for node in held]
            for source in sources if targets else ():
                if self._args.mode == CUSTOM_PRIORITY_DRAIN_NODE:
                    self._drain(level, source, targets, handle, fit_checker, left)
                else:
                    self._move(level, source, targets, handle, fit_checker)
        return None

    def _takes(self, pod: Pod, handle: EvictorHandle) -> bool:
        return self._pod_filter.matches(pod) and handle.filter(pod) is None

    def _move(
        self, level: str, source: Node, targets: Sequence[Node], handle: EvictorHandle, fit_checker: NodeFitChecker
    ) -> None:
        misses = 0
        for pod in _smallest_first(handle, source):
            target = fit_checker.first_fit(pod, targets) if self._args.node_fit else None
            if not self._takes(pod, handle) or (self._args.node_fit and target is None):
                misses += 1
                if misses >= MAX_CONSECUTIVE_MISSES:
                    return
                continue
            misses = 0
            reason = f"evicting from {level} priority resource to lower priority resource"
            name = target.metadata.name if target is not None else ""
            handle.evict(pod, reason, target=name, dry_run=bool(self._args.dry_run))

    def _drain(
        self,
        level: str,
        source: Node,
        targets: Sequence[Node],
        handle: EvictorHandle,
        fit_checker: NodeFitChecker,
        left: dict[str, dict[str, int]],
    ) -> None:
        """Move all pods of the node, or none if one of them fits nowhere; DaemonSet and mirror pods stay."""
        pods = [pod for pod in _smallest_first(handle, source) if not _belongs_to_node(pod)]
        if not pods or not all(self._takes(pod, handle) for pod in pods):
            return
        booked = {node.metadata.name: dict(_free_for_moved_pods(node, handle, fit_checker, left)) for node in targets}
        places: list[tuple[Pod, str]] = []
        for pod in pods:
            place = self._place(pod, targets, fit_checker, booked)
            if place is None:
                return
            places.append((pod, place))
        left.update(booked)
        reason, dry_run = f"drain node {source.metadata.name} (sourcePriority={level})", bool(self._args.dry_run)
        cordons = bool(self._args.auto_cordon) and not source.spec.unschedulable
        if cordons:
            handle.cordon(source.metadata.name, unschedulable=True, reason=reason, dry_run=dry_run)
        for pod, place in places:
            if handle.evict(pod, reason, target=place, dry_run=dry_run) is not None:
                if cordons:  # it stays in use after all
                    handle.cordon(source.metadata.name, unschedulable=False, reason=reason, dry_run=dry_run)
                return

    def _place(
        self, pod: Pod, targets: Sequence[Node], fit_checker: NodeFitChecker, booked: Mapping[str, dict[str, int]]
    ) -> str | None:
        wanted = {**{name: fit_checker.requests(pod).get(name, 0) for name in (CPU, MEMORY)}, PODS: 1}
        for node in targets:
            free = booked[node.metadata.name]
            if any(amount > free[name] for name, amount in wanted.items()):
                continue
            if self._args.node_fit and not fit_checker.fits(pod, node):
                continue
            for name, amount in wanted.items():
                free[name] -= amount
            return node.metadata.name
        return None


def _free_for_moved_pods(
    node: Node, handle: EvictorHandle, fit_checker: NodeFitChecker, left: dict[str, dict[str, int]]
) -> dict[str, int]:
    """Return what the node has free for moved pods: cpu, memory and pods."""
    name = node.metadata.name
    known = left.get(name)
    if known is None:
        free, size = fit_checker.free(node), allocatable(node)
        known = {resource: free.get(resource, 0) for resource in (CPU, MEMORY)}
        known[PODS] = size.get(PODS, 0) - sum(1 for _ in handle.snapshot.iter_pods_on_node(name))
        left[name] = known
    return known


def _belongs_to_node(pod: Pod) -> bool:
    daemon = any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
    return daemon or MIRROR_POD_ANNOTATION in pod.metadata.annotations


def _smallest_first(handle: EvictorHandle, node: Node) -> list[Pod]:
    return sorted(handle.snapshot.pods_on_node(node.metadata.name), key=_requests_sort_key)


def _requests_sort_key(pod: Pod) -> tuple[int, int, str, str]:
    """Return the sort key by the requests of the containers alone."""
    asked = [resource_amounts(container.resources.requests) for container in pod.spec.containers]
    cpu, memory = (sum(one.get(name, 0) for one in asked) for name in (CPU, MEMORY))
    return cpu, memory, pod.metadata.namespace, pod.metadata.name
