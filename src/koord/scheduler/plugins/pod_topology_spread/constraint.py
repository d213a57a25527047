"""This module resolves a pod's spread constraints: what to count, within which domains, and the allowed skew.

Counting is left to `domain_counts`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from weakref import WeakValueDictionary

import msgspec

from koord.api.affinity import TopologySpreadConstraint
from koord.api.config.scheduler.in_tree import SYSTEM_DEFAULTING, PodTopologySpreadArgs
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.plugins.pod_topology_spread.owner import Owners, default_selector, joined, selector_of
from koord.scheduler.state.pod import PodInfo
from koord.values.requirement import Operator, Requirement, SelectorError
from koord.values.selector import Selector

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
HARD = "DoNotSchedule"
SOFT = "ScheduleAnyway"
HONOR = "Honor"

SYSTEM_CONSTRAINTS = (
    TopologySpreadConstraint(topology_key=HOSTNAME, when_unsatisfiable=SOFT, max_skew=3),
    TopologySpreadConstraint(topology_key=ZONE, when_unsatisfiable=SOFT, max_skew=5),
)


class Constraint(msgspec.Struct, frozen=True):
    topology_key: str
    selector: Selector
    max_skew: int
    min_domains: int
    honors_affinity: bool
    honors_taints: bool
    self_match: bool  # whether the pod itself is one of those that are counted


class Spread:
    """All that this plugin reads of a pod. Equal contents share one instance, so identity is equality."""

    __slots__ = ("__weakref__", "hard", "namespace", "needs_all_keys", "soft")

    def __init__(
        self, namespace: str, hard: tuple[Constraint, ...], soft: tuple[Constraint, ...], *, needs_all_keys: bool
    ) -> None:
        self.namespace = namespace
        self.hard = hard
        self.soft = soft
        # Kubernetes' own defaults spread over hosts even where nodes have no zone; all others ignore such nodes.
        self.needs_all_keys = needs_all_keys


class Spreads:
    """Resolves pods to their spread constraints. The arguments are defaulted."""

    def __init__(self, args: PodTopologySpreadArgs, owners: Owners) -> None:
        system = args.defaulting_type == SYSTEM_DEFAULTING
        self._defaults = SYSTEM_CONSTRAINTS if system else args.default_constraints
        self._system = system
        self._owners = owners
        self._known: WeakValueDictionary[Hashable, Spread] = WeakValueDictionary()

    def of(self, pod: PodInfo) -> Spread | Fault | None:
        """Return the pod's constraints; None when it has none."""
        if pod.shape.spec.topology_spread_constraints:
            key = (self, pod.shape)
            memo = pod.peers.memo
            if key not in memo:
                memo[key] = self._own(pod)
            own: Spread | Fault | None = memo[key]
            return own
        return self._default(pod) if self._defaults else None

    def _own(self, pod: PodInfo) -> Spread | Fault | None:
        given = pod.shape.spec.topology_spread_constraints
        try:
            hard = tuple(_resolved(c, _own_selector(c, pod.labels), pod.labels) for c in _of_kind(given, HARD))
        except SelectorError as error:
            return Fault(f"get constraints from pod: obtaining pod's hard topology spread constraints: {error}")
        try:
            soft = tuple(_resolved(c, _own_selector(c, pod.labels), pod.labels) for c in _of_kind(given, SOFT))
        except SelectorError as error:
            return Fault(f"calculating preScoreState: obtaining pod's soft topology spread constraints: {error}")
        return self._shared(pod.namespace, hard, soft, needs_all_keys=True)

    def _default(self, pod: PodInfo) -> Spread | None:
        owner = pod.owner
        key = (self, None if owner is None else (owner.api_version, owner.kind, owner.name))
        stamp = self._owners.stamp(pod.namespace, owner)
        memo = pod.peers.memo
        kept = memo.get(key)
        if kept is not None and kept[0] == stamp:
            spread: Spread | None = kept[1]
            return spread
        selector = default_selector(pod, self._owners)
        spread = None
        if selector.requirements:
            hard, soft = (
                tuple(_resolved(c, selector, pod.labels) for c in _of_kind(self._defaults, kind))
                for kind in (HARD, SOFT)
            )
            spread = self._shared(pod.namespace, hard, soft, needs_all_keys=not self._system)
        memo[key] = (stamp, spread)
        return spread

    def _shared(
        self, namespace: str, hard: tuple[Constraint, ...], soft: tuple[Constraint, ...], *, needs_all_keys: bool
    ) -> Spread:
        key = (namespace, hard, soft, needs_all_keys)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Spread(namespace, hard, soft, needs_all_keys=needs_all_keys)
        return known


def _of_kind(constraints: Iterable[TopologySpreadConstraint], kind: str) -> list[TopologySpreadConstraint]:
    return [constraint for constraint in constraints if constraint.when_unsatisfiable == kind]


def _own_selector(constraint: TopologySpreadConstraint, labels: Mapping[str, str]) -> Selector:
    selector = selector_of(constraint.label_selector)
    same = [Requirement(k, Operator.EQUALS, (labels[k],)) for k in constraint.match_label_keys if k in labels]
    return joined((*same, *selector.requirements)) if same and not selector.nothing else selector


def _resolved(constraint: TopologySpreadConstraint, selector: Selector, labels: Mapping[str, str]) -> Constraint:
    return Constraint(
        topology_key=constraint.topology_key,
        selector=selector,
        max_skew=constraint.max_skew,
        min_domains=1 if constraint.min_domains is None else constraint.min_domains,
        honors_affinity=(constraint.node_affinity_policy or HONOR) == HONOR,
        honors_taints=constraint.node_taints_policy == HONOR,
        self_match=selector.matches(labels),
    )
