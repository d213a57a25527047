"""LowNodeUtilization and HighNodeUtilization balance, or pack, nodes by requests rather than usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from koord.api.config.descheduler.plugin_args import DeschedulerPluginArgs, NamespaceFilter
from koord.api.koordinator.resource_name import CPU, MEMORY, PODS
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.model import Model
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictorHandle
from koord.descheduler.framework.pod_selection import PodFilter
from koord.descheduler.framework.snapshot import NodeFitChecker, allocatable
from koord.descheduler.plugins.kube.plugin_args import plugin_factory, priority_qos_sort_key
from koord.policy.node_match import is_tolerated

FULL_PERCENT = 100.0
Percentages = Mapping[str, float]


class NodeEvictionLimits(Model, frozen=True, kw_only=True):
    node: int | None = None


class LowNodeUtilizationArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    use_deviation_thresholds: bool = False
    thresholds: dict[str, float] = {}
    target_thresholds: dict[str, float] = {}
    number_of_nodes: int = 0
    metrics_utilization: dict[str, Any] | None = None
    evictable_namespaces: NamespaceFilter | None = None
    eviction_limits: NodeEvictionLimits | None = None
    eviction_modes: tuple[str, ...] = ()


class HighNodeUtilizationArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    thresholds: dict[str, float] = {}
    number_of_nodes: int = 0
    eviction_modes: tuple[str, ...] = ()
    evictable_namespaces: NamespaceFilter | None = None


class RequestedUtilization:
    """The utilization of one node by the requests of its pods; it changes as pods are proposed."""

    def __init__(
        self, node: Node, handle: EvictorHandle, fit_checker: NodeFitChecker, resources: Sequence[str]
    ) -> None:
        self.node = node
        self.size = allocatable(node)
        self.pods = list(handle.snapshot.pods_on_node(node.metadata.name))
        self.used = dict.fromkeys(resources, 0)
        for pod in self.pods:
            for name in resources:
                self.used[name] += requested_amount(pod, name, fit_checker)

    def percent(self, name: str) -> float:
        size = self.size.get(name, 0)
        return self.used[name] / size * 100 if size else 0.0

    def below(self, thresholds: Percentages) -> bool:
        return all(self.percent(name) <= most for name, most in thresholds.items())

    def above(self, thresholds: Percentages) -> bool:
        return any(self.percent(name) > most for name, most in thresholds.items())

    def headroom(self, name: str, percent: float) -> int:
        return int(self.size.get(name, 0) * percent / 100) - self.used[name]


def requested_amount(pod: Pod, name: str, fit_checker: NodeFitChecker) -> int:
    return 1 if name == PODS else fit_checker.requests(pod).get(name, 0)


def _tolerates_any_target(pod: Pod, targets: Sequence[RequestedUtilization]) -> bool:
    """Return whether the pod tolerates all taints of some target."""
    return any(all(is_tolerated(pod.spec.tolerations, t) for t in target.node.spec.taints) for target in targets)


class _UtilizationBalancer(DeschedulerPlugin):
    """The base of both plugins: evicts pods from sources while the targets have headroom."""

    _pod_filter: PodFilter

    def _move(
        self,
        sources: Sequence[RequestedUtilization],
        targets: Sequence[RequestedUtilization],
        budget: dict[str, int],
        handle: EvictorHandle,
        fit_checker: NodeFitChecker,
        stops: Any,
        per_node: int | None = None,
    ) -> None:
        for source in sources:
            moved = 0
            removable = [p for p in source.pods if self._takes(p, handle) and _tolerates_any_target(p, targets)]
            for pod in sorted(removable, key=priority_qos_sort_key):
                if stops(source) or any(left <= 0 for left in budget.values()):
                    break
                if per_node is not None and moved >= per_node:
                    break
                if handle.evict(pod, "") is not None:
                    continue
                moved += 1
                for name in budget:
                    budget[name] -= requested_amount(pod, name, fit_checker)
                for name in source.used:
                    source.used[name] -= requested_amount(pod, name, fit_checker)

    def _takes(self, pod: Pod, handle: EvictorHandle) -> bool:
        return self._pod_filter.matches_namespace(pod.metadata.namespace) and handle.filter(pod) is None


class LowNodeUtilization(_UtilizationBalancer):
    name: ClassVar[str] = "LowNodeUtilization"

    def __init__(self, args: LowNodeUtilizationArgs) -> None:
        self._args = args
        self._pod_filter = PodFilter(args.evictable_namespaces)
        self._resources = tuple(sorted({CPU, MEMORY, PODS, *args.thresholds}))

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        fit_checker = NodeFitChecker(handle.snapshot)
        usages = [RequestedUtilization(node, handle, fit_checker, self._resources) for node in nodes]
        low, high = self._thresholds(usages)
        under = [u for u in usages if not u.node.spec.unschedulable and u.below(low)]
        over = [u for u in usages if u.above(high)]
        if not under or len(under) <= self._args.number_of_nodes or len(under) == len(nodes) or not over:
            return None
        budget = {name: sum(u.headroom(name, high.get(name, FULL_PERCENT)) for u in under) for name in self._resources}
        over.sort(key=lambda u: sum(u.used.values()), reverse=True)
        limits = self._args.eviction_limits
        per_node = limits.node if limits is not None else None
        self._move(over, under, budget, handle, fit_checker, lambda source: not source.above(high), per_node)
        return None

    def _thresholds(self, usages: Sequence[RequestedUtilization]) -> tuple[Percentages, Percentages]:
        low, high = self._args.thresholds, self._args.target_thresholds
        if not self._args.use_deviation_thresholds or not usages:
            return low, high
        means = {name: sum(u.percent(name) for u in usages) / len(usages) for name in low}
        return (
            {name: min(max(means[name] - low[name], 0.0), FULL_PERCENT) for name in low},
            {name: min(max(means[name] + high[name], 0.0), FULL_PERCENT) for name in low},
        )


class HighNodeUtilization(_UtilizationBalancer):
    name: ClassVar[str] = "HighNodeUtilization"

    def __init__(self, args: HighNodeUtilizationArgs) -> None:
        self._args = args
        self._pod_filter = PodFilter(args.evictable_namespaces)
        self._resources = tuple(sorted({CPU, MEMORY, PODS, *args.thresholds}))
        self._only_thresholding = ONLY_THRESHOLDING in args.eviction_modes

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        fit_checker = NodeFitChecker(handle.snapshot)
        usages = [RequestedUtilization(node, handle, fit_checker, self._resources) for node in nodes]
        under, others = [], []
        for usage in usages:
            if usage.below(self._args.thresholds):
                under.append(usage)
            elif not usage.node.spec.unschedulable:
                others.append(usage)
        if not under or len(under) <= self._args.number_of_nodes or len(under) == len(nodes) or not others:
            return None
        budget = {name: sum(u.headroom(name, FULL_PERCENT) for u in others) for name in self._resources}
        under.sort(key=lambda u: sum(u.used.values()))
        self._fit_checker = fit_checker
        self._move(under, others, budget, handle, fit_checker, lambda source: False)
        return None

    def _takes(self, pod: Pod, handle: EvictorHandle) -> bool:
        if self._only_thresholding and not any(
            requested_amount(pod, n, self._fit_checker) for n in self._args.thresholds if n != PODS
        ):
            return False
        return super()._takes(pod, handle)


ONLY_THRESHOLDING = "OnlyThresholdingResources"


def _validate(thresholds: Percentages, namespaces: NamespaceFilter | None, modes: Sequence[str]) -> list[str]:
    errors = [] if thresholds else ["no resource threshold is configured"]
    errors += [
        f"{name} threshold not in [0, 100] range: {value:g}"
        for name, value in thresholds.items()
        if not 0 <= value <= FULL_PERCENT
    ]
    if namespaces is not None and namespaces.include:
        errors.append("only Exclude namespaces can be set, inclusion is not supported")
    errors += [
        f"unknown eviction mode {mode!r}; known is {ONLY_THRESHOLDING}" for mode in modes if mode != ONLY_THRESHOLDING
    ]
    return errors


def _low_node_utilization_errors(args: LowNodeUtilizationArgs) -> list[str]:
    errors = _validate(args.thresholds, args.evictable_namespaces, args.eviction_modes)
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
    return errors


build_low_node_utilization = plugin_factory(LowNodeUtilization, LowNodeUtilizationArgs, _low_node_utilization_errors)


build_high_node_utilization = plugin_factory(
    HighNodeUtilization,
    HighNodeUtilizationArgs,
    lambda args: _validate(args.thresholds, args.evictable_namespaces, args.eviction_modes),
)
