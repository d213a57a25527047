"""This module matches PersistentVolumes with claims: an index of all volumes, and the volumes that suit one
claim.

Thousands of local volumes or storage pools differ in one label value only; those cost one look per node,
not one each.

ProvisioningCheck tells whether a volume could be provisioned for a claim on a node: class, topology and capacity.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from koord.api.kubernetes.affinity import NodeSelector
from koord.api.kubernetes.builtin_kinds import CSI_DRIVERS, CSI_STORAGE_CAPACITIES, PERSISTENT_VOLUMES, STORAGE_CLASSES
from koord.api.kubernetes.meta import label_selector_as_selector, stored_label_selector
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.kubernetes.volume import CSIStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass
from koord.api.model import ResourceList
from koord.policy.node_match import NodeTerms
from koord.scheduler.cache.node_table import Bools, NodeTable, RowList, Rows
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.node_affinity import node_terms_mask, selector_mask
from koord.scheduler.plugins.volumes.pod_volumes import is_reserved_for, storage_class_of
from koord.values.quantity import Quantity
from koord.values.selector import Operator, Selector

LabelValues = tuple[str, tuple[str, ...]]  # a label, and the values that it may have


def label_values_mask(pins: Mapping[str, Iterable[str]], table: NodeTable, rows: Rows) -> Bools:
    """Return the rows whose nodes have one of the values of one of the labels."""
    mask = np.zeros(len(table.alive[rows]), np.bool_)
    for key, values in pins.items():
        held = frozenset(values)
        if len(held) == 1:
            (only,) = held
            code = table.label_column(key).code_of(only)
            if code is not None:
                mask |= table.label_column(key).codes[rows] == code
        elif held:
            mask |= table.label_column(key).map_values(rows, held.__contains__) != 0
    return mask


def group_rows_by_labels(keys: Iterable[str], table: NodeTable, rows: Rows) -> tuple[RowList, RowList]:
    """Group rows whose nodes have equal values of these labels: return a row of each group, and each row's group."""
    alive = table.alive[rows]
    groups: RowList = alive.astype(np.intp)  # rows without a node are no match for nodes without labels
    for key in sorted(keys):
        label = table.label_column(key)
        _, groups = np.unique(groups * len(label.values) + label.codes[rows], return_inverse=True)
    _, firsts, groups = np.unique(groups, return_index=True, return_inverse=True)
    return firsts, groups


_FILESYSTEM = "Filesystem"
_ZERO = Quantity.from_value(0)


class IndexedVolume(msgspec.Struct, frozen=True):
    size: Quantity
    name: str
    volume: PersistentVolume
    mode_and_class: tuple[str, str]
    access_modes: frozenset[str]
    is_available: bool  # free, as far as the volume itself says
    node_selector: NodeSelector | None  # where it can be reached from; None: everywhere
    node_label: LabelValues | None  # the same, where one label says it

    @property
    def order(self) -> tuple[Quantity, str]:
        return self.size, self.name


class PvIndex:
    def __init__(self, handle: Handle) -> None:
        self._by_class: dict[str, list[IndexedVolume]] = {}
        handle.lister(PERSISTENT_VOLUMES).on_change(self._changed)

    def at_least(self, storage_class: str, least: Quantity) -> Sequence[IndexedVolume]:
        """Return the volumes of a class that are no smaller than this."""
        held = self._by_class.get(storage_class, [])
        return held[bisect_left(held, least, key=_size) :]

    def _changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if old is not None:
            held = self._by_class[storage_class_of(old)]
            at = bisect_left(held, (storage_quantity(old.spec.capacity), old.metadata.name), key=_order)
            assert held[at].name == old.metadata.name, f"{old.metadata.name} is not in stock"
            del held[at]
        if new is not None:
            insort(self._by_class.setdefault(storage_class_of(new), []), index_volume(new), key=_order)


def index_volume(volume: PersistentVolume) -> IndexedVolume:
    spec = volume.spec
    near = spec.node_affinity.required if spec.node_affinity is not None else None
    return IndexedVolume(
        size=storage_quantity(spec.capacity),
        name=volume.metadata.name,
        volume=volume,
        mode_and_class=volume_mode_and_class(volume),
        access_modes=frozenset(spec.access_modes),
        is_available=volume.status.phase == "Available",
        node_selector=near,
        node_label=_single_label(near),
    )


def volume_mode_and_class(one: PersistentVolume | PersistentVolumeClaim) -> tuple[str, str]:
    """Return what must be equal in a volume and in a claim for it."""
    return one.spec.volume_mode or _FILESYSTEM, one.spec.volume_attributes_class_name or ""


def storage_quantity(amounts: ResourceList) -> Quantity:
    found = amounts.get("storage")
    return _ZERO if found is None else Quantity.parse(found)


def _single_label(near: NodeSelector | None) -> LabelValues | None:
    if near is None or len(near.node_selector_terms) != 1:
        return None
    (term,) = near.node_selector_terms
    if term.match_fields or len(term.match_expressions) != 1:
        return None
    (condition,) = term.match_expressions
    return (condition.key, tuple(condition.values)) if condition.operator == "In" and condition.values else None


def _size(item: IndexedVolume) -> Quantity:
    return item.size


def _order(item: IndexedVolume) -> tuple[Quantity, str]:
    return item.order


class PvMatcher:
    """The volumes that suit one claim on any node, smallest first; only their node affinity depends on the node."""

    def __init__(
        self,
        claim: PersistentVolumeClaim,
        items: Iterable[IndexedVolume],
        as_assumed: Callable[[PersistentVolume], PersistentVolume],
    ) -> None:
        """Sort the volumes; `items` are of the claim's class, large enough and in order."""
        selector, kind, modes = claim_selector(claim), volume_mode_and_class(claim), frozenset(claim.spec.access_modes)
        self._reserved: list[PersistentVolume] = []
        self._free: list[PersistentVolume] = []
        # Places in `_free`, by where they are reached from.
        self._by_label: dict[str, dict[str, list[int]]] = {}
        self._by_selector: dict[NodeSelector | None, list[int]] = {}
        for item in items:
            volume = as_assumed(item.volume)
            ref, meta = volume.spec.claim_ref, volume.metadata
            if item.mode_and_class != kind or meta.deletion_timestamp is not None:
                continue
            if ref is not None:
                if is_reserved_for(volume, claim):
                    self._reserved.append(volume)
            elif (
                item.is_available and modes <= item.access_modes and (selector is None or selector.matches(meta.labels))
            ):
                self._add(item, volume)

    def _add(self, item: IndexedVolume, volume: PersistentVolume) -> None:
        at = len(self._free)
        self._free.append(volume)
        if item.node_label is None:
            self._by_selector.setdefault(item.node_selector, []).append(at)
            return
        key, values = item.node_label
        by_value = self._by_label.setdefault(key, {})
        for value in values:
            by_value.setdefault(value, []).append(at)

    @property
    def volume_names(self) -> frozenset[str]:
        return frozenset(volume.metadata.name for volume in (*self._reserved, *self._free))

    @property
    def label_keys(self) -> frozenset[str] | None:
        """Return the labels that decide which volumes a node reaches; None when labels alone do not decide."""
        near = [
            volume.spec.node_affinity.required for volume in self._reserved if volume.spec.node_affinity is not None
        ]
        terms = [term for each in (*near, *self._by_selector) if each is not None for term in each.node_selector_terms]
        if any(term.match_fields for term in terms):
            return None
        return frozenset(self._by_label).union(each.key for term in terms for each in term.match_expressions)

    def pick(self, node: Node, taken: Collection[str]) -> PersistentVolume | None:
        """Return the volume for the node. One reserved for the claim is the only candidate, reached or not."""
        for volume in self._reserved:
            if volume.metadata.name not in taken:
                near = volume_node_affinity(volume)
                return volume if near is None or near.matches(node) else None
        labels = node.metadata.labels
        found = [
            self._first(by_value.get(labels[key], ()), taken)
            for key, by_value in self._by_label.items()
            if key in labels
        ]
        for near_by, places in self._by_selector.items():
            if near_by is None or node_terms(near_by).matches(node):
                found.append(self._first(places, taken))
        at = min((place for place in found if place is not None), default=None)
        return None if at is None else self._free[at]

    def matching_rows(self, table: NodeTable, rows: Rows) -> Bools:
        """Return the rows on which a volume would be picked, as long as no other claim took one."""
        everywhere = np.ones(len(table.alive[rows]), np.bool_)
        if self._reserved:
            near = volume_node_affinity(self._reserved[0])
            return everywhere if near is None else node_terms_mask(near, table, rows)
        if None in self._by_selector:
            return everywhere
        mask = label_values_mask(self._by_label, table, rows)
        for near_by in self._by_selector:
            assert near_by is not None
            mask |= node_terms_mask(node_terms(near_by), table, rows)
        return mask

    def _first(self, places: Sequence[int], taken: Collection[str]) -> int | None:
        return next((at for at in places if self._free[at].metadata.name not in taken), None)


@functools.lru_cache(maxsize=1024)
def node_terms(near: NodeSelector) -> NodeTerms:
    return NodeTerms(near)


def volume_node_affinity(volume: PersistentVolume) -> NodeTerms | None:
    near = volume.spec.node_affinity
    return node_terms(near.required) if near is not None and near.required is not None else None


def claim_selector(claim: PersistentVolumeClaim) -> Selector | None:
    """Parse the claim's selector. Raise SelectorError."""
    wanted = claim.spec.selector
    return None if wanted is None else label_selector_as_selector(wanted)


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
