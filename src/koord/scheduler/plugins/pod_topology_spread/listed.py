"""OwnerLister reads the selectors of owners from the scheduler's listers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.builtin import REPLICA_SETS, REPLICATION_CONTROLLERS, SERVICES, STATEFUL_SETS
from koord.api.meta import LabelSelector, OwnerReference
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.pod_topology_spread.owner import (
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    SERVICE,
    STATEFUL_SET,
    OwnerIndex,
    is_counted,
    lenient_selector,
)
from koord.values.selector import Selector


class ListedOwners:
    """The owners of the scheduler's listers.

    Controllers change their status with every pod, so their selectors are compared and not their versions.
    """

    def __init__(self, handle: Handle) -> None:
        self._services = handle.lister(SERVICES)
        self._controllers = handle.lister(REPLICATION_CONTROLLERS)
        self._replica_sets = handle.lister(REPLICA_SETS)
        self._stateful_sets = handle.lister(STATEFUL_SETS)
        self._indexed: dict[str, tuple[int, OwnerIndex]] = {}  # a namespace's Services, read at a version

    def stamp(self, namespace: str, owner: OwnerReference | None) -> object:
        if owner is None or not is_counted(owner):
            return self._services.version
        return self._services.version, self._written(owner.kind, namespace, owner.name)

    def services(self, namespace: str, labels: Mapping[str, str]) -> Iterable[Selector]:
        version = self._services.version
        known = self._indexed.get(namespace)
        if known is None or known[0] != version:
            index = OwnerIndex()
            for service in self._services.list(namespace):
                index.set(SERVICE, namespace, service.metadata.name, Selector.of_labels(service.spec.selector))
            known = self._indexed[namespace] = (version, index)
        return known[1].services(namespace, labels)

    def selector(self, kind: str, namespace: str, name: str) -> Selector | None:
        written = self._written(kind, namespace, name)
        if written is None:
            return None
        return lenient_selector(written) if isinstance(written, LabelSelector) else Selector.of_labels(written)

    def _written(self, kind: str, namespace: str, name: str) -> LabelSelector | Mapping[str, str] | None:
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
