"""This module resolves a pod's spread constraints: what to count, within which domains, and the allowed skew."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from weakref import WeakValueDictionary

import msgspec

from koord.api.config.scheduler.in_tree_args import SYSTEM_DEFAULTING, PodTopologySpreadArgs
from koord.api.kubernetes.affinity import TopologySpreadConstraint
from koord.api.kubernetes.meta import label_selector_as_selector
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.plugins.pod_topology_spread.owners import OwnerSelectors, default_selector, join_requirements
from koord.values.selector import Operator, Requirement, Selector, SelectorError

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
DO_NOT_SCHEDULE = "DoNotSchedule"
SCHEDULE_ANYWAY = "ScheduleAnyway"
HONOR = "Honor"

SYSTEM_CONSTRAINTS = (
    TopologySpreadConstraint(topology_key=HOSTNAME, when_unsatisfiable=SCHEDULE_ANYWAY, max_skew=3),
    TopologySpreadConstraint(topology_key=ZONE, when_unsatisfiable=SCHEDULE_ANYWAY, max_skew=5),
)


class ResolvedSpreadConstraint(msgspec.Struct, frozen=True):
    topology_key: str
    selector: Selector
    max_skew: int
    min_domains: int
    honors_affinity: bool
    honors_taints: bool
    self_match: bool  # whether the pod itself is one of those that are counted


class PodSpread:
    """All that this plugin reads of a pod. Equal contents share one instance, so identity is equality."""

    __slots__ = ("__weakref__", "hard", "namespace", "needs_all_keys", "soft")

    def __init__(
        self,
        namespace: str,
        hard: tuple[ResolvedSpreadConstraint, ...],
        soft: tuple[ResolvedSpreadConstraint, ...],
        *,
        needs_all_keys: bool,
    ) -> None:
        self.namespace = namespace
        self.hard = hard
        self.soft = soft
        # Kubernetes' own defaults spread over hosts even where nodes have no zone; all others ignore such nodes.
        self.needs_all_keys = needs_all_keys


class PodSpreadResolver:
    """Resolves pods to their spread constraints. The arguments are defaulted."""

    def __init__(self, args: PodTopologySpreadArgs, owners: OwnerSelectors) -> None:
        system = args.defaulting_type == SYSTEM_DEFAULTING
        self._defaults = SYSTEM_CONSTRAINTS if system else args.default_constraints
        self._system = system
        self._owners = owners
        self._known: WeakValueDictionary[Hashable, PodSpread] = WeakValueDictionary()

    def resolve(self, pod: PodInfo) -> PodSpread | Fault | None:
        """Return the pod's constraints; None when it has none."""
        if pod.shape.spec.topology_spread_constraints:
            key = (self, pod.shape)
            memo = pod.label_group.memo
            if key not in memo:
                memo[key] = self._resolve_own(pod)
            own: PodSpread | Fault | None = memo[key]
            return own
        return self._resolve_default(pod) if self._defaults else None

    def _resolve_own(self, pod: PodInfo) -> PodSpread | Fault | None:
        given = pod.shape.spec.topology_spread_constraints
        try:
            hard = tuple(
                _resolve(c, _own_selector(c, pod.labels), pod.labels) for c in _with_action(given, DO_NOT_SCHEDULE)
            )
        except SelectorError as error:
            return Fault(f"get constraints from pod: obtaining pod's hard topology spread constraints: {error}")
        try:
            soft = tuple(
                _resolve(c, _own_selector(c, pod.labels), pod.labels) for c in _with_action(given, SCHEDULE_ANYWAY)
            )
        except SelectorError as error:
            return Fault(f"calculating preScoreState: obtaining pod's soft topology spread constraints: {error}")
        return self._interned(pod.namespace, hard, soft, needs_all_keys=True)

    def _resolve_default(self, pod: PodInfo) -> PodSpread | None:
        owner = pod.owner
        key = (self, None if owner is None else (owner.api_version, owner.kind, owner.name))
        version = self._owners.version_for(pod.namespace, owner)
        memo = pod.label_group.memo
        kept = memo.get(key)
        if kept is not None and kept[0] == version:
            spread: PodSpread | None = kept[1]
            return spread
        selector = default_selector(pod, self._owners)
        spread = None
        if selector.requirements:
            hard, soft = (
                tuple(_resolve(c, selector, pod.labels) for c in _with_action(self._defaults, kind))
                for kind in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY)
            )
            spread = self._interned(pod.namespace, hard, soft, needs_all_keys=not self._system)
        memo[key] = (version, spread)
        return spread

    def _interned(
        self,
        namespace: str,
        hard: tuple[ResolvedSpreadConstraint, ...],
        soft: tuple[ResolvedSpreadConstraint, ...],
        *,
        needs_all_keys: bool,
    ) -> PodSpread:
        key = (namespace, hard, soft, needs_all_keys)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = PodSpread(namespace, hard, soft, needs_all_keys=needs_all_keys)
        return known


def _with_action(constraints: Iterable[TopologySpreadConstraint], kind: str) -> list[TopologySpreadConstraint]:
    return [constraint for constraint in constraints if constraint.when_unsatisfiable == kind]


def _own_selector(constraint: TopologySpreadConstraint, labels: Mapping[str, str]) -> Selector:
    selector = label_selector_as_selector(constraint.label_selector)
    same = [Requirement(k, Operator.EQUALS, (labels[k],)) for k in constraint.match_label_keys if k in labels]
    return join_requirements((*same, *selector.requirements)) if same and not selector.matches_nothing else selector


def _resolve(
    constraint: TopologySpreadConstraint, selector: Selector, labels: Mapping[str, str]
) -> ResolvedSpreadConstraint:
    return ResolvedSpreadConstraint(
        topology_key=constraint.topology_key,
        selector=selector,
        max_skew=constraint.max_skew,
        min_domains=1 if constraint.min_domains is None else constraint.min_domains,
        honors_affinity=(constraint.node_affinity_policy or HONOR) == HONOR,
        honors_taints=constraint.node_taints_policy == HONOR,
        self_match=selector.matches(labels),
    )
