"""Whether a volume could be made for a claim near a node: what its class allows and what its driver has left."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from koord.api.builtin import CSI_DRIVERS, CSI_STORAGE_CAPACITIES, STORAGE_CLASSES
from koord.api.storage import CSIStorageCapacity, StorageClass
from koord.api.volume import PersistentVolumeClaim
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.volumes.claims import class_of
from koord.scheduler.plugins.volumes.shelf import storage
from koord.values.quantity import Quantity
from koord.values.requirement import SelectorError
from koord.values.selector import NOTHING, Selector

_NO_PROVISIONER = "kubernetes.io/no-provisioner"
UNABLE, FULL = "unable", "full"


class Provisioning:
    def __init__(self, handle: Handle) -> None:
        self._classes = handle.lister(STORAGE_CLASSES)
        self._drivers = handle.lister(CSI_DRIVERS)
        self._capacities = handle.lister(CSI_STORAGE_CAPACITIES)
        self._pools: dict[str, list[tuple[int, Selector]]] = {}
        self._read: Hashable = None

    @property
    def version(self) -> Hashable:
        return self._classes.version, self._drivers.version, self._capacities.version

    def objection(self, claim: PersistentVolumeClaim, labels: Mapping[str, str]) -> str:
        """UNABLE where no volume can be made at all, FULL where there is no room for it, else nothing."""
        found = self._classes.get("", class_of(claim))
        if found is None or found.provisioner in ("", _NO_PROVISIONER) or not _allowed(found, labels):
            return UNABLE
        return "" if self._has_room(found, claim, labels) else FULL

    def _has_room(self, storage_class: StorageClass, claim: PersistentVolumeClaim, labels: Mapping[str, str]) -> bool:
        """Only drivers that say so report how much they have."""
        if "storage" not in claim.spec.resources.requests:
            return True
        driver = self._drivers.get("", storage_class.provisioner)
        if driver is None or not driver.spec.storage_capacity:
            return True
        size = storage(claim.spec.resources.requests).value()
        pools = self._by_class().get(storage_class.metadata.name, ())
        return any(limit >= size and near.matches(labels) for limit, near in pools)

    def _by_class(self) -> dict[str, list[tuple[int, Selector]]]:
        if self._read != self._capacities.version:
            self._pools, self._read = {}, self._capacities.version
            for pool in self._capacities.list():
                limit = largest_volume(pool)
                if limit is not None:
                    self._pools.setdefault(pool.storage_class_name, []).append((limit, _near(pool)))
        return self._pools


def largest_volume(pool: CSIStorageCapacity) -> int | None:
    told = pool.maximum_volume_size if pool.maximum_volume_size is not None else pool.capacity
    return None if told is None else Quantity.parse(told).value()


def _allowed(storage_class: StorageClass, labels: Mapping[str, str]) -> bool:
    terms = storage_class.allowed_topologies
    return not terms or any(
        term.match_label_expressions
        and all(labels.get(each.key) in each.values for each in term.match_label_expressions)
        for term in terms
    )


def _near(pool: CSIStorageCapacity) -> Selector:
    """A pool that names no nodes, or names them in a way that cannot be read, is reached from none."""
    wanted = pool.node_topology
    if wanted is None:
        return NOTHING
    try:
        return Selector.of(wanted.match_labels, ((e.key, e.operator, e.values) for e in wanted.match_expressions))
    except SelectorError:
        return NOTHING
