"""LowNodeUtilization and HighNodeUtilization balance, or pack, nodes by requests rather than usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from koord.api.config.descheduler.args import Namespaces, PluginArgs
from koord.api.model import Model
from koord.api.node import Node
from koord.api.resource_name import CPU, MEMORY, PODS
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.capacity import allocatable
from koord.descheduler.plugins.choice import Choice
from koord.descheduler.plugins.kube.anti_affinity import least_first
from koord.descheduler.plugins.kube.args import read
from koord.descheduler.plugins.node_fit import Fitting
from koord.descheduler.wire import Pod
from koord.policy.node_suitability import tolerated

FULL = 100.0
Percentages = Mapping[str, float]


class EvictionLimits(Model, frozen=True, kw_only=True):
    node: int | None = None


class LowArgs(PluginArgs, frozen=True, kw_only=True):
    use_deviation_thresholds: bool = False
    thresholds: dict[str, float] = {}
    target_thresholds: dict[str, float] = {}
    number_of_nodes: int = 0
    metrics_utilization: dict[str, Any] | None = None
    evictable_namespaces: Namespaces | None = None
    eviction_limits: EvictionLimits | None = None
    eviction_modes: tuple[str, ...] = ()


class HighArgs(PluginArgs, frozen=True, kw_only=True):
    thresholds: dict[str, float] = {}
    number_of_nodes: int = 0
    eviction_modes: tuple[str, ...] = ()
    evictable_namespaces: Namespaces | None = None


class Usage:
    """The utilization of one node by the requests of its pods; it changes as pods are proposed."""

    def __init__(self, node: Node, hand: Hand, fitting: Fitting, resources: Sequence[str]) -> None:
        self.node = node
        self.size = allocatable(node)
        self.pods = list(hand.snapshot.on(node.metadata.name))
        self.used = dict.fromkeys(resources, 0)
        for pod in self.pods:
            for name in resources:
                self.used[name] += amount(pod, name, fitting)

    def percent(self, name: str) -> float:
        size = self.size.get(name, 0)
        return self.used[name] / size * 100 if size else 0.0

    def below(self, thresholds: Percentages) -> bool:
        return all(self.percent(name) <= most for name, most in thresholds.items())

    def above(self, thresholds: Percentages) -> bool:
        return any(self.percent(name) > most for name, most in thresholds.items())

    def room(self, name: str, percent: float) -> int:
        return int(self.size.get(name, 0) * percent / 100) - self.used[name]


def amount(pod: Pod, name: str, fitting: Fitting) -> int:
    return 1 if name == PODS else fitting.requests(pod).get(name, 0)


def _tolerates(pod: Pod, targets: Sequence[Usage]) -> bool:
    """Return whether the pod tolerates all taints of some target."""
    return any(all(tolerated(pod.spec.tolerations, t) for t in target.node.spec.taints) for target in targets)


class _Mover(Plugin):
    """The base of both plugins: evicts pods from sources while the targets have headroom."""

    _choice: Choice

    def _move(
        self,
        sources: Sequence[Usage],
        targets: Sequence[Usage],
        budget: dict[str, int],
        hand: Hand,
        fitting: Fitting,
        stops: Any,
        per_node: int | None = None,
    ) -> None:
        for source in sources:
            moved = 0
            removable = [p for p in source.pods if self._takes(p, hand) and _tolerates(p, targets)]
            for pod in sorted(removable, key=least_first):
                if stops(source) or any(left <= 0 for left in budget.values()):
                    break
                if per_node is not None and moved >= per_node:
                    break
                if hand.evict(pod, "") is not None:
                    continue
                moved += 1
                for name in budget:
                    budget[name] -= amount(pod, name, fitting)
                for name in source.used:
                    source.used[name] -= amount(pod, name, fitting)

    def _takes(self, pod: Pod, hand: Hand) -> bool:
        return self._choice.takes_namespace(pod.metadata.namespace) and hand.refuses(pod) is None


class LowNodeUtilization(_Mover):
    name: ClassVar[str] = "LowNodeUtilization"

    def __init__(self, args: LowArgs) -> None:
        self._args = args
        self._choice = Choice(args.evictable_namespaces)
        self._resources = tuple(sorted({CPU, MEMORY, PODS, *args.thresholds}))

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        fitting = Fitting(hand.snapshot)
        usages = [Usage(node, hand, fitting, self._resources) for node in nodes]
        low, high = self._thresholds(usages)
        under = [u for u in usages if not u.node.spec.unschedulable and u.below(low)]
        over = [u for u in usages if u.above(high)]
        if not under or len(under) <= self._args.number_of_nodes or len(under) == len(nodes) or not over:
            return None
        budget = {name: sum(u.room(name, high.get(name, FULL)) for u in under) for name in self._resources}
        over.sort(key=lambda u: sum(u.used.values()), reverse=True)
        limits = self._args.eviction_limits
        per_node = limits.node if limits is not None else None
        self._move(over, under, budget, hand, fitting, lambda source: not source.above(high), per_node)
        return None

    def _thresholds(self, usages: Sequence[Usage]) -> tuple[Percentages, Percentages]:
        low, high = self._args.thresholds, self._args.target_thresholds
        if not self._args.use_deviation_thresholds or not usages:
            return low, high
        means = {name: sum(u.percent(name) for u in usages) / len(usages) for name in low}
        return (
            {name: min(max(means[name] - low[name], 0.0), FULL) for name in low},
            {name: min(max(means[name] + high[name], 0.0), FULL) for name in low},
        )


class HighNodeUtilization(_Mover):
    name: ClassVar[str] = "HighNodeUtilization"

    def __init__(self, args: HighArgs) -> None:
        self._args = args
        self._choice = Choice(args.evictable_namespaces)
        self._resources = tuple(sorted({CPU, MEMORY, PODS, *args.thresholds}))
        self._asking = ONLY_THRESHOLDING in args.eviction_modes

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        fitting = Fitting(hand.snapshot)
        usages = [Usage(node, hand, fitting, self._resources) for node in nodes]
        under, others = [], []
        for usage in usages:
            if usage.below(self._args.thresholds):
                under.append(usage)
            elif not usage.node.spec.unschedulable:
                others.append(usage)
        if not under or len(under) <= self._args.number_of_nodes or len(under) == len(nodes) or not others:
            return None
        budget = {name: sum(u.room(name, FULL) for u in others) for name in self._resources}
        under.sort(key=lambda u: sum(u.used.values()))
        self._fitting = fitting
        self._move(under, others, budget, hand, fitting, lambda source: False)
        return None

    def _takes(self, pod: Pod, hand: Hand) -> bool:
        if self._asking and not any(amount(pod, n, self._fitting) for n in self._args.thresholds if n != PODS):
            return False
        return super()._takes(pod, hand)


ONLY_THRESHOLDING = "OnlyThresholdingResources"


def _errors(thresholds: Percentages, namespaces: Namespaces | None, modes: Sequence[str]) -> list[str]:
    errors = [] if thresholds else ["no resource threshold is configured"]
    errors += [
        f"{name} threshold not in [0, 100] range: {value:g}"
        for name, value in thresholds.items()
        if not 0 <= value <= FULL
    ]
    if namespaces is not None and namespaces.include:
        errors.append("only Exclude namespaces can be set, inclusion is not supported")
    errors += [
        f"unknown eviction mode {mode!r}; known is {ONLY_THRESHOLDING}" for mode in modes if mode != ONLY_THRESHOLDING
    ]
    return errors


def low_node_utilization(raw: Any) -> Plugin | list[str]:
    args = read(LowNodeUtilization.name, LowArgs, raw)
    if isinstance(args, list):
        return args
    errors = _errors(args.thresholds, args.evictable_namespaces, args.eviction_modes)
    if set(args.thresholds) != set(args.target_thresholds):
        errors.append("thresholds and targetThresholds configure different resources")
    elif not args.use_deviation_thresholds:
        errors += [
            f"thresholds' {name} percentage is greater than targetThresholds'"
            for name, value in args.thresholds.items()
            if value > args.target_thresholds[name]
        ]
    if args.metrics_utilization:
        errors.append(
            "metricsUtilization needs a metrics source, and there is none: use LowNodeLoad, which has NodeMetrics"
        )
    return errors or LowNodeUtilization(args)


def high_node_utilization(raw: Any) -> Plugin | list[str]:
    args = read(HighNodeUtilization.name, HighArgs, raw)
    if isinstance(args, list):
        return args
    return _errors(args.thresholds, args.evictable_namespaces, args.eviction_modes) or HighNodeUtilization(args)
