"""RemovePodsViolatingTopologySpreadConstraint evicts pods from crowded domains while others have too few."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, ClassVar

import msgspec

from koord.api.affinity import TopologySpreadConstraint
from koord.api.config.descheduler.args import Namespaces, PluginArgs
from koord.api.meta import LabelSelector
from koord.api.node import Node
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Hand
from koord.descheduler.plugins.choice import selector_of
from koord.descheduler.plugins.kube.anti_affinity import least_first
from koord.descheduler.plugins.kube.args import Chosen, namespace_errors, read, selector_error
from koord.descheduler.plugins.node_fit import Fitting
from koord.descheduler.wire import Pod
from koord.policy.node_suitability import NO_EXECUTE, NO_SCHEDULE, selects, untolerated
from koord.values.requirement import Operator, Requirement
from koord.values.selector import NOTHING, Selector

DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"


class Args(PluginArgs, frozen=True, kw_only=True):
    namespaces: Namespaces | None = None
    label_selector: LabelSelector | None = None
    constraints: tuple[str, ...] = ()
    topology_balance_node_fit: bool | None = None


class Constraint(msgspec.Struct, frozen=True):
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


class Domain:
    def __init__(self, value: str) -> None:
        self.value = value
        self.nodes: set[str] = set()
        self.pods: list[Pod] = []


class ViolatedTopologySpread(Plugin):
    name: ClassVar[str] = "RemovePodsViolatingTopologySpreadConstraint"

    def __init__(self, args: Args) -> None:
        self._chosen = Chosen(args.namespaces, args.label_selector)
        self._kinds = args.constraints or (DO_NOT_SCHEDULE,)
        self._node_fit = args.topology_balance_node_fit is not False

    def balance(self, nodes: Sequence[Node], hand: Hand) -> str | None:
        fitting = Fitting(hand.snapshot)
        by_namespace: dict[str, list[Pod]] = {}
        for node in nodes:
            for pod in hand.snapshot.on(node.metadata.name):
                by_namespace.setdefault(pod.metadata.namespace, []).append(pod)
        gone: set[str] = set()
        for namespace in sorted(by_namespace):
            pods = by_namespace[namespace]
            rules: dict[object, Constraint] = {}
            for pod in pods:
                if pod.metadata.deletion_timestamp is None and self._chosen.of(pod):
                    for rule in self._rules(pod):
                        rules.setdefault(rule.identity, rule)
            for rule in rules.values():
                self._level(rule, pods, nodes, hand, fitting, gone)
        return None

    def _rules(self, pod: Pod) -> list[Constraint]:
        stated = (c for c in pod.spec.topology_spread_constraints if c.when_unsatisfiable in self._kinds)
        return [_constraint(each, pod) for each in stated]

    def _level(
        self,
        rule: Constraint,
        pods: Sequence[Pod],
        nodes: Sequence[Node],
        hand: Hand,
        fitting: Fitting,
        gone: set[str],
    ) -> None:
        domains = _domains(rule, pods, nodes, gone)
        if len(domains) < 2:
            return
        ranked = sorted(domains, key=lambda domain: len(domain.pods))
        if len(ranked[-1].pods) - len(ranked[0].pods) <= rule.max_skew:
            return
        mean = sum(len(domain.pods) for domain in ranked) / len(ranked)
        for pod in self._surplus(rule, ranked, mean, nodes, hand, fitting):
            if hand.evict(pod, "") is None:
                gone.add(pod.metadata.uid)

    def _surplus(
        self,
        rule: Constraint,
        ranked: list[Domain],
        mean: float,
        nodes: Sequence[Node],
        hand: Hand,
        fitting: Fitting,
    ) -> list[Pod]:
        """Return the pods to evict, from the fullest domains down, as many as bring both ends nearer to the mean."""
        found: list[Pod] = []
        sizes = [len(domain.pods) for domain in ranked]
        for domain in ranked:
            domain.pods = self._in_order(domain.pods, hand)
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
            fitting_last = sorted(ranked[high].pods, key=lambda pod: self._fits(pod, below, fitting))
            taken, ranked[high].pods = fitting_last[-count:], fitting_last[:-count]
            sizes[low] += count
            sizes[high] -= count
            found += [
                pod for pod in reversed(taken) if self._fits(pod, below, fitting) and self._chosen.takes(pod, hand)
            ]
        return found

    def _is_below(self, node: Node, ranked: list[Domain], sizes: list[int], mean: float) -> bool:
        name = node.metadata.name
        return any(name in domain.nodes and size < mean for domain, size in zip(ranked, sizes, strict=True))

    def _fits(self, pod: Pod, nodes: Sequence[Node], fitting: Fitting) -> bool:
        return not self._node_fit or fitting.elsewhere(pod, nodes) is not None

    def _in_order(self, pods: list[Pod], hand: Hand) -> list[Pod]:
        """Sort pods so that the last is evicted first: protected pods, pods bound to some nodes, then by importance."""

        def order(pod: Pod) -> tuple[int, int, int]:
            priority, qos = least_first(pod)
            if not self._chosen.takes(pod, hand):
                return 0, -priority, -qos
            bound = bool(pod.spec.node_selector or pod.spec.affinity is not None)
            return 1 if bound else 2, -priority, -qos

        return sorted(pods, key=order)


def _constraint(given: TopologySpreadConstraint, pod: Pod) -> Constraint:
    selector = selector_of(given.label_selector) if given.label_selector is not None else NOTHING
    assert selector is not None
    if given.match_label_keys and not selector.nothing:
        own = [
            Requirement(key, Operator.IN, (pod.metadata.labels[key],))
            for key in given.match_label_keys
            if key in pod.metadata.labels
        ]
        selector = Selector((*selector.requirements, *own))
    return Constraint(
        given.topology_key,
        given.max_skew,
        selector,
        (given.node_affinity_policy or "Honor") == "Honor",
        (given.node_taints_policy or "Ignore") == "Honor",
        pod,
    )


def _domains(rule: Constraint, pods: Sequence[Pod], nodes: Sequence[Node], gone: set[str]) -> list[Domain]:
    """Return the domains by value of the topology key, empty ones included."""
    found: dict[str, Domain] = {}
    of_node: dict[str, Domain] = {}
    for node in nodes:
        value = node.metadata.labels.get(rule.key)
        if value is None or not _counts(rule, node):
            continue
        domain = found.setdefault(value, Domain(value))
        domain.nodes.add(node.metadata.name)
        of_node[node.metadata.name] = domain
    for pod in pods:
        own = of_node.get(pod.spec.node_name)
        leaving = pod.metadata.deletion_timestamp is not None or pod.metadata.uid in gone
        if own is not None and not leaving and rule.selector.matches(pod.metadata.labels):
            own.pods.append(pod)
    return list(found.values())


def _counts(rule: Constraint, node: Node) -> bool:
    spec = rule.example.spec
    if rule.honors_affinity and not selects(spec, node):
        return False
    return not rule.honors_taints or untolerated(spec.tolerations, node.spec.taints, (NO_SCHEDULE, NO_EXECUTE)) is None


def violated_topology_spread(raw: Any) -> Plugin | list[str]:
    args = read(ViolatedTopologySpread.name, Args, raw)
    if isinstance(args, list):
        return args
    errors = namespace_errors(args.namespaces) + selector_error(args.label_selector)
    unknown = [kind for kind in args.constraints if kind not in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY)]
    if unknown:
        known = f"{DO_NOT_SCHEDULE} and {SCHEDULE_ANYWAY}"
        errors.append(f"unknown constraint {', '.join(unknown)}; known are {known}")
    return errors or ViolatedTopologySpread(args)
