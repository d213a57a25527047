"""PvIndex holds all volumes by storage class, smallest first, with what claims compare computed once per
revision.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import msgspec

from koord.api.affinity import NodeSelector
from koord.api.builtin import PERSISTENT_VOLUMES
from koord.api.part import ResourceList
from koord.api.volume import PersistentVolume, PersistentVolumeClaim
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.volumes.claims import class_of
from koord.scheduler.plugins.volumes.pins import Pin
from koord.values.quantity import Quantity

_FILESYSTEM = "Filesystem"
_NONE = Quantity.from_value(0)


class Item(msgspec.Struct, frozen=True):
    size: Quantity
    name: str
    volume: PersistentVolume
    kind: tuple[str, str]
    modes: frozenset[str]
    offered: bool  # free, as far as the volume itself says
    near: NodeSelector | None  # where it can be reached from; None: everywhere
    pin: Pin | None  # the same, where one label says it

    @property
    def order(self) -> tuple[Quantity, str]:
        return self.size, self.name


class Stock:
    def __init__(self, handle: Handle) -> None:
        self._by_class: dict[str, list[Item]] = {}
        handle.lister(PERSISTENT_VOLUMES).on_change(self._changed)

    def of(self, storage_class: str, least: Quantity) -> Sequence[Item]:
        """Return the volumes of a class that are no smaller than this."""
        held = self._by_class.get(storage_class, [])
        return held[bisect_left(held, least, key=_size) :]

    def _changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if old is not None:
            held = self._by_class[class_of(old)]
            at = bisect_left(held, (storage(old.spec.capacity), old.metadata.name), key=_order)
            assert held[at].name == old.metadata.name, f"{old.metadata.name} is not in stock"
            del held[at]
        if new is not None:
            insort(self._by_class.setdefault(class_of(new), []), item_of(new), key=_order)


def item_of(volume: PersistentVolume) -> Item:
    spec = volume.spec
    near = spec.node_affinity.required if spec.node_affinity is not None else None
    return Item(
        size=storage(spec.capacity),
        name=volume.metadata.name,
        volume=volume,
        kind=kind_of(volume),
        modes=frozenset(spec.access_modes),
        offered=volume.status.phase == "Available",
        near=near,
        pin=_pin(near),
    )


def kind_of(one: PersistentVolume | PersistentVolumeClaim) -> tuple[str, str]:
    """Return what must be equal in a volume and in a claim for it."""
    return one.spec.volume_mode or _FILESYSTEM, one.spec.volume_attributes_class_name or ""


def storage(amounts: ResourceList) -> Quantity:
    found = amounts.get("storage")
    return _NONE if found is None else Quantity.parse(found)


def _pin(near: NodeSelector | None) -> Pin | None:
    if near is None or len(near.node_selector_terms) != 1:
        return None
    (term,) = near.node_selector_terms
    if term.match_fields or len(term.match_expressions) != 1:
        return None
    (condition,) = term.match_expressions
    return (condition.key, tuple(condition.values)) if condition.operator == "In" and condition.values else None


def _size(item: Item) -> Quantity:
    return item.size


def _order(item: Item) -> tuple[Quantity, str]:
    return item.order
