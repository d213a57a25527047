"""RemovePodsViolatingTopologySpreadConstraint evicts pods from crowded domains while others have too few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import ClassVar

import msgspec

from koord.api.kubernetes.affinity import TopologySpreadConstraint
from koord.api.kubernetes.meta import label_selector_as_selector
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictorHandle
from koord.descheduler.framework.snapshot import NodeFitChecker
from koord.descheduler.plugins.kube import plugin_args
from koord.policy.node_match import find_untolerated_taint, matches_node_affinity
from koord.values.selector import Operator, Requirement, Selector

DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"


class RemovePodsViolatingTopologySpreadConstraintArgs(plugin_args.PodSelectionArgs, frozen=True, kw_only=True):
    constraints: tuple[str, ...] = ()
    topology_balance_node_fit: bool | None = None


class SpreadConstraint(msgspec.Struct, frozen=True):
    """One constraint as one pod states it."""

    key: str
    max_skew: int
    selector: Selector
    honors_affinity: bool
    honors_taints: bool
    example: Pod  # whose selectors and tolerations say which nodes count

    @property
    def identity(self) -> tuple[object, ...]:
        spec = self.example.spec
        where = (str(spec.node_selector), str(spec.affinity)) if self.honors_affinity else ()
        taints = spec.tolerations if self.honors_taints else ()
        return self.key, self.max_skew, str(self.selector), where, taints


class SpreadDomain:
    def __init__(self, value: str) -> None:
        self.value = value
        self.nodes: set[str] = set()
        self.pods: list[Pod] = []


class RemovePodsViolatingTopologySpreadConstraint(DeschedulerPlugin):
    name: ClassVar[str] = "RemovePodsViolatingTopologySpreadConstraint"

    def __init__(self, args: RemovePodsViolatingTopologySpreadConstraintArgs) -> None:
        self._evictable_filter = plugin_args.EvictablePodFilter(args.namespaces, args.label_selector)
        self._kinds = args.constraints or (DO_NOT_SCHEDULE,)
        self._node_fit = args.topology_balance_node_fit is not False

    def balance(self, nodes: Sequence[Node], handle: EvictorHandle) -> str | None:
        fit_checker = NodeFitChecker(handle.snapshot)
        by_namespace: dict[str, list[Pod]] = {}
        for node in nodes:
            for pod in handle.snapshot.pods_on_node(node.metadata.name):
                by_namespace.setdefault(pod.metadata.namespace, []).append(pod)
        gone: set[str] = set()
        for namespace in sorted(by_namespace):
            pods = by_namespace[namespace]
            rules: dict[object, SpreadConstraint] = {}
            for pod in pods:
                if pod.metadata.deletion_timestamp is None and self._evictable_filter.matches(pod):
                    for rule in self._constraints(pod):
                        rules.setdefault(rule.identity, rule)
            for rule in rules.values():
                self._balance_constraint(rule, pods, nodes, handle, fit_checker, gone)
        return None

    def _constraints(self, pod: Pod) -> list[SpreadConstraint]:
        stated = (c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable in self._kinds)
        return [_constraint(each, pod) for each in stated]

    def _balance_constraint(
        self,
        rule: SpreadConstraint,
        pods: Sequence[Pod],
        nodes: Sequence[Node],
        handle: EvictorHandle,
        fit_checker: NodeFitChecker,
        gone: set[str],
    ) -> None:
        domains = _domains(rule, pods, nodes, gone)
        if len(domains) < 2:
            return
        ranked = sorted(domains, key=lambda domain: len(domain.pods))
        if len(ranked[-1].pods) - len(ranked[0].pods) <= rule.max_skew:
            return
        mean = sum(len(domain.pods) for domain in ranked) / len(ranked)
        for pod in self._pods_to_evict(rule, ranked, mean, nodes, handle, fit_checker):
            if handle.evict(pod, "") is None:
                gone.add(pod.metadata.uid)

    def _pods_to_evict(
        self,
        rule: SpreadConstraint,
        ranked: list[SpreadDomain],
        mean: float,
        nodes: Sequence[Node],
        handle: EvictorHandle,
        fit_checker: NodeFitChecker,
    ) -> Iterator[Pod]:
        """Return the pods to evict, from the fullest domains down, as many as bring both ends nearer to the mean."""
        sizes = [len(domain.pods) for domain in ranked]
        for domain in ranked:
            domain.pods = self._sort_for_eviction(domain.pods, handle)
        below = [node for node in nodes if self._is_below(node, ranked, sizes, mean)]
        low, high = 0, len(ranked) - 1
        while low < high:
            if sizes[high] <= mean:
                high -= 1
                continue
            skew = sizes[high] - sizes[low]
            if skew <= rule.max_skew:
                low += 1
                continue
            count = min(ceil(sizes[high] - mean), ceil(mean - sizes[low]), ceil((skew - rule.max_skew) / 2))
            if count <= 0:
                low += 1
                continue
            fitting_last = sorted(ranked[high].pods, key=lambda pod: self._fits(pod, below, fit_checker))
            taken, ranked[high].pods = fitting_last[-count:], fitting_last[:-count]
            sizes[low] += count
            sizes[high] -= count
            yield from [
                pod
                for pod in reversed(taken)
                if self._fits(pod, below, fit_checker) and self._evictable_filter.is_evictable(pod, handle)
            ]

    def _is_below(self, node: Node, ranked: list[SpreadDomain], sizes: list[int], mean: float) -> bool:
        name = node.metadata.name
        return any(name in domain.nodes and size < mean for domain, size in zip(ranked, sizes, strict=True))

    def _fits(self, pod: Pod, nodes: Sequence[Node], fit_checker: NodeFitChecker) -> bool:
        return not self._node_fit or fit_checker.first_other_fit(pod, nodes) is not None

    def _sort_for_eviction(self, pods: list[Pod], handle: EvictorHandle) -> list[Pod]:
        """Sort pods so that the last is evicted first: protected pods, pods bound to some nodes, then by importance."""

        def order(pod: Pod) -> tuple[int, int, int]:
            priority, qos = plugin_args.priority_qos_sort_key(pod)
            if not self._evictable_filter.is_evictable(pod, handle):
                return 0, -priority, -qos
            bound = bool(pod.spec.node_selector or pod.spec.affinity is not None)
            return 1 if bound else 2, -priority, -qos

        return sorted(pods, key=order)


def _constraint(given: TopologySpreadConstraint, pod: Pod) -> SpreadConstraint:
    selector = label_selector_as_selector(given.label_selector)
    if given.match_label_keys and not selector.matches_nothing:
        own = [
            Requirement(key, Operator.IN, (pod.metadata.labels[key],))
            for key in given.match_label_keys
            if key in pod.metadata.labels
        ]
        selector = Selector((*selector.requirements, *own))
    return SpreadConstraint(
        given.topology_key,
        given.max_skew,
        selector,
        (given.node_affinity_policy or "Honor") == "Honor",
        (given.node_taints_policy or "Ignore") == "Honor",
        pod,
    )


def _domains(rule: SpreadConstraint, pods: Sequence[Pod], nodes: Sequence[Node], gone: set[str]) -> list[SpreadDomain]:
    """Return the domains by value of the topology key, empty ones included."""
    found: dict[str, SpreadDomain] = {}
    of_node: dict[str, SpreadDomain] = {}
    for node in nodes:
        value = node.metadata.labels.get(rule.key)
        if value is None or not _is_node_counted(rule, node):
            continue
        domain = found.setdefault(value, SpreadDomain(value))
        domain.nodes.add(node.metadata.name)
        of_node[node.metadata.name] = domain
    for pod in pods:
        own = of_node.get(pod.spec.node_name)
        leaving = pod.metadata.deletion_timestamp is not None or pod.metadata.uid in gone
        if own is not None and not leaving and rule.selector.matches(pod.metadata.labels):
            own.pods.append(pod)
    return list(found.values())


def _is_node_counted(rule: SpreadConstraint, node: Node) -> bool:
    spec = rule.example.spec
    if rule.honors_affinity and not matches_node_affinity(spec, node):
        return False
    return not rule.honors_taints or find_untolerated_taint(spec.tolerations, node.spec.taints) is None


def _violated_topology_spread_errors(args: RemovePodsViolatingTopologySpreadConstraintArgs) -> list[str]:
    errors = plugin_args.selection_errors(args)
    unknown = [kind for kind in args.constraints if kind not in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY)]
    if unknown:
        known = f"{DO_NOT_SCHEDULE} and {SCHEDULE_ANYWAY}"
        errors.append(f"unknown constraint {', '.join(unknown)}; known are {known}")
    return errors


build_violated_topology_spread = plugin_args.plugin_factory(
    RemovePodsViolatingTopologySpreadConstraint,
    RemovePodsViolatingTopologySpreadConstraintArgs,
    _violated_topology_spread_errors,
)
