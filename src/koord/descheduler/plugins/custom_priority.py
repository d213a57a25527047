"""CustomPriority moves pods from expensive nodes to cheaper ones, pod by pod or node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from koord.api.config.descheduler.custom_priority import DRAIN_NODE, CustomPriorityArgs
from koord.api.container import Container
from koord.api.node import Node
from koord.api.pod_resources import amounts
from koord.api.resource_name import CPU, MEMORY, PODS
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.capacity import allocatable
from koord.descheduler.plugins.choice import Choice, selector_of
from koord.descheduler.plugins.node_fit import Fitting
from koord.descheduler.wire import Pod

# So many pods in a row that cannot move end the search on a node.
MISSES = 5
MIRROR = "kubernetes.io/config.mirror"


class CustomPriority(Plugin):
    name: ClassVar[str] = "CustomPriority"

    def __init__(self, args: CustomPriorityArgs) -> None:
        """Take defaulted and validated arguments."""
        self._args = args
        self._choice = Choice(args.evictable_namespaces, args.pod_selectors)
        self._nodes = selector_of(args.node_selector)
        self._levels = [(level.name, selector_of(level.node_selector)) for level in args.eviction_order]

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
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
        fitting = Fitting(hand.snapshot)
        left: dict[str, dict[str, int]] = {}
        for index, (level, sources) in enumerate(levels):
            targets = [node for _, held in levels[index + 1 :] for node in held]
            for source in sources if targets else ():
                if self._args.mode == DRAIN_NODE:
                    self._drain(level, source, targets, hand, fitting, left)
                else:
                    self._move(level, source, targets, hand, fitting)
        return None

    def _takes(self, pod: Pod, hand: Hand) -> bool:
        return self._choice.takes(pod) and hand.refuses(pod) is None

    def _move(self, level: str, source: Node, targets: Sequence[Node], hand: Hand, fitting: Fitting) -> None:
        misses = 0
        for pod in _smallest_first(hand, source):
            target = fitting.anywhere(pod, targets) if self._args.node_fit else None
            if not self._takes(pod, hand) or (self._args.node_fit and target is None):
                misses += 1
                if misses >= MISSES:
                    return
                continue
            misses = 0
            reason = f"evicting from {level} priority resource to lower priority resource"
            name = target.metadata.name if target is not None else ""
            hand.evict(pod, reason, target=name, dry_run=bool(self._args.dry_run))

    def _drain(
        self,
        level: str,
        source: Node,
        targets: Sequence[Node],
        hand: Hand,
        fitting: Fitting,
        left: dict[str, dict[str, int]],
    ) -> None:
        """Move all pods of the node, or none if one of them fits nowhere; DaemonSet and mirror pods stay."""
        pods = [pod for pod in _smallest_first(hand, source) if not _belongs_to_node(pod)]
        if not pods or not all(self._takes(pod, hand) for pod in pods):
            return
        booked = {node.metadata.name: dict(_left(node, hand, fitting, left)) for node in targets}
        places: list[tuple[Pod, str]] = []
        for pod in pods:
            place = self._place(pod, targets, fitting, booked)
            if place is None:
                return
            places.append((pod, place))
        left.update(booked)
        reason, dry_run = f"drain node {source.metadata.name} (sourcePriority={level})", bool(self._args.dry_run)
        cordons = bool(self._args.auto_cordon) and not source.spec.unschedulable
        if cordons:
            hand.cordon(source.metadata.name, unschedulable=True, reason=reason, dry_run=dry_run)
        for pod, place in places:
            if hand.evict(pod, reason, target=place, dry_run=dry_run) is not None:
                if cordons:  # it stays in use after all
                    hand.cordon(source.metadata.name, unschedulable=False, reason=reason, dry_run=dry_run)
                return

    def _place(
        self, pod: Pod, targets: Sequence[Node], fitting: Fitting, booked: Mapping[str, dict[str, int]]
    ) -> str | None:
        wanted = {**{name: fitting.requests(pod).get(name, 0) for name in (CPU, MEMORY)}, PODS: 1}
        for node in targets:
            free = booked[node.metadata.name]
            if any(amount > free[name] for name, amount in wanted.items()):
                continue
            if self._args.node_fit and not fitting.fits(pod, node):
                continue
            for name, amount in wanted.items():
                free[name] -= amount
            return node.metadata.name
        return None


def _left(node: Node, hand: Hand, fitting: Fitting, left: dict[str, dict[str, int]]) -> dict[str, int]:
    """Return what the node has free for moved pods: cpu, memory and pods."""
    name = node.metadata.name
    known = left.get(name)
    if known is None:
        free, size = fitting.free(node), allocatable(node)
        known = {resource: free.get(resource, 0) for resource in (CPU, MEMORY)}
        known[PODS] = size.get(PODS, 0) - sum(1 for _ in hand.snapshot.some_on(name))
        left[name] = known
    return known


def _belongs_to_node(pod: Pod) -> bool:
    daemon = any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
    return daemon or MIRROR in pod.metadata.annotations


def _smallest_first(hand: Hand, node: Node) -> list[Pod]:
    return sorted(hand.snapshot.on(node.metadata.name), key=_size)


def _size(pod: Pod) -> tuple[int, int, str, str]:
    """Return the sort key by the requests of the containers alone."""
    asked = [_asked(container) for container in pod.spec.containers]
    cpu, memory = (sum(one.get(name, 0) for one in asked) for name in (CPU, MEMORY))
    return cpu, memory, pod.metadata.namespace, pod.metadata.name


def _asked(container: Container) -> Mapping[str, int]:
    return amounts(container.resources.requests)
