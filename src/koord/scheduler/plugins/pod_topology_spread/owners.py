"""This module finds the selectors behind a pod: those of Services that select it and of the controller that
owns it.

Default spread constraints count the pods that these select.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from koord.api.kubernetes.builtin_kinds import REPLICA_SETS, REPLICATION_CONTROLLERS, SERVICES, STATEFUL_SETS
from koord.api.kubernetes.meta import LabelSelector, OwnerReference, stored_label_selector
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.handle import Handle
from koord.values.selector import EVERYTHING, Operator, Requirement, Selector

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
