"""ProvisioningCheck tells whether a volume could be provisioned for a claim on a node: class, topology and capacity."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

import numpy as np

from koord.api.kubernetes.builtin_kinds import CSI_DRIVERS, CSI_STORAGE_CAPACITIES, STORAGE_CLASSES
from koord.api.kubernetes.meta import stored_label_selector
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.kubernetes.volume import CSIStorageCapacity, PersistentVolumeClaim, StorageClass
from koord.scheduler.cache.node_table import Bools, NodeTable, Rows
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.node_affinity import selector_mask
from koord.scheduler.plugins.volumes.pod_volumes import storage_class_of
from koord.scheduler.plugins.volumes.pv_matcher import label_values_mask, storage_quantity
from koord.values.quantity import Quantity
from koord.values.selector import Operator, Selector

_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_EQUALITY_OPERATORS = (Operator.IN, Operator.EQUALS, Operator.DOUBLE_EQUALS)
CANNOT_PROVISION, NO_CAPACITY = "unable", "full"


class ProvisioningCheck:
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("storage.k8s.io", ("csidrivers", "csistoragecapacities", "storageclasses"), READ_VERBS),
    )

    def __init__(self, handle: Handle) -> None:
        self._classes = handle.lister(STORAGE_CLASSES)
        self._drivers = handle.lister(CSI_DRIVERS)
        self._capacities = handle.lister(CSI_STORAGE_CAPACITIES)
        self._pools: dict[str, list[tuple[int, Selector]]] = {}
        self._read: Hashable = None
        self._reported: dict[str, ReportedCapacities] = {}  # by storage class
        self._reported_read: Hashable = None

    @property
    def version(self) -> Hashable:
        return self._classes.version, self._drivers.version, self._capacities.version

    def check(self, claim: PersistentVolumeClaim, labels: Mapping[str, str]) -> str:
        """Return CANNOT_PROVISION where none can be provisioned, NO_CAPACITY where capacity is missing, else ""."""
        found = self._classes.get("", storage_class_of(claim))
        if found is None or found.provisioner in ("", _NO_PROVISIONER) or not _is_topology_allowed(found, labels):
            return CANNOT_PROVISION
        return "" if self._has_capacity(found, claim, labels) else NO_CAPACITY

    def check_columns(self, claim: PersistentVolumeClaim, table: NodeTable, rows: Rows) -> tuple[Bools, Bools]:
        """Return the same for many nodes: where it is CANNOT_PROVISION, and where NO_CAPACITY."""
        none = np.zeros(len(table.alive[rows]), np.bool_)
        found = self._classes.get("", storage_class_of(claim))
        if found is None or found.provisioner in ("", _NO_PROVISIONER):
            return ~none, none
        unable = ~_allowed_mask(found, table, rows) if found.allowed_topologies else none
        size = self._size_to_check(found, claim)
        return unable, none if size is None else ~unable & ~self._capacity_mask(found, size, table, rows)

    def reported_capacity(self, claim: PersistentVolumeClaim, labels: Mapping[str, str]) -> int | None:
        """Return the largest capacity, in bytes, of those that are reported for such a node and suffice for the claim.

        None where the driver does not report its capacity.
        """
        found = self._classes.get("", storage_class_of(claim))
        size = self._size_to_check(found, claim) if found is not None else None
        if found is None or size is None:
            return None
        if self._reported_read != self._capacities.version:
            self._reported, self._reported_read = {}, self._capacities.version
            for pool in self._capacities.list():
                self._reported.setdefault(pool.storage_class_name, ReportedCapacities()).add(pool)
        reported = self._reported.get(found.metadata.name)
        return reported.largest(size, labels) if reported is not None else None

    def label_keys(self, claim: PersistentVolumeClaim) -> frozenset[str]:
        """Return the labels that decide the objection."""
        found = self._classes.get("", storage_class_of(claim))
        if found is None:
            return frozenset()
        allowed = {each.key for term in found.allowed_topologies for each in term.match_label_expressions}
        if self._size_to_check(found, claim) is None:
            return frozenset(allowed)
        pools = self._by_class().get(found.metadata.name, ())
        return frozenset(allowed).union(each.key for _, near in pools for each in near.requirements)

    def _capacity_mask(self, storage_class: StorageClass, size: int, table: NodeTable, rows: Rows) -> Bools:
        pins: dict[str, list[str]] = {}
        others: list[Selector] = []
        for limit, near in self._by_class().get(storage_class.metadata.name, ()):
            if limit < size:
                continue
            (first, *more) = near.requirements or (None,)
            if first is None or more or near.matches_nothing or first.operator not in _EQUALITY_OPERATORS:
                others.append(near)
            else:
                pins.setdefault(first.key, []).extend(first.values)
        mask = label_values_mask(pins, table, rows)
        for near in others:
            mask |= selector_mask(near, table, rows)
        return mask

    def _size_to_check(self, storage_class: StorageClass, claim: PersistentVolumeClaim) -> int | None:
        """Return the size to check; None for drivers that do not report their capacity."""
        if "storage" not in claim.spec.resources.requests:
            return None
        driver = self._drivers.get("", storage_class.provisioner)
        if driver is None or not driver.spec.storage_capacity:
            return None
        return storage_quantity(claim.spec.resources.requests).value()

    def _has_capacity(
        self, storage_class: StorageClass, claim: PersistentVolumeClaim, labels: Mapping[str, str]
    ) -> bool:
        size = self._size_to_check(storage_class, claim)
        if size is None:
            return True
        pools = self._by_class().get(storage_class.metadata.name, ())
        return any(limit >= size and near.matches(labels) for limit, near in pools)

    def _by_class(self) -> dict[str, list[tuple[int, Selector]]]:
        if self._read != self._capacities.version:
            self._pools, self._read = {}, self._capacities.version
            for pool in self._capacities.list():
                limit = largest_volume(pool)
                if limit is not None:
                    self._pools.setdefault(pool.storage_class_name, []).append(
                        (limit, stored_label_selector(pool.node_topology))
                    )
        return self._pools


class ReportedCapacities:
    """The capacities that are reported for one storage class, found by the label of the node that most of them name."""

    def __init__(self) -> None:
        self._by_label: dict[str, dict[str, list[tuple[int, int]]]] = {}  # key -> value -> (largest volume, capacity)
        self._others: list[tuple[int, int, Selector]] = []

    def add(self, pool: CSIStorageCapacity) -> None:
        limit = largest_volume(pool)
        if limit is None or pool.capacity is None:
            return
        capacity, near = Quantity.parse(pool.capacity).value(), stored_label_selector(pool.node_topology)
        (first, *more) = near.requirements or (None,)
        if first is None or more or near.matches_nothing or first.operator not in _EQUALITY_OPERATORS:
            self._others.append((limit, capacity, near))
            return
        for value in first.values:
            self._by_label.setdefault(first.key, {}).setdefault(value, []).append((limit, capacity))

    def largest(self, size: int, labels: Mapping[str, str]) -> int | None:
        """Return the largest capacity for a node with these labels of those that can hold a volume of this size."""
        found = [
            capacity
            for key, by_value in self._by_label.items()
            for limit, capacity in by_value.get(labels.get(key, ""), ())
            if limit >= size and key in labels
        ]
        found += [capacity for limit, capacity, near in self._others if limit >= size and near.matches(labels)]
        return max(found, default=None)


def largest_volume(pool: CSIStorageCapacity) -> int | None:
    told = pool.maximum_volume_size if pool.maximum_volume_size is not None else pool.capacity
    return None if told is None else Quantity.parse(told).value()


def _is_topology_allowed(storage_class: StorageClass, labels: Mapping[str, str]) -> bool:
    terms = storage_class.allowed_topologies
    return not terms or any(
        term.match_label_expressions
        and all(labels.get(each.key) in each.values for each in term.match_label_expressions)
        for term in terms
    )


def _allowed_mask(storage_class: StorageClass, table: NodeTable, rows: Rows) -> Bools:
    mask = np.zeros(len(table.alive[rows]), np.bool_)
    for term in storage_class.allowed_topologies:
        if term.match_label_expressions:
            here = np.ones(len(mask), np.bool_)
            for each in term.match_label_expressions:
                here &= label_values_mask({each.key: each.values}, table, rows)
            mask |= here
    return mask
