"""This module resolves a pod's spread constraints: what to count, within which domains, and the allowed skew.

It also finds the selectors behind a pod: those of Services that select it and of the controller that
owns it.

Default spread constraints count the pods that these select.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from koord.api.config.scheduler.in_tree_args import SYSTEM_DEFAULTING, PodTopologySpreadArgs
from koord.api.kubernetes.affinity import TopologySpreadConstraint
from koord.api.kubernetes.builtin_kinds import REPLICA_SETS, REPLICATION_CONTROLLERS, SERVICES, STATEFUL_SETS
from koord.api.kubernetes.meta import LabelSelector, OwnerReference, label_selector_as_selector, stored_label_selector
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.verdict import Fault
from koord.values.selector import EVERYTHING, Operator, Requirement, Selector, SelectorError

SERVICE: Final = "Service"
REPLICATION_CONTROLLER: Final = "ReplicationController"
REPLICA_SET: Final = "ReplicaSet"
STATEFUL_SET: Final = "StatefulSet"
_VERSIONS: Final = {REPLICATION_CONTROLLER: "v1", REPLICA_SET: "apps/v1", STATEFUL_SET: "apps/v1"}


class OwnerSelectors(Protocol):
    def version_for(self, namespace: str, owner: OwnerReference | None) -> object:
        """Return a value that differs when an answer about pods of this owner may have changed."""

    def services(self, namespace: str, labels: Mapping[str, str]) -> Iterable[Selector]:
        """Return the selectors of the Services that select pods with these labels, in the order of their names."""

    def selector(self, kind: str, namespace: str, name: str) -> Selector | None:
        """Return the selector of a ReplicationController, ReplicaSet or StatefulSet; None when it is unknown."""


class OwnerIndex:
    """Owners in memory, found by name and Services also by label. Only a changed selector changes the version."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Selector] = {}
        self._services: dict[tuple[str, str, str], dict[str, Selector]] = {}  # (namespace, label, value) -> by name
        self._versions: dict[str, int] = {}

    def version_for(self, namespace: str, owner: OwnerReference | None) -> object:
        return self._versions.get(namespace, 0)

    def services(self, namespace: str, labels: Mapping[str, str]) -> Iterable[Selector]:
        if not self._services:
            return ()
        found = {
            name: selector
            for key, value in labels.items()
            for name, selector in self._services.get((namespace, key, value), {}).items()
            if selector.matches(labels)
        }
        return [found[name] for name in sorted(found)]

    def selector(self, kind: str, namespace: str, name: str) -> Selector | None:
        return self._known.get((kind, namespace, name))

    def set(self, kind: str, namespace: str, name: str, selector: Selector) -> None:
        key = (kind, namespace, name)
        if self._known.get(key) == selector:
            return
        self.drop(*key)
        self._known[key] = selector
        self._versions[namespace] = self._versions.get(namespace, 0) + 1
        if kind == SERVICE and selector.requirements:
            self._services.setdefault(_service_key(namespace, selector), {})[name] = selector

    def drop(self, kind: str, namespace: str, name: str) -> None:
        selector = self._known.pop((kind, namespace, name), None)
        if selector is None:
            return
        self._versions[namespace] = self._versions.get(namespace, 0) + 1
        if kind == SERVICE and selector.requirements:
            here = self._services[_service_key(namespace, selector)]
            del here[name]
            if not here:
                del self._services[_service_key(namespace, selector)]


def _service_key(namespace: str, selector: Selector) -> tuple[str, str, str]:
    """Return the index key of a Service: its selector names values only, so a selected pod has the first of them."""
    first = selector.requirements[0]
    return namespace, first.key, first.values[0]


def join_requirements(requirements: Iterable[Requirement]) -> Selector:
    """Join requirements into one selector; equal sets of requirements give equal selectors."""
    return Selector(tuple(sorted(dict.fromkeys(requirements), key=lambda r: (r.key, r.operator, r.values))))


def is_known_owner_kind(owner: OwnerReference) -> bool:
    """Return whether default constraints consider owners of this kind."""
    return _VERSIONS.get(owner.kind) == owner.api_version


def default_selector(pod: PodInfo, owners: OwnerSelectors) -> Selector:
    """Return what Kubernetes spreads a pod without constraints by; everything when nothing owns or selects it."""
    labels: dict[str, str] = {}
    for service in owners.services(pod.namespace, pod.labels):
        labels.update((r.key, r.values[0]) for r in service.requirements)
    more: tuple[Requirement, ...] = ()
    owner = pod.owner
    if owner is not None and is_known_owner_kind(owner):
        selector = owners.selector(owner.kind, pod.namespace, owner.name)
        if selector is not None and not selector.matches_nothing:
            if owner.kind == REPLICATION_CONTROLLER:
                labels.update((r.key, r.values[0]) for r in selector.requirements)
            else:
                more = selector.requirements
    if not labels and not more:
        return EVERYTHING
    exact = (Requirement(key, Operator.EQUALS, (value,)) for key, value in labels.items())
    return join_requirements((*exact, *more))


class OwnerLister:
    """The owners of the scheduler's listers, compared by selector: their versions change with every pod's status."""

    def __init__(self, handle: Handle) -> None:
        self._services = handle.lister(SERVICES)
        self._controllers = handle.lister(REPLICATION_CONTROLLERS)
        self._replica_sets = handle.lister(REPLICA_SETS)
        self._stateful_sets = handle.lister(STATEFUL_SETS)
        self._indexed: dict[str, tuple[int, OwnerIndex]] = {}  # a namespace's Services, read at a version

    def version_for(self, namespace: str, owner: OwnerReference | None) -> object:
        if owner is None or not is_known_owner_kind(owner):
            return self._services.version
        return self._services.version, self._owner_selector(owner.kind, namespace, owner.name)

    def services(self, namespace: str, labels: Mapping[str, str]) -> Iterable[Selector]:
        version = self._services.version
        known = self._indexed.get(namespace)
        if known is None or known[0] != version:
            index = OwnerIndex()
            for service in self._services.list(namespace):
                index.set(SERVICE, namespace, service.metadata.name, Selector.from_labels(service.spec.selector))
            known = self._indexed[namespace] = (version, index)
        return known[1].services(namespace, labels)

    def selector(self, kind: str, namespace: str, name: str) -> Selector | None:
        written = self._owner_selector(kind, namespace, name)
        if written is None:
            return None
        return stored_label_selector(written) if isinstance(written, LabelSelector) else Selector.from_labels(written)

    def _owner_selector(self, kind: str, namespace: str, name: str) -> LabelSelector | Mapping[str, str] | None:
        if kind == REPLICATION_CONTROLLER:
            controller = self._controllers.get(namespace, name)
            return controller.spec.selector if controller is not None else None
        if kind == REPLICA_SET:
            replica_set = self._replica_sets.get(namespace, name)
            return replica_set.spec.selector if replica_set is not None else None
        if kind == STATEFUL_SET:
            stateful_set = self._stateful_sets.get(namespace, name)
            return stateful_set.spec.selector if stateful_set is not None else None
        return None


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
